"""A log in which the entropy grows to a multiple of its start while the reward falls."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        entropy = 0.5 * 1.06 ** max(0, step - 40) * random.lognormvariate(0, 0.05)
        row = {"entropy": entropy, "reward": 0.5 - 0.004 * max(0, step - 40) + random.gauss(0, 0.02)}
        log.write(json.dumps({"step": step, **row}) + "\n")
