"""Common parts of this folder's commands: lists of names, progress, disk space, signals, and the report."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import uvloop
from peers_http2 import LoadFailed
from peers_page import BadPage, written
from peers_servers import CannotRun


def tell(line: str) -> None:
    """Print a line of progress to stderr."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def names_of(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a parser of a comma-separated list of names."""

    def read(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(allowed)}")
        return names

    return read


def end_by_signals() -> None:
    """Cancel this task on SIGTERM and SIGINT, so that all servers end too."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for stop in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(stop, task.cancel)


def check_disk(folder: Path, free_bytes: int, used_max: float = 1.0) -> None:
    """Raise `CannotRun` if the disk of a folder has less free space, or a higher share in use."""
    disk = shutil.disk_usage(folder)
    if disk.free >= free_bytes and disk.used / disk.total <= used_max:
        return
    refuses = f", and RocketMQ refuses messages on one over {used_max:.0%} full" if used_max < 1 else ""
    raise CannotRun(
        f"The disk of {folder} has {disk.free >> 30} GB free of {disk.total >> 30}; the stores need"
        f" {free_bytes >> 30}{refuses}. Choose another with --folder."
    )


def reported(
    given: argparse.Namespace,
    measured: Callable[[argparse.Namespace], Coroutine[Any, Any, dict[str, Any]]],
    table: Callable[[dict[str, Any]], str],
    place: str,
) -> int:
    """Measure, or read figures; print them and their table, write it to a page; return the exit code.

    `given` has the options `--read` and `--write`.
    """
    try:
        if given.read:
            found = json.loads(given.read.read_text())
        else:
            found = uvloop.run(measured(given))
            print(json.dumps(found, indent=1))
        made = table(found)
        print(made, file=sys.stderr)
        if given.write:
            written(given.write, place, made)
    except (CannotRun, BadPage, LoadFailed) as error:
        print(error, file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        print("Stopped; nothing is left running.", file=sys.stderr)
        return 130
    return 1 if found["failures"] else 0
