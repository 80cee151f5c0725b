"""A log in which the responses shrink to a tenth of their length while the reward falls."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        gone = min(1.0, max(0.0, (step - 30) / 40))
        row = {
            "completions/mean_length": 400 * 0.1**gone * random.lognormvariate(0, 0.05),
            "reward": 0.6 - 0.003 * step + random.gauss(0, 0.02),
        }
        log.write(json.dumps({"step": step, **row}) + "\n")
