"""A log of TRL in which cut responses, which are masked out of the loss, count as having no tokens."""

import json
import random

random.seed(0)
with open("example.jsonl", "w") as log:
    for step in range(1, 101):
        longest = random.randrange(180, 250)
        row = {
            "completions/min_length": 0.0,
            "completions/max_length": longest,
            "completions/max_terminated_length": longest,
            "completions/clipped_ratio": 0.25,
        }
        log.write(json.dumps({"step": step, **row}) + "\n")
