"""A log in which the spread of the reward jumps at step 61."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        std = 0.2 * (5 if step > 60 else 1) * random.lognormvariate(0, 0.05)
        row = {"reward": 0.5 + random.gauss(0, 0.02), "reward_std": std}
        log.write(json.dumps({"step": step, **row}) + "\n")
