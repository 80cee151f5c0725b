"""A log in which the training reward rises while the held-out score falls."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(5, 301, 5):
        score = 0.6 - 0.004 * step + random.gauss(0, 0.01)
        row = {"reward": 0.3 + 0.005 * step + random.gauss(0, 0.02), "eval_accuracy": score}
        log.write(json.dumps({"step": step, **row}) + "\n")
