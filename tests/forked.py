"""Processes of `tidewheel` commands without the second that each takes to import what it needs.

    test --Popen--> [python, -m, services.cli.main, serve, ...]
                       |  the command, its environment, its three streams
                       v
    nursery: has imported it all once --fork--> fork --> the command's process --> main()

The process is one like any other: it has an id of its own, is killed, waited for and listened to by the
`Popen` that started it, and ends with its exit code. Only its imports are its nursery's. How it gets to be
the test's own child, which alone a `Popen` can wait for: its parent ends at once, at a moment at which Linux
hands orphans to the test process (PR_SET_CHILD_SUBREAPER). What it starts itself comes out of a nursery too.
An audit finds a Java that goes on when it ends (`tests.kept_java`).

Everything else is started as ever: other programs, other Pythons, whatever asks for more than streams, folder
and environment, and environments that mean something to a process before its first line.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import inspect
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests import kept_java

COMMANDS: Final = ([sys.executable, "-m", "services.cli.main"], [sys.executable, "-P", "-m", "tidewheel"])
IMPORTED: Final = (
    *(
        "services.cli.main",
        "services.cli.processes.serve",
        "services.server.run",
        "services.process.event_loop",
        "uvicorn",
        "uvloop",
    ),
    *("services.cli.processes.shop", "services.shop.carts.carts", "services.shop.database"),
    "sqlalchemy.dialects.sqlite",
)
READ_AT_START: Final = ("LD_", "PYTHON", "MALLOC", "GRPC", "OPENBLAS", "COVERAGE")
MESSAGE_BYTES_MAX: Final = 1 << 17
PR_SET_CHILD_SUBREAPER: Final = 36
ONE_AT_A_TIME: Final = threading.Lock()
Popen: Final = subprocess.Popen
PIPES: Final = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
SIGNATURE: Final = inspect.signature(Popen._execute_child)  # type: ignore[attr-defined]


class Forked(Popen):  # type: ignore[type-arg,misc]
    """A `Popen` whose tidewheel commands come out of the nursery."""

    def _execute_child(self, *given: Any) -> None:
        asked = SIGNATURE.bind(self, *given).arguments
        if not may_be_forked(asked):
            super()._execute_child(*given)  # type: ignore[misc]
            return
        pipes = [asked[name] for name in PIPES]
        its_own = (pipes[0], pipes[3], pipes[5])
        streams = [end if end >= 0 else number for number, end in enumerate(its_own)]
        words = words_of(asked["args"]) or []
        folder = os.fspath(asked["cwd"] or os.getcwd())
        environment = dict(os.environ if asked["env"] is None else asked["env"])
        request = {
            "words": words,
            "folder": folder,
            "environment": environment | kept_java.place_for(self, words, environment, Path(folder)),
            "in_session": asked["start_new_session"],
        }
        try:
            self.pid = born(json.dumps(request).encode(), streams)
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        self._child_created = True


def may_be_forked(asked: Mapping[str, Any]) -> bool:
    """Whether a command is ours and asks for nothing that only a process of its own could have."""
    if not sys.platform.startswith("linux") or words_of(asked["args"]) is None:
        return False
    environment = os.environ if asked["env"] is None else asked["env"]
    if any(name.startswith(READ_AT_START) for name, _ in environment.items() ^ nursery_environment()):
        return False
    return not any(asked[name] for name in ("preexec_fn", "pass_fds", "shell", "executable"))


def words_of(args: Any) -> list[str] | None:
    """What follows `tidewheel` in a command line; None if it is another program's."""
    words = [] if isinstance(args, str | bytes | os.PathLike) else [os.fspath(one) for one in args]
    return next((words[len(one) :] for one in COMMANDS if words[: len(one)] == one), None)


@cache
def nursery_environment() -> frozenset[tuple[str, str]]:
    """The environment that the nursery began with."""
    return frozenset(os.environ.items())


@cache
def nursery() -> socket.socket:
    """The line to the nursery of this process, which ends with it."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "tests.forked", str(its.fileno())]
    Popen(
        command,
        cwd=Path(__file__).parents[1],
        env=dict(nursery_environment()),
        pass_fds=[its.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    its.close()
    return ours


def born(request: bytes, streams: list[int]) -> int:
    """Have a process made and return its id; it is a child of this one."""
    adopt = ctypes.CDLL(None).prctl
    with ONE_AT_A_TIME:
        line = nursery()
        adopt(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(line, [request], streams)
            return int(line.recv(64))
        finally:
            adopt(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def tend(line: socket.socket) -> None:
    """Make processes until the test process ends; returns in each of them, where `main` is to run."""
    while True:
        request, streams, *_ = socket.recv_fds(line, MESSAGE_BYTES_MAX, 3)
        if not request:
            os._exit(0)
        told, tells = os.pipe()
        if (parent := os.fork()) == 0:
            if child := os.fork():
                os.write(tells, str(child).encode())
                os._exit(0)
            for inherited in (told, tells, line.detach()):
                os.close(inherited)
            become(json.loads(request), streams)
            return
        for passed_on in (tells, *streams):
            os.close(passed_on)
        os.waitpid(parent, 0)  # only then the child is the test process' own
        line.send(os.read(told, 64))
        os.close(told)


def become(request: dict[str, Any], streams: list[int]) -> None:
    """Make this process what was asked for."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if request["in_session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["tidewheel", *request["words"]]
    nursery_environment.cache_clear()
    subprocess.Popen = Forked  # type: ignore[misc]


if __name__ == "__main__":
    for name in IMPORTED:
        with suppress(ImportError):  # what cannot be had is missed by the command itself
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that collecting garbage does not copy the pages that all share
    tend(socket.socket(fileno=int(sys.argv[1])))
    from services.cli.main import main

    main()
