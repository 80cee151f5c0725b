"""A log in which the loss is NaN from step 61 on."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        loss = 0.1 * random.random() if step <= 60 else float("nan")
        row = {"loss": loss, "reward": 0.5 + random.gauss(0, 0.05), "grad_norm": 0.3}
        log.write(json.dumps({"step": step, **row}) + "\n")
