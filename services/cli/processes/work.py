"""`tidewheel work`: run an application's worker (`tidewheel.client.worker`).

The worker has a process without the broker's packages on its path, as any application (`tidewheel.command`):
this one is replaced by it.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def work(
    worker: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="A tidewheel.Worker in a module.")],
    concurrency: Annotated[
        int | None,
        typer.Option(help="Number of messages that each function processes at the same time.", min=1),
    ] = None,
) -> None:
    """Run an application's functions for messages, until SIGTERM or Ctrl-C; what was begun is finished.

    Its client takes the broker's address from TIDEWHEEL_HTTP, unless its module names one.

    Example: tidewheel work shop.messages:worker --concurrency 8
    """
    more = [] if concurrency is None else ["--concurrency", str(concurrency)]
    os.execv(sys.executable, [sys.executable, "-P", "-m", "tidewheel.client.work", worker, *more])
