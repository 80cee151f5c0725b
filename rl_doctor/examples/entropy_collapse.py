"""A log in which the entropy falls to next to nothing while the reward stays where it was."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        entropy = max(0.9 * 0.9 ** max(0, step - 20), 0.002) * random.lognormvariate(0, 0.05)
        row = {"entropy": entropy, "reward": 0.3 + random.gauss(0, 0.02)}
        log.write(json.dumps({"step": step, **row}) + "\n")
