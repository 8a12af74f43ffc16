"""What a shared log says: the same code in every reader, the leader's own too.

A reader takes the records of the log one after the other, and learns from each who may write, what has been
added to the history, or that the record counts for nothing. Nobody asks anybody else: two readers that have
read as far have come to the same.

    who may write     the holder of the newest EPOCH; what others write behind it is dead
    what is accepted  BYTES of that holder, in order, a flush as a whole: when its last record has been read
    what halts        a record that no right writer can have written behind what has been read: the engine has
                      lost, doubled or changed something, or two histories meet. Nothing is guessed then

    kind    older epoch   ours          ours, other holder   next epoch   beyond it
    EPOCH   dead          dead          dead                 new epoch    HALT: an EPOCH is missing
    BYTES   dead          by position   HALT: missing EPOCH  HALT         HALT
    BEAT    dead          by position   HALT: missing EPOCH  HALT         HALT
    GENESIS, CHECKPOINT and HOLD have no epoch: they are noted (`sharedlog.holdings`); a second GENESIS is
    already had where it names the same beginning (its cluster's id is drawn once), and else halts

    BYTES   begin where the history ends, chain right       gathered; with `last` the flush is accepted
            begin there, chain wrong                        HALT: two histories
            begin behind it                                 HALT: bytes are missing
            end at a position of the history, same chain    already had: the engine doubled a record
            anything else                                   HALT: two histories
    EPOCH   begins behind it                                HALT: bytes are missing
            of a position of the history, same chain        begins; an unfinished flush is dropped
            anything else                                   HALT: the candidate has another history
    BEAT    begins behind it, or behind what was gathered   HALT: bytes are missing
            of the end of the history, same chain           a sign of life, and maybe something in the place
                                                            of what the EPOCH told (`told_anew`)
            of an earlier position in the same epoch, same  already had: the engine doubled a record
            chain
            anything else                                   HALT, but not while a flush is unfinished
            finalizes a version that is not supported       HALT (`sharedlog.versions`)

The positions of the last `POSITIONS_MAX` records are remembered (in a checkpoint `FROZEN_POSITIONS_MAX`): a
record that speaks of an older one was under way for longer than any engine keeps a call.

A record that an engine returns twice at one offset counts once: the second is stepped over where its CRC-32
is the same, and halts the fold where it is another one, or belongs before what was read.

Foreign lines are stepped over and counted. A record of ours that does not match its CRC is asked for again,
and halts the fourth time. Once halted a fold takes nothing more.

Cost: BLAKE2b of every byte, some 5 us a record beside it. Memory: 1 MB of positions, and an
unfinished flush. Weak spot: what an engine loses at its end, and replaces by nothing, no reader can
tell from what was never written; the next BEAT tells, or the record that is read again before leading.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple, NoReturn

from sharedlog import versions
from sharedlog.errors import Halted, LogDamaged, TooOld
from sharedlog.holdings import Holdings
from sharedlog.led import LedRecords
from sharedlog.record import (
    CHAIN_AT_GENESIS,
    NOBODY,
    VERSION,
    Foreign,
    Garbled,
    Kind,
    SharedRecord,
    chained,
    decode,
)

POSITIONS_MAX: Final = 65_536
FROZEN_POSITIONS_MAX: Final = 8_192
FLUSH_BYTES_MAX: Final = 64 * 1024 * 1024
TOLD_ANEW: Final = ("certificate",)
"""What a leader may tell of itself by a BEAT, in the place of what its EPOCH said."""
READS_MAX: Final = 4
"""How often a record is read that does not match its CRC."""


class Outcome(Enum):
    """What became of a record."""

    FOREIGN = "foreign"
    READ_AGAIN = "read again"
    DEAD = "dead"
    ALREADY_HAD = "already had"
    GATHERED = "gathered"
    ACCEPTED = "accepted"
    NEW_EPOCH = "new epoch"
    ALIVE = "alive"
    NOTED = "noted"


_LED: Final = frozenset((Outcome.GATHERED, Outcome.ACCEPTED, Outcome.NEW_EPOCH, Outcome.ALIVE))
"""Outcomes of records that name the chain before or behind them."""


class EpochRelation(Enum):
    """How the right under which a record was written compares with the newest one."""

    OLDER = "older"
    OURS = "ours"
    OTHER_HOLDER = "other holder"
    NEXT = "next"
    BEYOND = "beyond"


class Step(NamedTuple):
    """What became of a record; with ACCEPTED all records of the flush, in order, and the offset of each."""

    outcome: Outcome
    record: SharedRecord | None = None
    flush: tuple[SharedRecord, ...] = ()
    offsets: tuple[int, ...] = ()


class Position(NamedTuple):
    """A position in the history: a CommitLog offset, and the chain there."""

    end: int
    chain: int


class Before(NamedTuple):
    """Where the fold was before the flush accepted last; `next_offset` is of the flush's first record."""

    end: int
    chain: int
    next_offset: int


class Fold:
    """The state of a reader; `take` is the only way for it to change."""

    def __init__(self, cluster: bytes | None = None) -> None:
        self.cluster = cluster
        self.epoch, self.holder = 0, NOBODY
        self.end, self.chain = 0, CHAIN_AT_GENESIS
        """Of what is accepted: the CommitLog offset behind it, and the chain there."""
        self.next_offset = 0
        """The offset in the engine's log of the record that comes next."""
        self.last_read: tuple[int, int] | None = None
        """The offset and the CRC-32 of the record that was taken last."""
        self.last_led: tuple[int, int] | None = None
        """The same of the last one that a leader wrote and that counts: no other history has its bytes."""
        self.led = LedRecords()
        """The newest of those."""
        self.leads: dict[str, Any] = {}
        """What the newest EPOCH says of who leads, and what that one has told anew since."""
        self.halted = ""
        self.finalized = versions.OLDEST
        """The cluster's finalized version."""
        self.holdings = Holdings()
        """Which node holds a copy, up to where."""
        self.foreign_count = self.dead_count = 0
        self.repeated_count = 0
        """The records that the engine had doubled, and that were stepped over."""
        self._positions = Positions()
        self._gathered: list[SharedRecord] = []
        self._gathered_at: list[int] = []
        self._led_from = 0
        """The end of the history when the newest epoch began: its leader names no earlier one."""
        self._before = Before(0, CHAIN_AT_GENESIS, 0)
        self._reads = 0

    @property
    def is_founded(self) -> bool:
        """Whether the fold reaches back to a GENESIS."""
        return self._positions.count > 0

    @property
    def gathered(self) -> Position:
        """The position behind what was read of an unfinished flush; the end if there is none."""
        if not self._gathered:
            return Position(self.end, self.chain)
        return Position(self._gathered[-1].end, self._gathered[-1].chain)

    @property
    def gathered_count(self) -> int:
        """The number of records of an unfinished flush."""
        return len(self._gathered)

    def take(self, offset: int, stored: bytes) -> Step:
        """Take the next record of the log, which lies at `offset` there; raise `Halted`.

        Change nothing where the record is to be read again.
        """
        if self.halted:
            raise Halted(self.halted)
        if offset < self.next_offset:
            return self._again(offset, stored)
        try:
            record = decode(stored, self.cluster)
        except Foreign:
            self._took(offset, stored)
            self.foreign_count += 1
            return Step(Outcome.FOREIGN)
        except Garbled:
            self._reads += 1
            if self._reads >= READS_MAX:
                self._halt(offset, f"{self._reads} times it did not match its CRC", LogDamaged)
            return Step(Outcome.READ_AGAIN)
        self._check(offset, record)
        step = _TAKES[Kind(record.kind)](self, offset, record)
        self._took(offset, stored)
        self.repeated_count += step.outcome is Outcome.ALREADY_HAD
        if step.outcome in _LED and self.last_read is not None:
            self.last_led = self.last_read
            self.led.add(*self.last_led)
        return step

    def freeze(self, *, before_flush: bool = False) -> dict[str, Any]:
        """Return what a checkpoint keeps; a fold from it goes on before an unfinished flush.

        With `before_flush` it goes on before the flush that was accepted last: right after that only.
        """
        next_offset = self._gathered_at[0] if self._gathered else self.next_offset
        at = self._before if before_flush else Before(self.end, self.chain, next_offset)
        return {
            "cluster": (self.cluster or b"").hex(),
            "epoch": self.epoch,
            "holder": self.holder.hex(),
            "end": at.end,
            "led_from": self._led_from,
            "chain": at.chain,
            "next_offset": at.next_offset,
            "positions": self._positions.freeze(at.end),
            "led": self.led.freeze(at.next_offset),
            "holdings": self.holdings.freeze(),
            "leads": self.leads,
            "finalized": self.finalized,
        }

    @classmethod
    def thaw(cls, frozen: dict[str, Any]) -> Fold:
        """Return the fold that a checkpoint keeps; raise `TooOld` where this program does not support it."""
        finalized = int(frozen["finalized"])
        if why := versions.unsupported(finalized):
            raise TooOld(f"The checkpoint at byte {frozen['end']} of the log: {why}.")
        fold = cls(bytes.fromhex(frozen["cluster"]))
        fold.epoch, fold.holder = frozen["epoch"], bytes.fromhex(frozen["holder"])
        fold.end, fold.chain = frozen["end"], frozen["chain"]
        fold.next_offset, fold._led_from = frozen["next_offset"], frozen["led_from"]
        fold._positions, fold.led = (
            Positions.thaw(frozen["positions"]),
            LedRecords.thaw(frozen["led"]),
        )
        fold.holdings = Holdings.thaw(frozen["holdings"])
        fold.leads, fold.finalized = frozen["leads"], finalized
        return fold

    def knows(self, position: Position) -> bool | None:
        """Return whether a position, not beyond the end, is of this history; None if it was forgotten."""
        return self._positions.knows(position)

    def relation(self, record: SharedRecord) -> EpochRelation:
        """Return how the right of a record compares with the newest one."""
        if record.epoch < self.epoch:
            return EpochRelation.OLDER
        if record.epoch == self.epoch:
            return EpochRelation.OURS if record.holder == self.holder else EpochRelation.OTHER_HOLDER
        return EpochRelation.NEXT if record.epoch == self.epoch + 1 else EpochRelation.BEYOND

    # What each kind does. These and `_took` are where state changes.

    def _genesis(self, offset: int, record: SharedRecord) -> Step:
        if self.is_founded:
            if Position(record.start, record.chain) == self._positions.first and record.epoch <= self.epoch:
                return Step(Outcome.ALREADY_HAD, record)
            self._halt(offset, "a second GENESIS: the cluster was made twice")
        self._finalize(offset, record.facts.get("finalized", versions.UNSAID))
        self.cluster, self.epoch = record.cluster, record.epoch
        self.end, self.chain = record.start, record.chain
        self._positions.add(record.start, record.chain)
        return Step(Outcome.NOTED, record)

    def _epoch(self, offset: int, record: SharedRecord) -> Step:
        relation = self.relation(record)
        if relation is EpochRelation.BEYOND:
            missing = f"epoch {record.epoch} follows epoch {self.epoch}: an EPOCH is missing"
            self._halt(offset, missing, LogDamaged)
        if relation is not EpochRelation.NEXT:
            return self._dead(record)
        self._require_bytes(offset, record)
        if record.start > self.end or self._positions.chain_at(record.start) != record.chain:
            self._halt(offset, f"whoever wants to lead epoch {record.epoch} has another history")
        self.epoch, self.holder, self.leads = record.epoch, record.holder, record.facts
        self._led_from = self.end
        self._drop_gathered()
        return Step(Outcome.NEW_EPOCH, record)

    def _bytes(self, offset: int, record: SharedRecord) -> Step:
        if not self._may_write(offset, record):
            return self._dead(record)
        self._require_bytes(offset, record)
        at = self.gathered
        if record.start < at.end or record.end == record.start:
            if record.end > at.end or self._positions.chain_at(record.end) != record.chain:
                self._halt(offset, f"two histories: bytes {record.start} to {record.end} are not the same")
            return Step(Outcome.ALREADY_HAD, record)
        if chained(at.chain, record.start, record.body, record.zeros) != record.chain:
            self._halt(offset, f"two histories: the chain is another one at {record.end}")
        return self._gather(offset, record)

    def _beat(self, offset: int, record: SharedRecord) -> Step:
        if not self._may_write(offset, record):
            return self._dead(record)
        self._require_bytes(offset, record)
        if not self._gathered and Position(record.start, record.chain) != Position(self.end, self.chain):
            is_of_before = self._led_from <= record.start < self.end
            if is_of_before and self._positions.chain_at(record.start) == record.chain:
                return Step(Outcome.ALREADY_HAD, record)
            self._halt(offset, f"the leader is at {record.start}, and the history ends at {self.end}")
        facts = record.facts
        self.leads = told_anew(self.leads, facts)
        if "finalize" in facts:
            self._finalize(offset, max(self.finalized, facts["finalize"]))
        if "forget" in facts:
            self.holdings.forget(facts["forget"])
        return Step(Outcome.ALIVE, record)

    def _note(self, _: int, record: SharedRecord) -> Step:
        self.holdings.told(record.facts)
        return Step(Outcome.NOTED, record)

    def _gather(self, offset: int, record: SharedRecord) -> Step:
        """Add BYTES to the flush; with its last record the flush is accepted."""
        self._gathered.append(record)
        self._gathered_at.append(offset)
        self._positions.add(record.end, record.chain)
        if not record.is_last:
            if sum(len(one.body) for one in self._gathered) > FLUSH_BYTES_MAX:
                self._halt(offset, f"a flush of more than {FLUSH_BYTES_MAX} bytes")
            return Step(Outcome.GATHERED, record)
        flush, offsets = tuple(self._gathered), tuple(self._gathered_at)
        self._gathered, self._gathered_at = [], []
        assert flush[0].start == self.end, "a flush is accepted that does not begin where the history ends"
        self._before = Before(self.end, self.chain, offsets[0])
        self.end, self.chain = record.end, record.chain
        return Step(Outcome.ACCEPTED, record, flush, offsets)

    def _finalize(self, offset: int, version: int) -> None:
        """Let the cluster have a version; halt if this program does not support it."""
        if why := versions.unsupported(version):
            self._halt(offset, why, TooOld)
        self.finalized = version

    def _drop_gathered(self) -> None:
        self._gathered, self._gathered_at = [], []
        self._positions.cut(self.end)

    def _again(self, offset: int, stored: bytes) -> Step:
        """Step over a second copy of the record that was taken last; halt at anything else."""
        crc = zlib.crc32(stored)
        if self.last_read is None or offset != self.last_read[0]:
            why = f"the engine returned it after record {self.next_offset - 1}: its answer is out of order"
            self._halt(offset, why, LogDamaged)
        if crc != self.last_read[1]:
            both = f"CRC-32 {self.last_read[1]:08x} and {crc:08x}"
            self._halt(offset, f"the engine has two that differ, {both}: it has doubled one", LogDamaged)
        self.repeated_count += 1
        return Step(Outcome.ALREADY_HAD)

    def _dead(self, record: SharedRecord) -> Step:
        self.dead_count += 1
        return Step(Outcome.DEAD, record)

    def _took(self, offset: int, stored: bytes) -> None:
        self.next_offset = offset + 1
        self.last_read = (offset, zlib.crc32(stored))
        self._reads = 0
        assert self.end <= self.gathered.end, "an unfinished flush begins behind its end"

    # What is asked before.

    def _check(self, offset: int, record: SharedRecord) -> None:
        """Halt at a record that this version cannot read, or that comes before the GENESIS."""
        if record.version > VERSION or record.kind not in Kind.__members__.values():
            what = f"kind {record.kind}, version {record.version}"
            self._halt(offset, f"{what}: a newer Tidewheel wrote it, so install that one here", TooOld)
        if not self.is_founded and record.kind != Kind.GENESIS:
            self._halt(offset, "the log does not begin with a GENESIS: its first records are gone")

    def _may_write(self, offset: int, record: SharedRecord) -> bool:
        """Return whether a record is of the leader; halt if it is of one of whom no EPOCH tells."""
        relation = self.relation(record)
        if relation not in (EpochRelation.OLDER, EpochRelation.OURS):
            missing = f"it is of epoch {record.epoch} ({relation.value}): an EPOCH is missing"
            self._halt(offset, missing, LogDamaged)
        return relation is EpochRelation.OURS

    def _require_bytes(self, offset: int, record: SharedRecord) -> None:
        """Halt at a record whose writer had more of the history than was read."""
        if record.start > (end := self.gathered.end):
            self._halt(offset, f"bytes {end} to {record.start} of the history are missing", LogDamaged)

    def _halt(self, offset: int, why: str, kind: type[Halted] = Halted) -> NoReturn:
        self.halted = f"Record {offset} of the shared log: {why}."
        raise LogDamaged(self.halted, offset) if kind is LogDamaged else kind(self.halted)


_TAKES: Final[dict[Kind, Callable[[Fold, int, SharedRecord], Step]]] = {
    Kind.GENESIS: Fold._genesis,
    Kind.EPOCH: Fold._epoch,
    Kind.BYTES: Fold._bytes,
    Kind.BEAT: Fold._beat,
    Kind.CHECKPOINT: Fold._note,
    Kind.HOLD: Fold._note,
}


def told_anew(leads: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """Return what is known of who leads once a BEAT with these facts is read."""
    anew = {name: facts[name] for name in TOLD_ANEW if name in facts}
    return leads | anew if anew else leads


class Positions:
    """The chain at the newest positions of a history, by their CommitLog offsets; 16 bytes each."""

    def __init__(self) -> None:
        self._ends, self._chains = array("Q"), array("Q")
        self.first: Position | None = None
        """The position at which the history begins, which is never forgotten."""

    @property
    def count(self) -> int:
        """The number of positions that are remembered."""
        return len(self._ends)

    def add(self, end: int, chain: int) -> None:
        """Remember the chain behind the newest bytes; forget the oldest half where there are too many."""
        assert not self._ends or end > self._ends[-1], "positions come in order"
        if self.first is None:
            self.first = Position(end, chain)
        self._ends.append(end)
        self._chains.append(chain)
        if len(self._ends) > POSITIONS_MAX:
            del self._ends[: POSITIONS_MAX // 2], self._chains[: POSITIONS_MAX // 2]

    def chain_at(self, end: int) -> int | None:
        """Return the chain at a position; None if no record ended there, or too long ago."""
        at = bisect_left(self._ends, end)
        return self._chains[at] if at < len(self._ends) and self._ends[at] == end else None

    def knows(self, position: Position) -> bool | None:
        """Return whether a position is one of these; None of one that is older than the oldest remembered."""
        if position == self.first:
            return True
        if not self._ends or position.end < self._ends[0]:
            return None
        return self.chain_at(position.end) == position.chain

    def cut(self, end: int) -> None:
        """Forget the positions behind `end`."""
        while self._ends and self._ends[-1] > end:
            self._ends.pop()
            self._chains.pop()

    def freeze(self, end: int) -> list[list[int]]:
        """Return what a checkpoint keeps: the first position, then (end, chain) of each up to `end`."""
        first = [list(self.first)] if self.first is not None else []
        newest = slice(-FROZEN_POSITIONS_MAX, None)
        both = zip(self._ends[newest], self._chains[newest], strict=True)
        return first + [[one, at] for one, at in both if one <= end]

    @classmethod
    def thaw(cls, frozen: list[list[int]]) -> Positions:
        """Return the positions that a checkpoint keeps."""
        positions = cls()
        for end, chain in frozen[1:]:
            positions.add(end, chain)
        if frozen:
            positions.first = Position(*frozen[0])
        return positions
