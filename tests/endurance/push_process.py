"""A push consumer in a process of its own: says when its listener begins, sleeps, says when it ends.

    python -m tests.endurance.push_process HOST:PORT TOPIC GROUP SECONDS

Lines out: `ready`, then `began <message> <attempt> <wall ms>` and `ended <message>`.
"""

from __future__ import annotations

import sys
import time
from threading import Lock
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    MessageListener,
    PushConsumer,
)

printing = Lock()


class Sleeper(MessageListener):  # type: ignore[misc] # the official client carries no types
    """Takes its time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def consume(self, message: Any) -> ConsumeResult:
        name = message.body.decode()
        say("began", name, str(message.delivery_attempt), str(time.time_ns() // 1_000_000))
        time.sleep(self._seconds)
        say("ended", name)
        return ConsumeResult.SUCCESS


def say(*words: str) -> None:
    with printing:
        print(*words, flush=True)


def main() -> None:
    """Consume until stdin ends."""
    listen, topic, group, seconds = sys.argv[1:]
    configuration = ClientConfiguration(listen, Credentials())
    listener = Sleeper(float(seconds))
    consumer = PushConsumer(configuration, group, listener, {topic: FilterExpression()})
    consumer.startup()
    say("ready")
    sys.stdin.read()
    consumer.shutdown()


if __name__ == "__main__":
    main()
