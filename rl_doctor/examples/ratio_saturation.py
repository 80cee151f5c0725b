"""A log in which a large share of the tokens is clipped, step after step."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        row = {
            "actor/pg_clipfrac": 0.45 + random.gauss(0, 0.02),
            "actor/ppo_kl": 0.2 + random.gauss(0, 0.02),
            "critic/score/mean": 0.3,
        }
        log.write(json.dumps({"step": step, **row}) + "\n")
