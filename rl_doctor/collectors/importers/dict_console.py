"""Any text log in which stands a dictionary of Python or JSON per step, whatever is before and behind it in the line."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rl_doctor.collectors.importers.console import seen
from rl_doctor.collectors.importers.patterns import when_used
from rl_doctor.collectors.importers.printed_rows import printed_rows
from rl_doctor.collectors.importers.registry import Fit, Imported, Sample, importer
from rl_doctor.collectors.importers.rows import assemble

_MARKS: Final = ("'step': ", '"step": ', "'global_step': ", '"global_step": ')
_ROW: Final = when_used(rf"\{{(?:['\"][^'\"\n]{{1,200}}['\"]: [^{{}}]{{0,20000}}?)??(?:{'|'.join(_MARKS)})['\"]?(\d+)")
_JSON: Final = when_used(r"\s*(?:\{\s*\"|\[\s*[\[{])")
_FEWEST: Final = 3
"""Steps from which a text is a log."""


def _recognises(sample: Sample) -> Fit:
    text = seen(sample)
    if _JSON.match(text):
        return Fit.NO
    return Fit.CONTAINER if len(set(_ROW.findall(text))) >= _FEWEST else Fit.NO


@importer("dict-log", "text lines with a dictionary per step", _recognises, marks=_MARKS, last=True)
def read(path: Path) -> Imported:
    """Read the dictionaries."""
    rows, notes = printed_rows(path)
    found = assemble(rows, path)
    return Imported(found.log, notes=(*notes, *found.notes))
