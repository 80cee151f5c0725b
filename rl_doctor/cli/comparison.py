"""A comparison of runs as text and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rl_doctor import __version__
from rl_doctor.report.json_document import number
from rl_doctor.report.wording import printable
from rl_doctor.schema import SCHEMA_VERSION
from rl_doctor.views.compare import Compared, Parting
from rl_doctor.views.divergence import SHORTEST
from rl_doctor.views.opened import Opened

_MARGIN: Final = 2
_UNTOLD: Final = "-"


def to_json(found: Compared, runs: Mapping[str, Opened]) -> str:
    """The comparison as one JSON document."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "doctor_version": __version__,
        "by": found.by,
        "runs": [_run(name, opened) for name, opened in runs.items()],
        "divergences": [_parting(one) for panel in found.panels for one in panel.partings],
        "settings": [{"name": one.name, "values": list(one.values)} for one in found.settings],
        "settings_told_by_some": found.untold,
        "findings": [{"code": one.code, "name": one.name, "runs": list(one.told)} for one in found.findings],
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2) + "\n"


def _run(name: str, opened: Opened) -> dict[str, Any]:
    run = opened.report.run
    return {
        "name": name, "path": run.path, "trainer": run.trainer, "trainer_version": run.trainer_version,
        "algorithm": run.algorithm, "steps": [run.first_step, run.last_step], "sequences": run.sequences, "tokens": run.tokens,
    }  # fmt: skip


def _parting(one: Parting) -> dict[str, Any]:
    told = one.found
    return {
        "metric": one.metric, "unit": one.unit, "other": one.other, "shared": told.n, "too_short": told.short,
        "first_step": one.step, "position": one.position, "points_after": told.stays, "equal_to_step": one.equal_to,
        "median": number(told.here), "median_of_other": number(told.there), "band": number(told.limit),
    }  # fmt: skip


def to_text(found: Compared, runs: Mapping[str, Opened], columns: int) -> str:
    """The comparison for a terminal of so many columns."""
    lines = [*_heads(runs), "", *_divergences(found, columns)]
    names = list(found.runs)
    lines += ["", "Configured otherwise"]
    lines += _table(["setting", *names], [[one.name, *one.values] for one in found.settings], columns) or [
        "  nothing that they tell"
    ]
    lines += [f"  {found.untold} more settings are told by some of them alone"] if found.untold else []
    lines += ["", "Found in some of them alone"]
    lines += _table(["rule", *names], [[f"{one.code} {one.name}", *one.told] for one in found.findings], columns) or ["  nothing"]
    return "".join(f"{printable(line)}\n" for line in lines)


def _heads(runs: Mapping[str, Opened]) -> Iterator[str]:
    for name, opened in runs.items():
        run = opened.report.run
        trainer = " ".join(part for part in (run.trainer, run.trainer_version) if part)
        steps = None if run.first_step is None else f"steps {run.first_step}-{run.last_step}"
        tokens = f"{run.tokens:,} tokens" if run.tokens else "a log"
        yield " · ".join(part for part in (name, trainer, run.algorithm, steps, tokens) if part)


def _divergences(found: Compared, columns: int) -> Iterator[str]:
    """What parts, the earliest first, and what could not be told."""
    aligned = "step" if found.by == "step" else f"{found.by}; values between steps are interpolated"
    yield f"Where the metrics part (aligned by {aligned})"
    for one in found.parted:
        told = one.found
        equal = "" if one.equal_to is None else f"; equal up to step {one.equal_to}"
        text = (
            f"{one.metric}: from step {one.step} on outside the band of {one.other} (± {told.limit:.3g}) for the {told.stays} "
            f"points to the last of {told.n} shared ones: median {told.here:.4g} against {told.there:.4g}{equal}"
        )
        yield from textwrap.wrap(text, columns, initial_indent="  ", subsequent_indent="    ")
    if not found.panels:
        yield "  the runs share none of the usual metrics"
    elif not found.parted:
        yield f"  none of the {len(found.panels)} usual metrics that they share leaves the other's band and stays outside"
    if found.short:
        yield f"  {found.short} of them have fewer than {SHORTEST} shared points: too few to tell"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], columns: int) -> list[str]:
    """Rows under their heads, cut to the width; nothing without rows."""
    cells = [list(heads), *([cell or _UNTOLD for cell in row] for row in rows)]
    if len(cells) == 1:
        return []
    most = max((columns - _MARGIN) // len(heads) - _MARGIN, 12)
    shown = [[_cut(cell, most) for cell in row] for row in cells]
    widths = [max(len(row[at]) for row in shown) for at in range(len(heads))]
    return ["  " + "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip() for row in shown]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
