"""A log in which the samples of nearly every group have the same reward."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        share = min(1.0, 0.95 + random.gauss(0, 0.02))
        row = {"frac_reward_zero_std": share, "reward": 0.05 + random.gauss(0, 0.01)}
        log.write(json.dumps({"step": step, **row}) + "\n")
