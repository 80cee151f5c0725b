"""A log in which responses grow to a multiple of their length while the reward stays where it was."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        length = 200 * 1.03 ** max(0, step - 30) * random.lognormvariate(0, 0.03)
        row = {"completions/mean_length": length, "reward": 0.4 + random.gauss(0, 0.02)}
        log.write(json.dumps({"step": step, **row}) + "\n")
