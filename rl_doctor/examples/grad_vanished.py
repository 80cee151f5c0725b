"""A log in which the gradient norm falls to a tiny share of its start and stays there."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        norm = 0.3 * random.lognormvariate(0, 0.1) * (1e-4 if step > 60 else 1)
        row = {"grad_norm": norm, "reward": 0.5 + random.gauss(0, 0.05)}
        log.write(json.dumps({"step": step, **row}) + "\n")
