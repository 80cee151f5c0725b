"""A log in which every token is clipped although the policy has hardly moved."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        row = {"actor/pg_clipfrac": 1.0, "actor/ppo_kl": 1e-9, "approx_kl": 1e-9, "reward": 0.5 + random.gauss(0, 0.05)}
        log.write(json.dumps({"step": step, **row}) + "\n")
