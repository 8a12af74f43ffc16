"""The history of clients by one observer: calls, answers and received messages, in order.

One JSON object per line; `time_ms` is the observer's clock, ms since 1970.

    type        fields
    invoke      call (a unique number), process, time_ms, verb, and those of the verb:
                  send      kind (plain, fifo, delayed, half), id, topic, hash, line (message group), due_ms;
                            asks: whether the producer of a half answers check-backs
                  end       id, topic, resolution (commit, rollback)
                  recall    id, topic
                  receive   topic, group
                  ack       id, topic, group, queue, offset (in the queue)
    ok          call, time_ms; for a send the fields of its receipt: offset (CommitLog), queue_offset
    fail        call, time_ms: the call had no effect, or was refused; for an end optionally ended: the
                outcome that caused the refusal
    unknown     call, time_ms; a call without an end is unknown too
    seen        call (the receive), time_ms, id, queue, offset (in the queue), attempt
    checkpoint  node, next_offset (in the engine), epoch, holder, end, chain: a synced checkpoint of a
                machine; lost: true if the machine has lost its checkpoint
    clock       node, offset_ms, from_ms, until_ms: a period in which the node's clock was off
    asked       id, time_ms: the producer of a half got a check-back
    came        id, topic, group, time_ms: a push consumer got a message; its receive and acknowledgement are
                unknown, so the acknowledgement may have been tried from this line on
    calm        is_calm, time_ms: from here on there is no fault and a node leads, or not (`progress.py`)
    settled     group, topics: the group has received all messages that are due to it

The order of the lines is the order of events; times are only used for due times. `hash` is the first 16 hex
digits of the body's SHA-256.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from folding import Place
from progress import Waiting
from raw_log import BadInput

OK, FAIL, UNKNOWN = "ok", "fail", "unknown"
NEVER = 1 << 62
_NEEDS = {
    "send": ("kind", "id", "topic", "hash"),
    "end": ("id", "topic", "resolution"),
    "recall": ("id", "topic"),
    "receive": ("topic", "group"),
    "ack": ("id", "topic", "group", "queue", "offset"),
}


@dataclass
class Call:
    """A call: the lines of its start and end, and its outcome."""

    number: int
    verb: str
    began: int
    fields: dict[str, Any]
    outcome: str = UNKNOWN
    ended: int = NEVER
    told: dict[str, Any] = field(default_factory=dict)

    @property
    def message_id(self) -> str:
        """The message id of the call; empty for a receive."""
        return str(self.fields.get("id", ""))

    @property
    def topic(self) -> str:
        """The topic of the call."""
        return str(self.fields["topic"])

    @property
    def group(self) -> str:
        """The consumer group of the call."""
        return str(self.fields["group"])

    def __str__(self) -> str:
        return f"{self.verb} of {self.message_id or self.topic} (line {self.began})"


@dataclass(frozen=True)
class Seen:
    """A message received by a consumer."""

    line: int
    call: Call
    time_ms: int
    message_id: str
    queue: int
    offset: int
    attempt: int

    @property
    def place(self) -> tuple[str, int, int]:
        """Topic, queue and queue offset of the message."""
        return self.call.topic, self.queue, self.offset

    def __str__(self) -> str:
        return f"{self.message_id} at {'/'.join(map(str, self.place))} (line {self.line})"


@dataclass(frozen=True)
class Came:
    """A message received by a push consumer."""

    line: int
    group: str
    topic: str
    message_id: str


@dataclass(frozen=True)
class Off:
    """A period in which the clock of a node was off, in ms of the observer's clock."""

    node: str
    offset_ms: int
    from_ms: int
    until_ms: int


@dataclass
class History:
    """The calls of clients and their received messages."""

    calls: dict[int, Call] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    came: list[Came] = field(default_factory=list)
    checkpoints: list[Place] = field(default_factory=list)
    """All checkpoints that machines have ever held."""
    copied_offset: int = 0
    """The record in the engine up to which two machines have held a checkpoint at one time."""
    settled: list[tuple[str, list[str]]] = field(default_factory=list)
    clocks: list[Off] = field(default_factory=list)
    waiting: Waiting = field(default_factory=Waiting)
    """Waiting times without a fault."""

    def of(self, verb: str, outcome: str = "") -> list[Call]:
        """Return the calls of a verb, optionally only those with an outcome."""
        return [one for one in self.calls.values() if one.verb == verb and outcome in ("", one.outcome)]


def load(path: Path) -> History:
    """Return the history in a file; raise `BadInput`."""
    reading = _Reading()
    for number, line in _lines(path):
        try:
            said = json.loads(line)
            reading.take(number, said)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadInput(f"{path}, line {number}: {type(error).__name__} {error}.") from error
    return reading.history


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}.") from error
    yield from ((number, line) for number, line in enumerate(text.splitlines(), 1) if line)


class _Reading:
    """Builder of a history from its lines."""

    def __init__(self) -> None:
        self.history = History()
        self._held: dict[str, int] = {}

    def take(self, line: int, said: dict[str, Any]) -> None:
        """Process a line; raise ValueError, KeyError or TypeError if it is malformed."""
        kind = said["type"]
        self.history.waiting.take(said)
        if kind == "invoke":
            self._invoke(line, said)
        elif kind in (OK, FAIL, UNKNOWN):
            call = self.history.calls[said["call"]]
            if call.ended != NEVER:
                raise ValueError(f"call {call.number} has ended before")
            call.outcome, call.ended, call.told = kind, line, said
        elif kind == "seen":
            self._seen(line, said)
        elif kind == "checkpoint":
            self._checkpoint(said)
        elif kind == "clock":
            numbers = (int(said[name]) for name in ("offset_ms", "from_ms", "until_ms"))
            self.history.clocks.append(Off(said["node"], *numbers))
        elif kind == "settled":
            self.history.settled.append((said["group"], said["topics"]))
        elif kind == "came":
            self.history.came.append(Came(line, said["group"], said["topic"], said["id"]))
        elif kind not in ("asked", "calm"):
            raise ValueError(f"{kind!r} is no type of line")

    def _invoke(self, line: int, said: dict[str, Any]) -> None:
        call = Call(said["call"], said["verb"], line, said)
        if call.number in self.history.calls:
            raise ValueError(f"call {call.number} has begun before")
        for name in _NEEDS[call.verb]:
            if name not in said:
                raise ValueError(f"a {call.verb} without {name}")
        self.history.calls[call.number] = call

    def _seen(self, line: int, said: dict[str, Any]) -> None:
        call = self.history.calls[said["call"]]
        place = int(said["queue"]), int(said["offset"])
        seen = Seen(line, call, int(said["time_ms"]), said["id"], *place, int(said.get("attempt", 0)))
        self.history.seen.append(seen)

    def _checkpoint(self, said: dict[str, Any]) -> None:
        node = said["node"]
        if said.get("lost"):
            self._held.pop(node, None)
            return
        right = int(said.get("epoch", 0)), bytes.fromhex(said.get("holder", ""))
        where = int(said.get("end", 0)), int(said.get("chain", "0"), 16)
        place = Place(node, int(said["next_offset"]), *right, *where)
        self._held[node] = place.next_offset
        self.history.checkpoints.append(place)
        by_two = sorted([0, *self._held.values()])[-2]
        self.history.copied_offset = max(self.history.copied_offset, by_two)
