"""`tidewheel work`: run the worker of an application (`tidewheel.client.worker`).

This process is replaced by a process without the broker's packages on its import path (`tidewheel.command`),
like any application.
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
    """Run the functions of an application for messages, until SIGTERM or Ctrl-C.

    Running functions are completed.

    The client takes the broker's address from TIDEWHEEL_HTTP, unless the module specifies an address.

    Example: tidewheel work shop.messages:worker --concurrency 8
    """
    more = [] if concurrency is None else ["--concurrency", str(concurrency)]
    os.execv(sys.executable, [sys.executable, "-P", "-m", "tidewheel.client.work", worker, *more])
