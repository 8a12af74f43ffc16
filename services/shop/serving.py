"""Runs a shop service: binds its port, writes its ready file, and stops on SIGTERM or Ctrl-C.

The ready file contains the JSON object `{"listen": "host:port", "pid": n}` and is created atomically. A
second server on the same port is refused, because `grpc.so_reuseport` is 0.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import structlog

from services.process.ending import signals_to_end
from services.process.errors import PortTaken
from services.process.ports import holder_of
from tidewheel.errors import (
    Busy,
    ClientMistake,
    ConfigurationError,
    NotFound,
    RefusedByState,
    TidewheelError,
    TransactionEnded,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

THREADS = 16
STOP_GRACE_S = 5

STATUS_CODES: dict[type[TidewheelError], grpc.StatusCode] = {
    TransactionEnded: grpc.StatusCode.ABORTED,
    ClientMistake: grpc.StatusCode.INVALID_ARGUMENT,
    ConfigurationError: grpc.StatusCode.INVALID_ARGUMENT,
    NotFound: grpc.StatusCode.NOT_FOUND,
    RefusedByState: grpc.StatusCode.FAILED_PRECONDITION,
    Busy: grpc.StatusCode.UNAVAILABLE,
    TidewheelError: grpc.StatusCode.INTERNAL,
}
"""The first matching class determines the status of an error. Callers can retry ABORTED and UNAVAILABLE."""

log = structlog.get_logger()

Verb = Any
"""A method (self, request, context) -> answer. The gRPC types are not generic."""


def answering(verb: Verb) -> Verb:
    """Convert a `TidewheelError` of a method into a gRPC status whose details begin with the error code."""

    @functools.wraps(verb)
    def answer(self: Any, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return verb(self, request, context)
        except TidewheelError as error:
            return context.abort(status_of(error), f"{error.code} {error}")

    return answer


def status_of(error: TidewheelError) -> grpc.StatusCode:
    """Return the gRPC status of an error."""
    return next(status for kind, status in STATUS_CODES.items() if isinstance(error, kind))


def serve(attach: Callable[[grpc.Server], None], listen: str, ready_file: Path | None) -> None:
    """Serve until SIGTERM or SIGINT, then wait up to STOP_GRACE_S for running calls.

    Raises:
        PortTaken: If the address cannot be bound.
    """
    server = grpc.server(ThreadPoolExecutor(THREADS), options=[("grpc.so_reuseport", 0)])
    attach(server)
    address = bind(server, listen)
    stopping = stop_signal()
    server.start()
    log.info("serving", listen=address)
    if ready_file is not None:
        write_ready_file(ready_file, address)
    stopping.wait()
    server.stop(STOP_GRACE_S).wait()


def bind(server: grpc.Server, listen: str) -> str:
    """Bind the address and return it as host:port. Port 0 selects a free port."""
    host, _, port = listen.rpartition(":")
    try:
        return f"{host}:{server.add_insecure_port(listen)}"
    except RuntimeError as error:
        holder = holder_of(int(port)) if port.isdecimal() else ""
        whose = f"is used by {holder}" if holder else "cannot be bound"
        raise PortTaken(f"{listen} {whose}. Give another --listen HOST:PORT; port 0 picks one.") from error


def stop_signal() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stopping = threading.Event()
    for number in signals_to_end():
        signal.signal(number, lambda *_: stopping.set())
    return stopping


def write_ready_file(path: Path, address: str) -> None:
    """Write a temporary file and rename it to the ready file."""
    draft = path.with_name(path.name + ".draft")
    draft.write_text(json.dumps({"listen": address, "pid": os.getpid()}) + "\n")
    draft.replace(path)
