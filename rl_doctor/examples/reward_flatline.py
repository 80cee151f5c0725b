"""A log in which every response gets the reward 0."""

import json

with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        row = {"reward": 0.0, "reward_std": 0.0, "grad_norm": 0.0}
        log.write(json.dumps({"step": step, **row}) + "\n")
