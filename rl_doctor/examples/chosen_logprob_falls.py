"""A log of preference training in which the chosen responses become less probable too."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        row = {
            "logps/chosen": -100 - 2 * step + random.gauss(0, 2),
            "rewards/chosen": -0.2 * step,
            "rewards/rejected": -0.3 * step,
            "rewards/margins": 0.1 * step,
        }
        log.write(json.dumps({"step": step, **row}) + "\n")
