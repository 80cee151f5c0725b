"""A log in which the gradient norm stands far above its own level for a step."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        norm = 0.3 * random.lognormvariate(0, 0.1) * (80 if step == 61 else 1)
        row = {"grad_norm": norm, "reward": 0.5 + random.gauss(0, 0.05)}
        log.write(json.dumps({"step": step, **row}) + "\n")
