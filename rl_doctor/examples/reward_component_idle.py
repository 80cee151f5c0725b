"""A log in which a part of the reward is never earned."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        right = 0.4 + random.gauss(0, 0.05)
        row = {"reward": right, "rewards/right/mean": right, "rewards/format/mean": 0.0}
        log.write(json.dumps({"step": step, **row}) + "\n")
