"""A log in which no response counts as cut, though the longest is as long as the limit."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        row = {
            "response_length/mean": 600 + random.gauss(0, 20),
            "response_length/max": 1024,
            "response_length/clip_ratio": 0.0,
            "critic/score/mean": 0.4 + random.gauss(0, 0.02),
        }
        log.write(json.dumps({"step": step, **row}) + "\n")
