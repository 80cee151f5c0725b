"""The command ``rl-doctor``: the only place where errors become lines and exit codes."""

from __future__ import annotations

import gc
import os
import sys
import traceback

from rl_doctor.cli.judging import check_runs
from rl_doctor.cli.output import check_stdout, fail, silence_stdout, stand_in_for_closed
from rl_doctor.cli.plain import plain_check
from rl_doctor.errors import DoctorError

TRACEBACK_VARIABLE = "RL_DOCTOR_TRACEBACK"
"""Set to 1, it shows the traceback of an unexpected error."""


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
    stand_in_for_closed()
    try:
        _run(arguments)
    except DoctorError as error:
        fail(str(error), error.exit_code)


def _run(arguments: list[str] | None) -> None:
    try:
        if (asked := plain_check(sys.argv[1:] if arguments is None else arguments)) is not None:
            sys.exit(check_runs(**asked))
        from rl_doctor.cli.app import app

        app(args=arguments, prog_name="rl-doctor")
    except SystemExit:
        check_stdout()
        raise
    except KeyboardInterrupt:
        sys.exit(130)
    except DoctorError:
        raise
    except BrokenPipeError:
        silence_stdout()
        sys.exit(0)
    except Exception as error:  # noqa: BLE001 - whatever it is, the user gets one line and an exit code that is not a pass
        if os.environ.get(TRACEBACK_VARIABLE) == "1":
            traceback.print_exc()
        if isinstance(error, OSError) and error.filename is None:
            check_stdout("\n")  # help and lists are not written by ``emit``
        elif isinstance(error, OSError):
            fail(f"{os.fsdecode(error.filename)}: {error.strerror}; check the path, its permissions and the disk", 2)
        fail(
            f"internal error: {type(error).__name__}: {error}; please report it as a bug "
            f"(with {TRACEBACK_VARIABLE}=1 set, the traceback is shown)",
            2,
        )
