"""Separation of a raw log into the accepted history and dead records.

    writer          the holder of the newest EPOCH; later records of other writers are dead
    accepted        BYTES of that holder, each adjacent to the previous one and with the right chain; a flush
                    is accepted as a whole, with its last record. A new EPOCH drops an unfinished flush
    broken          records that no legitimate writer can have written: a missing EPOCH, missing bytes,
                    another chain, a wrong CRC. Later records are not folded, and the log is verified up to
                    there

An offset may have several records; equal ones count once, different ones break the log. The history of a
cluster that was created from a node's store after the loss of the engine is that of the old log up to the
start of the new one, followed by the new one's (`continued`).

    EPOCH   of the next epoch, with a known position        accepted
            of the current epoch or an older one            dead
            otherwise                                       broken
    BYTES   of an older epoch                               dead
    BEAT    of a newer epoch, or another holder's           broken
            of the current holder                           BYTES by start and chain, BEAT at the end

A log without its GENESIS is folded from a checkpoint announced by a machine; the history before that
checkpoint is not visible. Cost: one BLAKE2b over all bytes, and all of them in memory.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from raw_log import BEAT, BYTES, EPOCH, GENESIS, HOLD, VERSION, RawLog, Shared, Stored, linked, parse


class Piece(NamedTuple):
    """Bytes of the CommitLog from `start` on, with the offset and the time of their record in the engine."""

    start: int
    body: bytes
    zeros: int
    offset: int
    taken_ms: int


class Place(NamedTuple):
    """A checkpoint of a machine, from which folding can start."""

    node: str
    next_offset: int
    epoch: int
    holder: bytes
    end: int
    chain: int


@dataclass
class Folded:
    """Result of folding a log."""

    accepted: list[Piece] = field(default_factory=list)
    dead: list[Piece] = field(default_factory=list)
    epoch_count: int = 0
    leaders: list[tuple[int, str]] = field(default_factory=list)
    """(first record in the engine, node) of each leadership."""
    foreign_count: int = 0
    begins_at: int = 0
    """The offset in the CommitLog at which the visible history begins."""
    is_whole: bool = True
    """Whether the log begins with its GENESIS."""
    broken: str = ""

    def leader_at(self, offset: int) -> str:
        """Return the node that led when a record was written; empty if unknown."""
        at = bisect_left(self.leaders, (offset,))
        return self.leaders[at - 1][1] if at else ""


def fold(log: RawLog, checkpoints: Iterable[Place]) -> Folded:
    """Fold a whole log, or a trimmed log from the oldest usable checkpoint on."""
    folding = _Folding()
    if log.first_offset > 0:
        usable = [one for one in checkpoints if one.next_offset >= log.first_offset]
        if not usable:
            folding.folded.is_whole = False
            folding.folded.broken = f"the log begins at record {log.first_offset}, without any checkpoint"
            return folding.folded
        folding.begin(min(usable, key=lambda one: one.next_offset))
    before: Stored | None = None
    for stored in log.records:
        if stored.offset >= folding.next_offset and not folding.folded.broken:
            folding.take_once(before, stored)
            before = stored
    folding.drop()
    return folding.folded


def continued(old: Folded, new: Folded) -> Folded:
    """Return the history of a cluster whose GENESIS continues the history of an old one."""
    kept = [one for one in old.accepted if one.start + len(one.body) + one.zeros <= new.begins_at]
    return Folded(
        accepted=kept + new.accepted,
        dead=old.dead + new.dead,
        epoch_count=old.epoch_count + new.epoch_count,
        leaders=new.leaders,
        foreign_count=old.foreign_count + new.foreign_count,
        begins_at=old.begins_at,
        is_whole=old.is_whole,
        broken=old.broken or new.broken,
    )


def node_of(body: bytes) -> str:
    """Return the name of the node in the body of an EPOCH; empty if it has none."""
    try:
        return str(json.loads(body)["node"])
    except (ValueError, KeyError, TypeError):
        return ""


class _Folding:
    """The state of a reader."""

    def __init__(self) -> None:
        self.folded = Folded()
        self.next_offset = 0
        self._cluster: bytes | None = None
        self._epoch, self._holder = 0, bytes(16)
        self._end, self._chain = 0, 0
        self._chains: dict[int, int] = {}
        """The chain at each known position of the history, by offset."""
        self._gathered: list[Piece] = []
        self._gathered_end = 0

    def begin(self, place: Place) -> None:
        """Start from a checkpoint."""
        self.next_offset, self._epoch, self._holder = place.next_offset, place.epoch, place.holder
        self._end, self._chain = place.end, place.chain
        self._gathered_end = self.folded.begins_at = place.end
        self._chains[place.end] = place.chain
        self.folded.is_whole = False

    def take_once(self, before: Stored | None, stored: Stored) -> None:
        """Apply a record unless it repeats the previous one; a different one at that offset is an error."""
        if before is None or before.offset != stored.offset:
            self.take(stored)
        elif before.content != stored.content:
            self.folded.broken = f"record {stored.offset} lies there twice, and once as another one"

    def take(self, stored: Stored) -> None:
        """Apply the next record of the log."""
        record = parse(stored.content)
        if record is None or self._cluster not in (None, record.cluster):
            self.folded.foreign_count += 1
            return
        wrong = self._unreadable(record) or self._told(stored, record)
        if wrong:
            self.folded.broken = f"record {stored.offset}: {wrong}"

    def drop(self) -> None:
        """Move the records of an unfinished flush to the dead ones."""
        self.folded.dead += self._gathered
        for piece in self._gathered:
            self._chains.pop(piece.start + len(piece.body) + piece.zeros, None)
        self._gathered, self._gathered_end = [], self._end

    def _unreadable(self, record: Shared) -> str:
        if not record.is_sound:
            return "its CRC does not match"
        if record.version > VERSION or not GENESIS <= record.kind <= HOLD:
            return f"kind {record.kind} of version {record.version} is not known here"
        if self._cluster is None and self.folded.is_whole and record.kind != GENESIS:
            return "the log does not begin with a GENESIS"
        return ""

    def _told(self, stored: Stored, record: Shared) -> str:
        """Apply a readable record; return its error, or an empty string."""
        if record.kind == GENESIS:
            return self._genesis(record)
        self._cluster = record.cluster
        if record.kind == EPOCH:
            return self._new_epoch(stored, record)
        if record.kind in (BYTES, BEAT):
            return self._written(stored, record)
        return ""

    def _genesis(self, record: Shared) -> str:
        if self._cluster is not None:
            is_same = self._epoch == record.epoch and (record.start, record.chain) == (self._end, self._chain)
            return "" if is_same and not self.folded.accepted else "a second GENESIS"
        self._cluster, self._epoch = record.cluster, record.epoch
        self._end = self._gathered_end = self.folded.begins_at = record.start
        self._chain = self._chains[record.start] = record.chain
        return ""

    def _new_epoch(self, stored: Stored, record: Shared) -> str:
        if record.epoch <= self._epoch:
            return ""
        if record.epoch > self._epoch + 1:
            return f"epoch {record.epoch} follows epoch {self._epoch}: an EPOCH is missing"
        is_out_of_sight = record.start < self.folded.begins_at
        if not is_out_of_sight and (
            record.start > self._end or self._chains.get(record.start) != record.chain
        ):
            return f"who wants to lead epoch {record.epoch} has another history at {record.start}"
        self.drop()
        self._epoch, self._holder = record.epoch, record.holder
        self.folded.epoch_count += 1
        self.folded.leaders.append((stored.offset, node_of(record.body)))
        return ""

    def _written(self, stored: Stored, record: Shared) -> str:
        """Apply BYTES or a BEAT, which only the leader may write; return its error."""
        piece = Piece(record.start, record.body, record.zeros, stored.offset, stored.taken_ms)
        if record.epoch < self._epoch:
            if record.kind == BYTES:
                self.folded.dead.append(piece)
            return ""
        if (record.epoch, record.holder) != (self._epoch, self._holder):
            return f"a writer of epoch {record.epoch} of whom no EPOCH tells"
        if record.kind == BEAT:
            is_there = (record.start, record.chain) == (self._end, self._chain)
            return "" if is_there or self._gathered else f"a BEAT at {record.start}, and not at {self._end}"
        return self._bytes(piece, record)

    def _bytes(self, piece: Piece, record: Shared) -> str:
        if record.start > self._gathered_end:
            return f"bytes {self._gathered_end} to {record.start} are missing"
        if record.start < self._gathered_end:
            if record.end <= self.folded.begins_at or self._chains.get(record.end) == record.chain:
                return ""
            return f"bytes {record.start} to {record.end} are others than before"
        before = self._chains[record.start]
        if linked(before, record) != record.chain:
            return f"the chain is another one at {record.end}"
        self._gathered.append(piece)
        self._gathered_end = record.end
        self._chains[record.end] = record.chain
        if record.is_last:
            self.folded.accepted += self._gathered
            self._gathered = []
            self._end, self._chain = record.end, record.chain
        return ""
