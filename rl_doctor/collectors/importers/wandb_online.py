"""Runs on a wandb server, by ``wandb://ENTITY/PROJECT/RUN_ID`` or by the address of the run's page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rl_doctor.collectors.importers.columns import Columns, TooManyNamesError
from rl_doctor.collectors.importers.patterns import when_used
from rl_doctor.collectors.importers.registry import Fit, Imported, Sample, importer
from rl_doctor.collectors.importers.rows import assemble_columns
from rl_doctor.collectors.importers.tracker_config import info_of
from rl_doctor.collectors.importers.unfolding import media_note, unfold
from rl_doctor.errors import DoctorError, InputError, NothingToJudgeError

_ADDRESS: Final = when_used(
    r"(?:wandb:/+(?P<path>[^/?#]+/[^/?#]+/[^/?#]+)|https?:/+[^/]+/(?P<project>[^/?#]+/[^/?#]+)/runs/(?P<run>[^/?#]+).*)/?"
)
_TIMEOUT: Final = 14
"""Seconds that the server has for one answer."""
_UNREACHED: Final = ("Failed to execute", "in time", "connect", "<no message>")
"""What the client says where it could not ask whether the login is right."""
_SHOWN: Final = 200
"""Characters of the client's message that are shown."""


def _recognises(sample: Sample) -> Fit:
    return Fit.SIGNATURE if not sample.folder and not sample.head and _ADDRESS.fullmatch(str(sample.path)) else Fit.NO


@importer("wandb-online", "a run on a wandb server", _recognises)
def read(path: Path) -> Imported:
    """Read all of a run's history, not the sample that the server's charts show."""
    found = _ADDRESS.fullmatch(str(path))
    if found is None:
        raise InputError(f"{path}: no address of a run; write wandb://ENTITY/PROJECT/RUN_ID")
    name = found["path"] or f"{found['project']}/{found['run']}"
    columns, media = Columns(), set[str]()
    try:
        run = _api().run(name)
        last = int(run.lastHistoryStep)
        for row in run.scan_history():
            values, others = unfold(row)
            media |= others
            columns.add(values)
        config, internal = dict(run.config), run.rawconfig.get("_wandb")
        notes = [f"run {run.name!r} ({name}), {run.state}"]
    except (InputError, TooManyNamesError):
        raise
    except Exception as error:  # the client raises of many kinds, some no more than Exception
        raise InputError(f"wandb://{name}: {_reason(error)}") from error
    if not columns.rows and last >= 0:
        raise InputError(f"wandb://{name}: the server has steps up to {last}, and wandb read none of them; upgrade wandb")
    if not columns.rows:
        raise NothingToJudgeError(f"wandb://{name}: nothing was logged in this run")
    try:
        made = assemble_columns(columns, path, _axes(internal))
    except DoctorError as error:
        raise type(error)(str(error).replace(str(path), f"wandb://{name}")) from error
    return Imported(made.log, info_of(config, run.id), (*notes, *media_note(media), *made.notes))


def _api() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise InputError("runs on a wandb server need wandb: pip install 'rl-doctor[wandb]'") from error
    if not getattr(wandb, "run", None):
        wandb.setup(settings=wandb.Settings(silent=True))  # else it asks on the terminal for a login that is missing
    return wandb.Api(timeout=_TIMEOUT)


def _reason(error: Exception) -> str:
    """What went wrong, in one line, and what to do."""
    kind, text = type(error).__name__, " ".join(str(error).split())[:_SHOWN]
    if kind in {"NotATerminalError", "UsageError"}:
        return "not logged in to wandb; run wandb login, or set WANDB_API_KEY"
    if kind == "AuthenticationError" and not any(word in text for word in _UNREACHED):
        return f"wandb refuses the login ({text}); run wandb login, or set WANDB_API_KEY"
    if "not found" in text.lower() or "could not find" in text.lower():
        return "no such run, or it is not open to your login; check ENTITY/PROJECT/RUN_ID"
    return f"cannot be read from wandb's server ({text or kind}); check the network and WANDB_BASE_URL"


def _axes(internal: Any) -> set[str]:
    """Names of the step axes that ``define_metric`` gave: metric number "5" of each entry, counted from 1."""
    metrics = internal.get("m") if isinstance(internal, Mapping) else None
    entries = [entry for entry in metrics if isinstance(entry, Mapping)] if isinstance(metrics, list) else []
    indices = {entry.get("5") for entry in entries}
    return {str(entry["1"]) for number, entry in enumerate(entries, 1) if number in indices and "1" in entry}
