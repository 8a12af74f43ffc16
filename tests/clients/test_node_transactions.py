"""npm's official client, in Node: transactions end once, in whatever order it ends them.

Played where `npm ci` has installed it, see `libraries`; else skipped, with the reason.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.libraries import LIBRARIES, require
from tests.clients.transaction_orders import KINDS, Stage

NODE = LIBRARIES["node"]


class NodeProducer:
    """A producer in a Node process of its own."""

    def __init__(self, listen: str, home: Path) -> None:
        environment = {**os.environ, "HOME": str(home)}
        self._process = subprocess.Popen(
            ["node", "ends.js", listen],
            cwd=NODE.folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._told() == "started"

    def send(self, topic: str, name: str) -> None:
        """Send a half."""
        told = self._do(f"send {topic} {name}")
        assert len(told) == 24, told

    def end(self, name: str, how: str) -> str:
        """End it."""
        return self._do(f"end {name} {how}")

    def answer(self, name: str, how: str) -> None:
        """Say what checks are told."""
        self._do(f"answer {name} {how}")

    def stop(self) -> None:
        """End the process as its user would."""
        assert self._process.stdin is not None
        self._process.stdin.write("stop\n")
        self._process.stdin.close()
        assert self._process.wait(30) == 0

    def _do(self, command: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._told()

    def _told(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the Node process has ended"
        answer = json.loads(line)
        return str(answer.get("told", answer.get("refused")))


@pytest.fixture
def node_producer(broker: Any, tmp_path: Path) -> Iterator[NodeProducer]:
    require(NODE)
    producer = NodeProducer(broker.listen, tmp_path)
    yield producer
    producer.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_end_wins_in_every_order(
    kind: str, node_producer: NodeProducer, broker: Any, topic: str, wait_until: Any
) -> None:
    Stage(broker, node_producer, kind, topic, wait_until).play()
