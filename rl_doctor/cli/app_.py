"""``rl-doctor app``: look at runs in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from rl_doctor.cli.output import emit

NAME: Final = "app"


def command(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run folders, Parquet files, logs, or a folder of runs to pick from.")
    ],
    port: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=65535, help="Port to serve at; by default a free one.")
    ] = None,
    base_path: Annotated[
        str, typer.Option(metavar="PATH", help="What stands before the app's own address, where a proxy needs that.")
    ] = "",
    address: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen at.")] = "127.0.0.1",
    open_to_others: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--open-to-others", help="Allow an ADDRESS that other machines reach; the app has no login.")
    ] = False,
    tokenizer: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="A local tokenizer (its folder or tokenizer.json): shows the text of token ids."),
    ] = None,
) -> None:
    """Show runs in a browser: the diagnosis, charts and rollouts; a run that goes on is followed.

    Serves on this machine alone, and prints the address and the ssh command that makes it work on another one. Ctrl-C ends it.
    """
    from rl_doctor.app.serving import place_for, serve

    serve(runs, place_for(address, port, base_path, open_to_others=open_to_others), emit, tokenizer)
