"""A log in which the gradient norm grows fortyfold while the reward falls."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        row = {
            "grad_norm": 0.3 * 1.04 ** max(0, step - 10) * random.lognormvariate(0, 0.1),
            "reward": 0.5 - 0.003 * step + random.gauss(0, 0.02),
        }
        log.write(json.dumps({"step": step, **row}) + "\n")
