"""Sights of runs, made by hand and drawn at random."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from rl_doctor.live.sight import Found, Sight, Trouble

SEVERITIES = ("info", "warning", "error")


def trouble(
    name: str = "a", *fingerprints: str, severity: Any = "error", going_on: bool = True, steps: tuple[int, int] = (3, 9)
) -> Trouble:
    """A cause with one finding."""
    found = Found("RLD101", "stale-old-logprob", severity, f"{name} is wrong by 0.3", ("mismatch.k3 0.3 nat",), *steps, going_on)
    return Trouble(
        name,
        f"{name} is wrong.",
        severity,
        (found,),
        (),
        tuple(sorted(fingerprints)),
        *steps,
        ("mend it",),
        "mismatch.k3",
        (0.1, 0.3),
    )


def sight(*troubles: Trouble, **changes: Any) -> Sight:
    """A look at a running run."""
    return Sight("runs/a", **{"key": "k", "status": "running", "step": 9, "troubles": troubles, **changes})


@st.composite
def sights(draw: st.DrawFn, *, unique: bool = False) -> Sight:
    """Any sight: names may come twice unless ``unique``, a fingerprint belongs to one cause."""
    prints = draw(st.permutations(list("123456")))
    found = []
    for name in draw(st.lists(st.sampled_from("abcd"), max_size=4, unique=unique)):
        own = [prints.pop() for _ in range(draw(st.integers(0, 2))) if prints]
        severity = draw(st.sampled_from(SEVERITIES))
        found.append(trouble(name, *own, severity=severity, going_on=draw(st.booleans())))
    ended = draw(st.booleans())
    quiet = None if ended else draw(st.sampled_from([None, 75.0]))
    status = draw(st.sampled_from(["complete", "detached"])) if ended else "running"
    return sight(*found, ended=ended, quiet=quiet, status=status)
