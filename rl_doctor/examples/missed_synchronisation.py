"""A log in which the distance between engine and trainer climbs from step 41 to 46 and is back at step 47."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 81):
        missed = min(max(step - 40, 0), 6) if step < 47 else 0
        row = {
            "train/train_rollout_logprob_abs_diff": 0.004 * (1 + 0.3 * missed) * random.lognormvariate(0, 0.02),
            "rollout/raw_reward": 0.4 + random.gauss(0, 0.02),
        }
        log.write(json.dumps({"step": step, **row}) + "\n")
