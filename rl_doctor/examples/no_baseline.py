"""A log in which the largest and smallest advantage are the largest and smallest reward."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        high = random.choice([0.9, 1.0, 1.1])
        row = {
            "critic/advantages/max": high,
            "critic/advantages/min": 0.0,
            "critic/rewards/max": high,
            "critic/rewards/min": 0.0,
            "critic/rewards/mean": high / 3,
        }
        log.write(json.dumps({"step": step, **row}) + "\n")
