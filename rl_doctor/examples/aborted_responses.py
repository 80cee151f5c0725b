"""A log in which a third of the responses were aborted by the engine."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        row = {"response/aborted_ratio": 0.33 + random.gauss(0, 0.02), "reward": 0.4 + random.gauss(0, 0.02)}
        log.write(json.dumps({"step": step, **row}) + "\n")
