"""The command ``rl-doctor``: its verbs, and the only place where errors become lines and exit codes."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from typing import Annotated, Final

import typer

from rl_doctor import __version__
from rl_doctor.cli import check, demo, env, explain, import_, metrics, pack, rules
from rl_doctor.cli.output import fail, silence_stdout
from rl_doctor.errors import DoctorError

TRACEBACK_VARIABLE = "RL_DOCTOR_TRACEBACK"
"""Set to 1, it shows the traceback of an unexpected error."""

VERBS: Final = (check, explain, rules, metrics, import_, pack, demo, env)
"""Modules with a ``NAME`` and a ``command``, in the order of the help."""

app = typer.Typer(
    name="rl-doctor",
    help="Find out why an LLM post-training run (PPO, GRPO, DAPO, RLOO ...) is failing.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in VERBS:
    app.command(verb.NAME)(verb.command)


def _version(value: bool) -> None:  # noqa: FBT001 - the callback's signature is typer's
    if value:
        sys.stdout.write(f"rl-doctor {__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    del version


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit.

    Exit codes: 2 usage error or unreadable input, 1 findings, 2 a rule crashed or internal error, 3 nothing could be judged, 0.

    Args:
        arguments: the words after ``rl-doctor``; by default those of the process.
    """
    # Starting costs more than checking a small run. A check multiplies no matrices, so BLAS needs no threads (.1 s of CPU), and
    # what imports allocate is not garbage, so collecting it can wait (a tenth of the whole).
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(100_000, 50, 50)
    try:
        app(args=arguments, prog_name="rl-doctor")
    except DoctorError as error:
        fail(str(error), error.exit_code)
    except BrokenPipeError:
        silence_stdout()
        sys.exit(0)
    except Exception as error:  # noqa: BLE001 - whatever it is, the user gets one line and an exit code that is not a pass
        if os.environ.get(TRACEBACK_VARIABLE) == "1":
            traceback.print_exc()
        fail(
            f"internal error: {type(error).__name__}: {error}; please report it as a bug "
            f"(with {TRACEBACK_VARIABLE}=1 set, the traceback is shown)",
            2,
        )
