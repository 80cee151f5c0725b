"""A log in which the reward collapses at step 61, ten steps after the gradient norm exploded."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        row = {
            "reward": (0.6 if step <= 60 else 0.05) + random.gauss(0, 0.02),
            "grad_norm": (0.3 if step <= 50 else 6.0) * random.lognormvariate(0, 0.1),
            "entropy": (0.5 if step <= 62 else 3.0) * random.lognormvariate(0, 0.05),
        }
        log.write(json.dumps({"step": step, **row}) + "\n")
