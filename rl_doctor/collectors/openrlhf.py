"""Records OpenRLHF (0.11): run its command through ``python -m rl_doctor.collectors.openrlhf``.

    RL_DOCTOR_RUN=runs/a python -m rl_doctor.collectors.openrlhf openrlhf.cli.train_ppo_ray ...

OpenRLHF has no plugins and trains in Ray's processes. The command hands Ray a hook that each of these runs at its start, where it
waits for OpenRLHF's modules to be imported.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Final

from rl_doctor.collectors.guard import one_line
from rl_doctor.collectors.openrlhf_driver import install_generator, install_maker, install_trainer
from rl_doctor.collectors.openrlhf_mark import Destination
from rl_doctor.collectors.openrlhf_worker import install_actor, install_critic
from rl_doctor.collectors.plugin import RUN_VARIABLE, recorder_options, run_path, tell, when_imported
from rl_doctor.collectors.support import OPENRLHF
from rl_doctor.store import layout

_HOOK: Final = "worker_process_setup_hook"
_JOB_VARIABLE: Final = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_CLOSE_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.2


def install(path: str | None = None, options: Mapping[str, Any] | None = None) -> None:
    """Record what OpenRLHF does in this process, from its import on. Never raises.

    Args:
        path: the run folder; by default the one that the environment variable ``RL_DOCTOR_RUN`` names.
        options: further arguments of ``Recorder``; by default those that the environment gives.
    """
    path = path or run_path()
    version = None if path is None else supported_version()
    if path is None or version is None:
        return
    to = Destination(path, recorder_options() if options is None else options)
    if to.options.get("stop_on"):
        when_imported("openrlhf.trainer.ppo_utils.samples_generator", partial(install_generator, to=to))
    for name, apply in (
        ("openrlhf.trainer.ppo_trainer", partial(install_trainer, to=to, version=version)),
        ("openrlhf.trainer.ppo_utils.experience_maker", install_maker),
        ("openrlhf.trainer.ray.ppo_actor", partial(install_actor, to=to)),
        ("openrlhf.trainer.ray.ppo_critic", partial(install_critic, to=to)),
    ):
        when_imported(name, apply)


def supported_version() -> str | None:
    """The installed version of OpenRLHF; None, and told in one line, where it cannot be recorded."""
    try:
        version = metadata.version("openrlhf")
    except metadata.PackageNotFoundError:
        tell("openrlhf is not installed in this environment")
        return None
    if not OPENRLHF.supports(version):
        tell(f"openrlhf {version} is installed; supported are {OPENRLHF.versions}")
        return None
    return version


def setup_hook(path: str, options: Mapping[str, Any]) -> Callable[[], None]:
    """What each of Ray's processes runs at its start. It is sent by value: a machine without rl-doctor goes on unrecorded."""

    def rl_doctor_hook() -> None:
        try:
            from rl_doctor.collectors.openrlhf import install
        except ImportError as error:
            print(f"rl-doctor records nothing here (training goes on): {error}", file=sys.stderr)  # noqa: T201
        else:
            install(path, options)

    return rl_doctor_hook


def _hook_ray(path: str) -> None:
    """Add the hook to the runtime environment with which ``ray.init`` is called."""
    ray: Any = import_module("ray")
    original = ray.init

    def init(*args: Any, **kwargs: Any) -> Any:
        given = kwargs.get("runtime_env") or {}
        if _HOOK in given or _HOOK in _job_environment():
            tell(f"Ray's {_HOOK} is taken; call rl_doctor.collectors.openrlhf.install() in it")
        else:
            kwargs["runtime_env"] = {**given, _HOOK: setup_hook(path, recorder_options())}
        return original(*args, **kwargs)

    ray.init = init


def _job_environment() -> dict[str, Any]:
    """The runtime environment of the Ray job that this process runs in, if it does."""
    try:
        job = json.loads(os.environ.get(_JOB_VARIABLE) or "{}")
    except ValueError:
        return {}
    return dict(job.get("runtime_env") or {}) if isinstance(job, dict) else {}


def _wait_until_closed(path: str) -> None:
    """Let the recorders in Ray's processes finish, which begins when nothing holds these processes any more."""
    gc.collect()
    end = time.monotonic() + _CLOSE_SECONDS
    while time.monotonic() < end:
        try:
            if json.loads((Path(path) / layout.INFO_NAME).read_bytes()).get("status") != "running":
                return
        except (OSError, ValueError):
            return
        time.sleep(_POLL_SECONDS)


def main(arguments: Sequence[str]) -> None:
    """Run a module (or a ``.py`` file) as ``python -m`` does, recorded.

    Args:
        arguments: the module and its arguments.
    """
    if not arguments or arguments[0].startswith("-"):
        sys.exit("usage: RL_DOCTOR_RUN=PATH python -m rl_doctor.collectors.openrlhf MODULE [ARGUMENT ...]")
    path, hooked = run_path(), False
    if path is None:
        tell(f"the environment variable {RUN_VARIABLE} does not name a run folder")
    elif supported_version() is not None:
        try:
            _hook_ray(path)
            hooked = True
        except Exception as error:  # noqa: BLE001 - a defect of the recorder must not become one of the training
            tell(f"ray has another form ({one_line(error)})")
    sys.argv[:] = list(arguments)
    if arguments[0].endswith(".py"):
        runpy.run_path(arguments[0], run_name="__main__")
    else:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    if hooked and path is not None:
        _wait_until_closed(path)


if __name__ == "__main__":
    main(sys.argv[1:])
