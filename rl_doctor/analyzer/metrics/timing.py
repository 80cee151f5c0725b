"""The trainer's clocks, as logged: in asynchronous training they tell who waits for whom."""

from __future__ import annotations

from typing import Final

from rl_doctor.analyzer.registry import logged_metric

_SOURCE: Final = "the trainer's own clock"

for _name, _of in (
    ("generation", "sampling the responses"),
    ("update", "the policy's update"),
    ("wait", "waiting for samples or for weights"),
    ("step", "the whole step"),
):
    logged_metric(f"time.{_name}", unit="s", source=_SOURCE, formula=f"seconds of {_of}", doc=f"Time of {_of}, as logged.")
