"""A log in which the reward jumps at step 61, as after a new version of the reward model."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        jump = 2.0 if step > 60 else 0.0
        log.write(json.dumps({"step": step, "reward": 0.5 + jump + random.gauss(0, 0.05)}) + "\n")
