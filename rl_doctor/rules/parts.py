"""Parts of the batch that a trainer logs apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Hit
from rl_doctor.rules.reading import PROGRESS, counted, evidence, progress, span
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View

PART: Final = "part."
_KL: Final = tuple(f"policy.kl_old{end}" for end in ("_k3", "_k2", "_abs", "_k1", ""))
_CLIP: Final = "policy.clip_frac"


def parts(view: View) -> Mapping[str, Mapping[str, Series]]:
    """Measured series of each part of the batch: part -> metric -> series."""
    found: dict[str, dict[str, Series]] = {}
    for name, series in view.named(PART).items():
        part, _, metric = name.removeprefix(PART).partition(".")
        found.setdefault(part, {})[metric] = series
    return found


@rule(
    "RLD109", "part-off-policy",
    severity="error",
    optional=(PART, *_KL, _CLIP, *PROGRESS),
    limits={"distance": 0.05, "times": 10.0, "clipped": 0.02, "rows": 5, "start": 0.3},
    cause="The old logprobs of this part come from another policy than the one that is trained: a cache, another model, or text "
    "that the policy did not write.",
    advice=(
        "Check where the old logprobs of this part come from, and recompute them with the current weights before the update.",
        "If the part is off-policy on purpose (demonstrations, a stored prefix), weight it for that, or leave it out.",
    ),
    avoids=(
        "Drift within an update: it starts near 0 and is the same in every part.",
        "Parts that are all as far away.",
        "A few rows.",
    ),
    source="A public run whose cached prefix had a mean log-ratio of -.8 from the first step on, beside a clean continuation",
)  # fmt: skip
def part_off_policy(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The old policy of one part of the batch is far from the trained one from the first step on; that of the rest is not.

    The ratio of such a part has nothing to do with the update: much of it is clipped at once, and what is left is weighted at
    random. It may be by design, where part of each response is given and not sampled.

    For parts whose KL to the old policy is logged apart: a part counts if the median size of its KL is at least `distance` nat
    and `times` that of another part (or of the whole batch), and the median of the first `rows` rows at least `start` of it. It
    is a warning, and an error if at least `clipped` of the part's tokens are clipped and the reward does not rise.
    """
    found = parts(view)
    distances = {part: series for part, metrics in found.items() if (series := _first(metrics)) is not None}
    if not distances:
        yield Skip("data", "no part of the batch was logged apart")
        return
    longest = max(len(series) for series in distances.values())
    if longest < limits["rows"]:
        yield Skip("length", f"inconclusive: parts of the batch are measured at {counted(longest, 'step')}")
        return
    sizes = {part: float(np.median(np.abs(series.values))) for part, series in distances.items()}
    whole = next((series for name in _KL if (series := view.get(name)) is not None), None)
    if whole is not None and len(distances) == 1:
        sizes["the whole batch"] = float(np.median(np.abs(whole.values)))
    nearest = min(sizes, key=sizes.__getitem__)
    for part, series in distances.items():
        begin = float(np.median(np.abs(series.values[: int(limits["rows"])])))
        far = sizes[part] >= limits["distance"] and sizes[part] >= limits["times"] * sizes[nearest]
        if not far or begin < limits["start"] * sizes[part] or len(series) < limits["rows"]:
            continue
        yield _hit(view, part, series, found[part].get(_CLIP), (nearest, sizes[nearest]), limits)


def _first(metrics: Mapping[str, Series]) -> Series | None:
    return next((metrics[name] for name in _KL if name in metrics), None)


def _hit(
    view: View, part: str, series: Series, clip: Series | None, near: tuple[str, float], limits: Limits
) -> Hit:  # fmt: skip
    level = float(np.median(series.values))
    clipped = None if clip is None else float(np.median(clip.values))
    reward = progress(view)
    bad = clipped is not None and clipped >= limits["clipped"] and reward.series is not None and not reward.good
    shown = [evidence(series, 0, -1, value=level, baseline=near[1], limit=limits["distance"], where={"part": part})]
    if clip is not None:
        shown.append(evidence(clip, 0, -1, value=clipped, limit=limits["clipped"], where={"part": part}))
    return Hit(
        f"Old logprobs of {part} come from another policy: its KL to the old policy is {level:.3g} nat, {span(series, 0)}, from "
        f"the first step on, and that of {near[0]} {near[1]:.2g}"
        + ("" if clipped is None else f"; {clipped:.0%} of it are clipped")
        + f"; {reward.words()}",
        "error" if bad and reward.course != "unknown" else "warning",
        tuple(shown),
        cause=f"The old logprobs of {part} are not those of the policy that is trained: cached, from another model, or of "
        "text that the policy did not write. That may be by design.",
        ruled_out=("drift within the update: it is there from the first step on, and other parts do not have it",),
        unchecked=() if clip is not None else (f"how much of it is clipped: the clip share of {part}",),
    )  # fmt: skip
