"""A log in which the learning rate has run out half way through."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        row = {"learning_rate": max(0.0, 1e-6 * (1 - step / 50)), "reward": 0.5 + random.gauss(0, 0.05)}
        log.write(json.dumps({"step": step, **row}) + "\n")
