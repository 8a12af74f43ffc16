"""Workers that note what they run in a file which others write too (`worker_runs`).

    tidewheel work tests.endurance.worker_process:load
    tidewheel work tests.endurance.worker_process:slow

WORKER_NOTES is the file, WORKER_LEASES the leases of both, as "5s 12s", WORKER_SLOW_SECONDS how long a slow
function takes. Of a hundred messages one raises at its first attempt, and of five hundred one is rejected.

`began`, `ended`, `raised` and `rejected` are noted by the function; `acked`, `dead` and `again` when the
worker logs that the broker has confirmed the end, that is after its answer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from zlib import crc32

from tidewheel import Backoff, Message, Reject, Worker

RAISED_OF_MESSAGES, REJECTED_OF_MESSAGES = 100, 500
QUICK_SECONDS_MAX: Final = 0.004
RETRY: Final = Backoff("20ms", factor=1)
SAID: Final = {"it is acknowledged": "acked", "it is a dead letter": "dead"}
CONFIRMED: Final = re.compile(r"message (\S+) has ended at attempt \d+: (.+)")


def is_rejected(message_id: str) -> bool:
    """Whether the functions reject a message, each time that it comes."""
    return not is_slow(message_id) and crc32(message_id.encode()) % REJECTED_OF_MESSAGES == 0


def is_slow(message_id: str) -> bool:
    """Whether a message is of a topic with slow functions."""
    return message_id.startswith("slow")


class Notes:
    """The file; a line is one write to its end, so lines of several processes do not mix."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, process: int, what: str, message_id: str = "-", lease: str = "-") -> None:
        """Write `<monotonic ms> <process id> <what> <message id> <end of the lease at its receive>`."""
        line = f"{time.monotonic_ns() // 1_000_000} {process} {what} {message_id} {lease}\n"
        os.write(self._descriptor, line.encode())

    def filter(self, record: logging.LogRecord) -> bool:
        """Note an end that was confirmed, and keep its line out of the log."""
        if record.levelno > logging.DEBUG:
            return True
        if found := CONFIRMED.search(record.getMessage()):
            self.note(os.getpid(), SAID.get(found[2], "again"), found[1])
        return False


@contextmanager
def noted(message: Message[Any]) -> Iterator[None]:
    """Note the run of a function; let some fail at its end."""
    notes.note(os.getpid(), "began", message.id, f"{message.leased_until.timestamp():.3f}")
    yield
    if is_rejected(message.id):
        notes.note(os.getpid(), "rejected", message.id)
        raise Reject("no such order")
    if message.attempt == 1 and crc32(message.id.encode()) % RAISED_OF_MESSAGES == 1:
        notes.note(os.getpid(), "raised", message.id)
        raise ValueError("the first attempt fails")
    notes.note(os.getpid(), "ended", message.id)


def seconds_of(message: Message[Any]) -> float:
    return slow_seconds if is_slow(message.id) else random.uniform(0, QUICK_SECONDS_MAX)


def in_a_thread(message: Message[Any]) -> None:
    """Work in a thread."""
    with noted(message):
        time.sleep(seconds_of(message))


async def in_the_loop(message: Message[Any]) -> None:
    """Work in the loop."""
    with noted(message):
        await asyncio.sleep(seconds_of(message))


load, slow = Worker(), Worker()

if "WORKER_NOTES" in os.environ:
    notes = Notes(os.environ["WORKER_NOTES"])
    slow_seconds = float(os.environ["WORKER_SLOW_SECONDS"])
    lease, slow_lease = os.environ["WORKER_LEASES"].split()
    logger = logging.getLogger("tidewheel.worker")
    logger.setLevel(logging.DEBUG)
    logger.addFilter(notes)
    load.consume("threads", group="crew", lease=lease, retry=RETRY)(in_a_thread)
    load.consume("loop", group="crew", lease=lease, retry=RETRY)(in_the_loop)
    load.consume("thread-lines", group="crew", lease=lease, retry=RETRY)(in_a_thread)
    load.consume("loop-lines", group="runs", lease=lease, retry=RETRY)(in_the_loop)
    slow.consume("slow-threads", group="crew", lease=slow_lease, retry=RETRY)(in_a_thread)
    slow.consume("slow-loop", group="crew", lease=slow_lease, retry=RETRY)(in_the_loop)
    slow.consume("slow-lines", group="runs", lease=slow_lease, retry=RETRY)(in_a_thread)
