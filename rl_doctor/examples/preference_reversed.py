"""A log of preference training in which the rejected responses earn more and more."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        row = {
            "rewards/margins": -0.05 * step + random.gauss(0, 0.05),
            "rewards/accuracies": max(0.02, 0.5 - 0.006 * step),
            "rewards/chosen": -0.03 * step,
            "rewards/rejected": 0.02 * step,
        }
        log.write(json.dumps({"step": step, **row}) + "\n")
