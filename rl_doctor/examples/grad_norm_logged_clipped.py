"""A log in which the gradient norm is that of after clipping: 1.0 at most steps, and never more."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        row = {"grad_norm": min(1.0, random.lognormvariate(0.5, 0.6)), "reward": 0.4 + random.gauss(0, 0.02)}
        log.write(json.dumps({"step": step, **row}) + "\n")
