"""A log in which engine and trainer drift apart from step 60 on, and the gradient norm explodes from step 100 on."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 151):
        row = {
            "rollout_corr/k3_kl": 0.0005 * 1.03 ** max(0, step - 60) * random.lognormvariate(0, 0.1),
            "actor/grad_norm": 0.3 * 1.06 ** max(0, step - 100) * random.lognormvariate(0, 0.1),
            "critic/score/mean": 0.4 + random.gauss(0, 0.02),
        }
        log.write(json.dumps({"step": step, **row}) + "\n")
