"""Clients of a cluster in a process of its own (`sick_load`), with hash and map seeds of its own.

    python -m tests.endurance.client_process NUMBER SEED HISTORY HOST:PORT ...

One load for each address: senders on the first, receivers on all; what nobody knows of is sent again through
the next one, its properties in another order. Writes what it does and sees to HISTORY, which others
write too. Says "ready"; "late" on stdin ends far timers, the end of stdin ends it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from tests.endurance.client_processes import ROOT, python_path
from tests.endurance.histories import History
from tests.endurance.sick_load import Load
from tests.endurance.watching import Watcher
from tests.history_file import HistoryFile

END_SECONDS = 60
OFFICIAL = "official"
"""The topic of message groups, and the consumer group, of `official_process`; a property of what it sends."""


def started(number: int, seed: int, history: Path, addresses: list[str]) -> subprocess.Popen[str]:
    """Start such a process, number 1 or more; returns when it is ready."""
    words = [str(number), str(seed), str(history), *addresses]
    return started_module("client_process", words, hash_seed=(seed * 7 + number) % 1_000_000)


def started_module(module: str, words: list[str], *, hash_seed: int) -> subprocess.Popen[str]:
    """Start a module of this folder; returns when it has said that it is ready."""
    environment = {**os.environ, "PYTHONPATH": python_path(), "PYTHONHASHSEED": str(hash_seed)}
    command = [sys.executable, "-m", f"tests.endurance.{module}", *words]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", f"{module} has ended at its start"
    return process


def ended(process: subprocess.Popen[str]) -> None:
    """Let it end what it does, and end."""
    process.communicate("late\n", timeout=END_SECONDS)
    assert process.returncode == 0, f"{process.args} has ended with {process.returncode}"


async def play(number: int, seed: int, history: Path, addresses: list[str]) -> None:
    """Go on until stdin ends."""
    shared = History(watcher=Watcher(HistoryFile(history, number)))
    # Each has a sequence of ids of its own, so that none sends another's.
    loads = [Load(one, seed + at, shared, f"-{number}{'xyz'[at]}") for at, one in enumerate(addresses)]
    for at, load in enumerate(loads):
        load.halves_run_out = True
        load.repeats = (*loads[at + 1 :], *loads[: at + 1])  # the next ones first
    steps = [(loads[0], step) for step in loads[0].senders()]
    steps += [(load, step) for load in loads for step in load.receivers()]
    work = [asyncio.create_task(load.go_on(step)) for load, step in steps]
    print("ready", flush=True)
    while (await asyncio.to_thread(sys.stdin.readline)).strip():
        for load in loads:
            load.is_late = True
    for load in loads:
        load.is_over = True
    await asyncio.gather(*work)
    for load in loads:
        await load.close()


if __name__ == "__main__":
    asyncio.run(play(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]))
