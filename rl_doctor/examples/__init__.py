"""A small program for each rule that makes a run with the fault. ``rl-doctor explain`` prints it; named as the rule is."""

from __future__ import annotations

from importlib import resources

FILES = ("example.jsonl", "example.parquet", "example")
"""What an example writes in the current folder: a log, a run file, or a run folder."""


def example_of(rule: str) -> str | None:
    """The program for the rule of that name, without what only linters read; None where there is none."""
    file = resources.files(__name__) / f"{rule.replace('-', '_')}.py"
    if not file.is_file():
        return None
    lines = file.read_text("utf-8").splitlines()
    return "\n".join(line.partition("  # noqa")[0] for line in lines if line != "from __future__ import annotations").strip()


def written_by(program: str) -> str:
    """Which of ``FILES`` the program writes."""
    return next(name for name in FILES if f'"{name}"' in program)
