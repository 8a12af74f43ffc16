"""The official client, unmodified, beside `client_process`: what waits for a producer, or for a consumer.

    python -m tests.endurance.official_process NUMBER HISTORY HOST:PORT[;HOST:PORT...]

Each `PAUSE_SECONDS` a producer sends a half, and ends none: asked about it, it says commit. Of halves that
are not its own it knows nothing, and says so. It also sends to message groups of a topic of its own, which a
push consumer gets. Notes sends, questions, answers and what came in HISTORY; a send is noted once it has
ended, since its id is drawn in the client. Says "ready"; the end of stdin ends it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    TransactionChecker,
    TransactionResolution,
)

from tests.endurance.client_process import OFFICIAL
from tests.endurance.sick_load import HALVES
from tests.history_file import HistoryFile, content_hash

PAUSE_SECONDS = 0.7
LINES = 4


class Checker(TransactionChecker):  # type: ignore[misc] # the official client carries no types
    """Commits what is its own, and notes that it was asked."""

    def __init__(self, notes: HistoryFile) -> None:
        self._notes = notes

    def check(self, message: Any) -> Any:
        if message.properties.get(OFFICIAL) is None:
            return TransactionResolution.UNKNOFFICIAL
        self._notes.note("asked", id=message.message_id, time_ms=now_ms())
        fields = {"id": message.message_id, "topic": HALVES, "resolution": "commit"}
        self._notes.invoke(OFFICIAL, now_ms(), "end", **fields)
        return TransactionResolution.COMMIT


class Listener(MessageListener):  # type: ignore[misc] # the official client carries no types
    """Notes what comes."""

    def __init__(self, notes: HistoryFile) -> None:
        self._notes = notes

    def consume(self, message: Any) -> Any:
        fields = {"id": message.message_id, "topic": OFFICIAL, "group": OFFICIAL}
        self._notes.note("came", **fields, time_ms=now_ms())
        return ConsumeResult.SUCCESS


class Sender:
    """A producer, and what it has sent."""

    def __init__(self, producer: Any, notes: HistoryFile) -> None:
        self._producer, self._notes, self._count = producer, notes, 0

    def send_half(self) -> None:
        """Send a half, and leave it."""
        message = self._message(HALVES)
        self._send(message, "half", self._producer.begin_transaction(), asks=True)

    def send_line(self) -> None:
        """Send the next of a message group."""
        message = self._message(OFFICIAL)
        message.message_group = f"line-{self._count // 2 % LINES}"
        self._send(message, "fifo", None, line=message.message_group, number=self._count)

    def _message(self, topic: str) -> Any:
        self._count += 1
        message = Message()
        message.topic, message.body = topic, f"{OFFICIAL} {self._count}".encode()
        for one in range(self._count % 6 + 1):
            message.add_property(OFFICIAL if one == 0 else f"property-{one}", str(self._count))
        return message

    def _send(self, message: Any, kind: str, transaction: Any, **fields: Any) -> None:
        began_ms, outcome = now_ms(), "unknown"
        try:
            self._producer.send(message, transaction)
            outcome = "ok"
        except Exception as error:  # whatever the client raises: nobody knows what came of it
            print(f"send: {error}", file=sys.stderr)
        told = {"kind": kind, "id": message.message_id, "topic": message.topic, "line": "", "due_ms": 0}
        told["hash"] = content_hash(message.body)
        call = self._notes.invoke(OFFICIAL, began_ms, "send", **(told | fields))
        self._notes.end(call, outcome, now_ms())


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def main(number: str, history: str, addresses: str) -> None:
    """Send until stdin ends."""
    notes = HistoryFile(Path(history), int(number))
    configuration = ClientConfiguration(addresses, Credentials())
    producer = Producer(configuration, [HALVES, OFFICIAL], checker=Checker(notes))
    producer.startup()
    consumer = PushConsumer(configuration, OFFICIAL, Listener(notes), {OFFICIAL: FilterExpression()})
    consumer.startup()
    sender, is_over = Sender(producer, notes), threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), is_over.set()), daemon=True).start()
    print("ready", flush=True)
    while not is_over.wait(PAUSE_SECONDS):
        sender.send_half()
        sender.send_line()
    sys.stdout.flush()
    os._exit(0)  # its shutdown waits for streams that may be gone


if __name__ == "__main__":
    main(*sys.argv[1:])
