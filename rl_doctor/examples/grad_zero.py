"""A log in which the gradient norm is exactly 0 on most steps."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        norm = 0.3 if step % 5 == 0 else 0.0
        row = {"grad_norm": norm, "reward": 0.5 + random.gauss(0, 0.05)}
        log.write(json.dumps({"step": step, **row}) + "\n")
