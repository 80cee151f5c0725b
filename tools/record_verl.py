"""Record the healthy verl run that tests inject faults into: a small real training through the methods of verl's trainer.

Usage: python tools/record_verl.py

Needs verl, and the variables of its tests (tests/trainers/verl/conftest.py) where it is to train on the CPU. The loop is that of
the tests; the samples are stamped with the version that sampled them.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from rl_doctor import open_run  # noqa: E402
from rl_doctor.store.pack import pack  # noqa: E402
from tests.trainers.verl import train  # noqa: E402

OPTIONS: dict[str, Any] = {
    "driver": True, "steps": 24, "prompts": 4,
    "overrides": ["actor_rollout_ref.actor.ppo_epochs=1", "actor_rollout_ref.actor.optim.lr=0.002"],
}  # fmt: skip


def main() -> None:
    """Train, record, and write the run file."""
    scratch = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)  # after the recorder has closed its folder
    sample = train.sample

    def stamped(model: Any, step: int, *rest: Any) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = sample(model, step, *rest)
        for row in rows:
            row["extra_fields"]["min_global_steps"] = row["extra_fields"]["max_global_steps"] = step - 1
        return rows

    train.sample = stamped
    train.main(train.DEFAULTS | OPTIONS | {"record": str(scratch / "run")})
    pack(open_run(scratch / "run"), ROOT / "tests" / "data" / "verl.parquet")


if __name__ == "__main__":
    main()
