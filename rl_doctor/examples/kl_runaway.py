"""A log in which the KL to the reference grows without bound."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        kl = 0.01 * random.lognormvariate(0, 0.1) * 2 ** max(0, (step - 40) / 8)
        row = {"kl": kl, "reward": 0.5 + random.gauss(0, 0.05)}
        log.write(json.dumps({"step": step, **row}) + "\n")
