"""Run the shared log simulation (`shared_world`) with CommitLog records sent by clients as operations.

The model does not include a broker. An operation is a message for queue 0 of a topic, and the send call
succeeds when the leader may acknowledge the operation. For each node, a separate consumer group receives the
messages that the node has accepted, so that a node with a different history is visible in the client history.
The checkpoints of each node are also recorded in the history.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from commitlog.records import properties
from commitlog.records.message import Message
from commitlog.records.record import Record, decode, encode
from sharedlog import record
from sharedlog.errors import Halted
from tests.history_file import HistoryFile, content_hash, write_log
from tests.simulation import shared_world
from tests.simulation.shared_world import Node, Rules, World

TOPIC: Final = "t"


class MessageOperation:
    """Replaces `shared_world.OPERATION` and encodes operations as CommitLog records of equal size."""

    def __init__(self) -> None:
        self.next_place = self.size = 0
        """The queue offset of the next encoded message."""
        self.size = len(self.pack(0, 0))

    def pack(self, _: int, number: int) -> bytes:
        """Return the record for a message at the next queue offset."""
        place, name = self.next_place, f"M{number:08d}"
        self.next_place += 1
        stored = properties.encode_message(Message(topic=TOPIC, body=b"", message_id=name))
        where = {"queue_offset": place, "physical_offset": place * self.size}
        return encode(Record(TOPIC, name.encode(), stored, **where))

    def iter_unpack(self, body: bytes) -> Iterator[tuple[int, int]]:
        """Yield (size, number) for each CommitLog record in a body."""
        for at in range(0, len(body), self.size):
            yield self.size, int(decode(body, at).body[1:])


OPERATION: Final = MessageOperation()


class WatchedNode(Node):
    """A node whose producers and consumers are recorded."""

    world: WatchedWorld

    def start(self) -> None:
        """Start the node. Its consumer group receives all messages again."""
        super().start()
        self.shown = 0

    shown = 0

    def write(self, operations: list[int]) -> list[int]:
        """Append a flush of messages, and record the acknowledgments that the leader may send."""
        assert self.leader is not None
        history, first = self.world.history, self.leader.position.end // OPERATION.size
        OPERATION.next_place = first
        calls = [self.world.sends(self.name, number) for number in operations]
        done = super().write(operations)
        for place, (number, call) in enumerate(zip(operations, calls, strict=True), first):
            if number in done:
                told = {"offset": place * OPERATION.size, "queue_offset": place}
                history.end(call, "ok", self.world.now, **told)
        return done

    def show(self) -> None:
        """Record that the node's consumer group receives the messages that the node has accepted."""
        history, group = self.world.history, f"of node {self.world.nodes.index(self)}"
        fresh = list(enumerate(self.reader.operations))[self.shown :]
        if not fresh or not self.is_up:
            return
        call = history.invoke(group, self.world.now, "receive", topic=TOPIC, group=group)
        for place, number in fresh:
            history.saw(call, self.world.now, f"M{number:08d}", 0, place, 1)
        history.end(call, "ok", self.world.now)
        self.shown = len(self.reader.operations)


class WatchedWorld(World):
    """A simulated cluster that records the history of its clients."""

    def __init__(self, seed: int, rules: Rules | None = None) -> None:
        super().__init__(seed, rules)
        self.history, self.now, self.stopped = HistoryFile(), 0, ""
        self.nodes = [WatchedNode(node.name, self) for node in self.nodes]
        for node in self.nodes:
            node.world = self  # type: ignore[attr-defined]
        self._noted: dict[int, list[str]] = {}

    def sends(self, name: str, number: int) -> int:
        """Record that a client sends an operation, and return the number of the call."""
        body = f"M{number:08d}".encode()
        fields = {"kind": "plain", "id": body.decode(), "topic": TOPIC, "hash": content_hash(body)}
        return self.history.invoke(name, self.now, "send", **fields)

    def step(self) -> None:
        """Perform an action of one node, and then record the messages and checkpoints of all nodes."""
        self.now += 1
        super().step()
        for number, node in enumerate(self.nodes):
            node.show()  # type: ignore[attr-defined]
            self._note(number, node)

    def _note(self, number: int, node: Node) -> None:
        """Record the older of a node's two checkpoints if it has changed."""
        held = node.checkpoints if len(node.checkpoints) == 2 else []
        if held == self._noted.get(number, []):
            return
        self._noted[number] = list(held)
        if not held:
            self.history.note("checkpoint", node=str(number), lost=True)
            return
        fold = json.loads(held[0])["fold"]
        place = {"next_offset": fold["next_offset"], "epoch": fold["epoch"], "holder": fold["holder"]}
        place |= {"end": fold["end"], "chain": f"{fold['chain']:x}"}
        self.history.note("checkpoint", node=str(number), **place)

    def check(self) -> None:
        """Do nothing, because the checker verifies the history."""

    def dump(self, folder: Path) -> tuple[Path, Path]:
        """Write the history and the raw log to files, and return the file paths."""
        history, log = folder / "history.jsonl", folder / "log.bin"
        self.history.write(history)
        first = self.engine.first_offset
        write_log(log, first, [(at, 0, one) for at, one in enumerate(self.engine.records)][first:])
        return history, log


def play(seed: int, rules: Rules | None = None) -> WatchedWorld:
    """Run a schedule to its end, or until a check fails. In this case, `stopped` contains the error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_world, "OPERATION", OPERATION)
        patch.setattr(record, "BODY_BYTES_MAX", 2 * OPERATION.size)
        world = WatchedWorld(seed, rules)
        try:
            world.run()
        except (AssertionError, Halted) as error:
            world.stopped = f"{type(error).__name__}: {error}"
    return world
