"""The official client, unmodified, beside `client_process`: a producer that leaves its halves to check-backs.

    python -m tests.endurance.official_process NUMBER HISTORY HOST:PORT[;HOST:PORT...]

Sends a half each `PAUSE_SECONDS` and ends none; asked about it, it says commit. Of halves that are not its
own it knows nothing, and says so. Notes sends, questions and answers in HISTORY. A send is noted once it has
ended: its id is drawn in the client. Says "ready"; the end of stdin ends it.
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
    Credentials,
    Message,
    Producer,
    TransactionChecker,
    TransactionResolution,
)

from tests.endurance.sick_load import HALVES
from tests.history_file import HistoryFile, content_hash

PAUSE_SECONDS = 0.7
OWN = "official"


class Checker(TransactionChecker):  # type: ignore[misc] # the official client carries no types
    """Commits what is its own, and notes that it was asked."""

    def __init__(self, notes: HistoryFile) -> None:
        self._notes = notes

    def check(self, message: Any) -> Any:
        if message.properties.get(OWN) is None:
            return TransactionResolution.UNKNOWN
        self._notes.note("asked", id=message.message_id, time_ms=now_ms())
        fields = {"id": message.message_id, "topic": HALVES, "resolution": "commit"}
        self._notes.invoke(OWN, now_ms(), "end", **fields)
        return TransactionResolution.COMMIT


def send(producer: Any, notes: HistoryFile, number: int) -> None:
    """Send a half, and note what came of it."""
    message = Message()
    message.topic, message.body = HALVES, f"half {number}".encode()
    for one in range(number % 6 + 1):
        message.add_property(OWN if one == 0 else f"property-{one}", str(number))
    began_ms, outcome = now_ms(), "unknown"
    try:
        producer.send(message, producer.begin_transaction())
        outcome = "ok"
    except Exception as error:  # whatever the client raises: nobody knows what came of it
        print(f"send: {error}", file=sys.stderr)
    fields = {
        "kind": "half",
        "id": message.message_id,
        "topic": HALVES,
        "line": "",
        "due_ms": 0,
        "asks": True,
    }
    call = notes.invoke(OWN, began_ms, "send", hash=content_hash(message.body), **fields)
    notes.end(call, outcome, now_ms())


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def main(number: str, history: str, addresses: str) -> None:
    """Send until stdin ends."""
    notes = HistoryFile(Path(history), int(number))
    producer = Producer(ClientConfiguration(addresses, Credentials()), [HALVES], checker=Checker(notes))
    producer.startup()
    is_over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), is_over.set()), daemon=True).start()
    print("ready", flush=True)
    count = 0
    while not is_over.wait(PAUSE_SECONDS):
        count += 1
        send(producer, notes, count)
    sys.stdout.flush()
    os._exit(0)  # its shutdown waits for streams that may be gone


if __name__ == "__main__":
    main(*sys.argv[1:])
