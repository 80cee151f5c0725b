"""A log of a run that was resumed at step 61 without its optimizer: the rate warms up again, and the first updates are large."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        since = step if step <= 60 else step - 60
        burst = 8.0 if 61 <= step <= 64 else 1.0
        row = {
            "learning_rate": 1e-6 * min(1.0, since / 10),
            "actor/ppo_kl": 0.001 * burst * random.lognormvariate(0, 0.1),
            "critic/score/mean": 0.4 + random.gauss(0, 0.02),
        }
        log.write(json.dumps({"step": step, **row}) + "\n")
