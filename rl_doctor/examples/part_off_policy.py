"""A log of a trainer that logs the given prefix of a response apart: its KL is large from the first step on."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        row = {
            "actor/prefix_ppo_kl": -0.8 + random.gauss(0, 0.02),
            "actor/ppo_kl": 1e-4 * random.random(),
            "actor/pg_clipfrac": 0.01,
            "critic/score/mean": 0.3 + 0.001 * step,
        }
        log.write(json.dumps({"step": step, **row}) + "\n")
