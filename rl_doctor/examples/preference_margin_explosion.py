"""A log of preference training whose margin grows far beyond what the loss can still tell apart."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        margin = 1.06**step + random.gauss(0, 0.05)
        row = {"rewards/margins": margin, "rewards/accuracies": 1.0, "loss": 1e-4}
        log.write(json.dumps({"step": step, **row}) + "\n")
