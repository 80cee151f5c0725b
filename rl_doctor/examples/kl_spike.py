"""A log in which the KL to the reference stands far above its own level for two steps."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        kl = 0.02 * random.lognormvariate(0, 0.1) * (60 if step in {61, 62} else 1)
        row = {"kl": kl, "reward": 0.5 + random.gauss(0, 0.05)}
        log.write(json.dumps({"step": step, **row}) + "\n")
