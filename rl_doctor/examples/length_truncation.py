"""A log in which nearly all responses are cut at the length limit and earn nothing."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        cut = 0.9 + random.gauss(0, 0.02)
        row = {"completions/clipped_ratio": cut, "reward": 0.02 + random.gauss(0, 0.005)}
        log.write(json.dumps({"step": step, **row}) + "\n")
