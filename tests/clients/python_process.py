"""The official Python client as a process that is told what to do: the JSON lines of `node/scenarios.js`.

    python -m tests.clients.python_process 127.0.0.1:8081

For loads, so that who tells has its interpreter to itself, and for tests of several processes; most
scenarios use the client directly.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import count
from typing import Any

from tests.clients.official import Got, Plan, PushConsumer, Refused
from tests.clients.python_client import PythonClient, Simple

THREADS = 32


class Told:
    """The client, and by number the consumers it has started and the messages they received."""

    def __init__(self, listen: str) -> None:
        self._client = PythonClient(listen)
        self._consumers: list[Simple] = []
        self._listeners: list[PushConsumer] = []
        self._messages: dict[int, Got] = {}
        self._numbers = count()

    def do(self, verb: str, arguments: dict[str, Any]) -> Any:
        """Carry out a verb of `official`; what it returns can be written as JSON."""
        own: Callable[..., Any] | None = getattr(self, f"_{verb}", None)
        if own is not None:
            return own(**arguments)
        told = getattr(self._client, verb)(**arguments)
        return asdict(told) if verb == "send" else told

    def stop(self) -> None:
        """Shut it down."""
        self._client.stop()

    def _simple(self, **wanted: Any) -> int:
        self._consumers.append(self._client.simple(filter_=wanted.pop("filter"), **wanted))
        return len(self._consumers) - 1

    def _receive(self, consumer: int, count: int, lease_seconds: int) -> list[dict[str, Any]]:
        return [self._kept(one) for one in self._consumers[consumer].receive(count, lease_seconds)]

    def _kept(self, got: Got) -> dict[str, Any]:
        number = next(self._numbers)
        self._messages[number] = got
        return {**asdict(replace(got, native=None)), "native": number}

    def _ack(self, consumer: int, native: int, handle: str) -> None:
        self._consumers[consumer].ack(replace(self._messages.pop(native), handle=handle))

    def _change_invisible(self, consumer: int, native: int, handle: str, seconds: int) -> str:
        renewed = self._consumers[consumer].change_invisible(
            replace(self._messages[native], handle=handle), seconds
        )
        return renewed.handle

    def _close(self, consumer: int) -> None:
        self._consumers[consumer].consumer.shutdown()

    def _push(self, plan: dict[str, Any], **wanted: Any) -> int:
        self._listeners.append(self._client.push(plan=Plan(**plan), filter_=wanted.pop("filter"), **wanted))
        return len(self._listeners) - 1

    def _seen(self, consumer: int) -> list[dict[str, Any]]:
        return [asdict(one) for one in self._listeners[consumer].seen()]


def with_loop() -> None:
    """Give a thread the event loop that the official client asks it for."""
    asyncio.set_event_loop(asyncio.new_event_loop())


def answer(told: Told, line: str) -> None:
    """Do what a line says, and say what came of it."""
    asked = json.loads(line)
    try:
        said = {"id": asked["id"], "told": told.do(asked["verb"], asked["arguments"])}
    except Refused as refusal:
        said = {"id": asked["id"], "refused": str(refusal)}
    sys.stdout.write(f"{json.dumps(said)}\n")
    sys.stdout.flush()


def main() -> None:
    """Do what the lines say until there are no more."""
    with_loop()
    told = Told(sys.argv[1])
    with ThreadPoolExecutor(THREADS, initializer=with_loop) as threads:
        sys.stdout.write('{"id": 0, "told": "started"}\n')
        sys.stdout.flush()
        for line in sys.stdin:
            threads.submit(answer, told, line)
    told.stop()


if __name__ == "__main__":
    main()
