"""A log in which the value function explains nothing of the returns."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        row = {
            "critic/vf_explained_var": -0.4 + random.gauss(0, 0.05),
            "critic/vf_loss": 0.5,
            "critic/score/mean": 0.4 + random.gauss(0, 0.05),
        }
        log.write(json.dumps({"step": step, **row}) + "\n")
