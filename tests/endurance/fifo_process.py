"""A FIFO push consumer in a process of its own, that notes what it does in a file which others write too.

    python -m tests.endurance.fifo_process HOST:PORT TOPIC GROUP NOTES WORK_SECONDS

Each note is one line, written at once: `<process id> began|ended|acked <message group> <number>`. Began and
ended enclose the work, acked says that the broker has answered.
"""

from __future__ import annotations

import os
import random
import sys
import time
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    MessageListener,
    PushConsumer,
)


class Notes:
    """The file; a line is one write to its end, so lines of several processes do not mix."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, what: str, message: Any) -> None:
        line = f"{os.getpid()} {what} {message.message_group} {message.body.decode()}\n"
        os.write(self._descriptor, line.encode())


class Listener(MessageListener):  # type: ignore[misc] # the official client carries no types
    """Notes when it begins and when it ends."""

    def __init__(self, notes: Notes, work_seconds_max: float) -> None:
        self._notes, self._work_seconds_max = notes, work_seconds_max

    def consume(self, message: Any) -> ConsumeResult:
        self._notes.note("began", message)
        time.sleep(random.uniform(0, self._work_seconds_max))
        self._notes.note("ended", message)
        return ConsumeResult.SUCCESS


class Consumer(PushConsumer):  # type: ignore[misc] # the official client carries no types
    """The official consumer, that notes which acknowledgements were answered."""

    notes: Notes

    def _ack(self, message: Any) -> None:
        super()._ack(message)
        self.notes.note("acked", message)


def main() -> None:
    """Consume until stdin ends."""
    listen, topic, group, path, work_seconds = sys.argv[1:]
    notes = Notes(path)
    configuration = ClientConfiguration(listen, Credentials())
    listener = Listener(notes, float(work_seconds))
    consumer = Consumer(configuration, group, listener, {topic: FilterExpression()})
    consumer.notes = notes
    consumer.startup()
    print("ready", flush=True)
    sys.stdin.read()
    consumer.shutdown()


if __name__ == "__main__":
    main()
