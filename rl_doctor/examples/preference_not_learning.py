"""A log of preference training in which chosen and rejected responses are never told apart."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        row = {"rewards/margins": random.gauss(0, 1e-4), "rewards/accuracies": 0.5 + random.gauss(0, 0.02), "loss": 0.6931}
        log.write(json.dumps({"step": step, **row}) + "\n")
