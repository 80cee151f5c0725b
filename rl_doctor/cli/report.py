"""``rl-doctor report``: a run as one HTML file."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from rl_doctor.cli.judging import Lang, preferred
from rl_doctor.cli.output import emit, writable
from rl_doctor.errors import UsageError

NAME: Final = "report"
_NEEDED: Final = ("jinja2", "plotly")


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folder, Parquet file, or log.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="HTML file to write.")],
    redact: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--redact", help="Leave out token ids and texts, and replace names and paths by hashes.")
    ] = False,
    lang: Annotated[Lang | None, typer.Option(help="Language of the file (default: RL_DOCTOR_LANG, or English).")] = None,
) -> None:
    """Write a run as one HTML file: the diagnosis, charts and evidence, to be opened in a browser without a network.

    Exit code: 0 if the file is written, whatever it says (the gate is check); 2 usage error or unreadable input.
    """
    if len(runs) > 1:
        raise UsageError("one file holds one RUN: call this once for each, or hold them against each other with compare")
    lacking = [name for name in _NEEDED if find_spec(name) is None]
    if lacking:
        raise UsageError(f"rl-doctor report: {', '.join(lacking)} not installed; run: pip install 'rl-doctor[app]'")
    path = writable(output, runs)

    from rl_doctor.html.writing import page_of
    from rl_doctor.i18n.speaker import Speaker
    from rl_doctor.report.wording import printable
    from rl_doctor.store.layout import write_durably

    content = page_of(runs[0], Speaker((lang or preferred()).value), redact=redact).encode("utf-8", "backslashreplace")
    try:
        write_durably(path, lambda file: file.write(content))
    except OSError as error:
        raise UsageError(f"{output}: cannot write: {error.strerror or error}") from error
    if path.is_file():  # a pipe or a device has no size, and standard output may be that pipe
        emit(f"{printable(str(output))}: {len(content) / 1e6:.2f} MB; it opens in a browser without a network\n")
