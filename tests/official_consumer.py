"""The official Python push consumer in a process of its own, which knows none of our stubs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_PROGRAM: Final = """
import sys
from rocketmq import ClientConfiguration, ConsumeResult, Credentials
from rocketmq import FilterExpression, MessageListener, PushConsumer

class Listening(MessageListener):
    def consume(self, message):
        return ConsumeResult.SUCCESS

endpoint, group, topic = sys.argv[1:]
settings = ClientConfiguration(endpoint, Credentials())
consumer = PushConsumer(settings, group, Listening(), {topic: FilterExpression()})
consumer.startup()
print("up", flush=True)
sys.stdin.read()
consumer.shutdown()
"""


@contextmanager
def push_consumer(endpoint: str, group: str, topic: str, home: Path) -> Iterator[None]:
    """Run one that consumes whatever comes; its logs go below `home`."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, endpoint, group, topic],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"HOME": str(home)},
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"up\n"
        yield
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(60)
