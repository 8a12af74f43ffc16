"""The state machine of a shared log reader. Every node, including the leader, runs it.

A reader applies the records of the log in order. A record changes which node may write, extends the history,
or is ignored. All readers that have applied the same records are in the same state, so they need not
communicate.

    right to write    Only the holder of the newest EPOCH may write. Later records of other writers are
                      ignored.
    acceptance        The BYTES of this holder are accepted in order. A flush is accepted when its last record
                      has been read.
    halt              A reader halts at a record that no legitimate writer can have appended after the records
                      read so far. Such a record shows that the engine has lost, duplicated, or changed a
                      record, or has merged two histories. The reader does not try to determine which record
                      is correct.

    kind    older epoch   ours          ours, other holder   next epoch   beyond it
    EPOCH   dead          dead          dead                 new epoch    HALT: an EPOCH is missing
    BYTES   dead          by position   HALT: missing EPOCH  HALT         HALT
    BEAT    dead          by position   HALT: missing EPOCH  HALT         HALT
    GENESIS, CHECKPOINT and HOLD have no epoch, and have the outcome "noted" (`sharedlog.holdings`). A second
    GENESIS has the outcome "already had" if it has the same beginning, and otherwise halts the reader.

    BYTES   begin where the history ends, chain right       gathered; with `last` the flush is accepted
            begin there, chain wrong                        HALT: two histories
            begin after it                                  HALT: bytes are missing
            end at a position of the history, same chain    already had: the engine duplicated a record
            anything else                                   HALT: two histories
    EPOCH   begins after the end                            HALT: bytes are missing
            at a position of the history, same chain        new epoch; an unfinished flush is dropped
            anything else                                   HALT: the candidate has another history
    BEAT    begins after the end, or the gathered bytes     HALT: bytes are missing
            at the end of the history, same chain           alive: the leader is active; may replace
                                                            facts of the EPOCH (`update_leader_facts`)
            at an earlier position in the same epoch, same  already had: the engine duplicated a record
            chain
            anything else                                   HALT, but not while a flush is unfinished
            finalizes a version that is not supported       HALT (`sharedlog.versions`)

A reader keeps up to `POSITIONS_MAX` positions in memory and the newest `FROZEN_POSITIONS_MAX` in each
checkpoint. Older positions are not needed, because no engine retries an append after such a long time.

An engine may return the same record twice in a row. If the offset and CRC-32 are equal, the second record is
skipped. A reader halts if the CRC-32s differ, or if an offset is lower than the previous one.

Records from other clusters are skipped and counted. A record from this cluster that does not match its CRC is
read again, and the fourth mismatch halts the reader. A halted reader accepts no more records.

Cost: a BLAKE2b hash of all bytes, and about 5 us of CPU time per record. The positions use up to 1 MB of
memory, and an unfinished flush stays in memory. Limitation: at the end of the log, a reader cannot tell lost
records from records that were never written. The next BEAT reveals such a loss. A candidate also reads the
last record again before it leads.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple, NoReturn

from sharedlog import versions
from sharedlog.errors import Halted, LogDamaged, VersionUnsupported
from sharedlog.holdings import Holdings
from sharedlog.leader_records import LeaderRecords
from sharedlog.record import (
    CHAIN_AT_GENESIS,
    NOBODY,
    VERSION,
    CorruptRecord,
    ForeignRecord,
    Kind,
    SharedRecord,
    decode,
    extend_chain,
)

POSITIONS_MAX: Final = 65_536
FROZEN_POSITIONS_MAX: Final = 8_192
FLUSH_BYTES_MAX: Final = 64 * 1024 * 1024
UPDATED_FACTS: Final = ("certificate",)
"""Fields of an EPOCH record that a BEAT record can update."""
READS_MAX: Final = 4
"""Number of consecutive CRC mismatches of a record that halt a reader."""


class Outcome(Enum):
    """How a record affects a reader's state."""

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
"""Outcomes of leader records whose chain matches the history."""


class EpochRelation(Enum):
    """How a record's epoch and holder compare with the newest epoch and holder."""

    OLDER = "older"
    OURS = "ours"
    OTHER_HOLDER = "other holder"
    NEXT = "next"
    BEYOND = "beyond"


class Step(NamedTuple):
    """Result of applying a record.

    For ACCEPTED, `flush` and `offsets` contain all records of the flush.
    """

    outcome: Outcome
    record: SharedRecord | None = None
    flush: tuple[SharedRecord, ...] = ()
    offsets: tuple[int, ...] = ()


class Position(NamedTuple):
    """A position in the history: a CommitLog offset and the chain at that offset."""

    end: int
    chain: int


class FlushStart(NamedTuple):
    """A reader's state before the last accepted flush.

    `next_offset` is the offset of the first record in the flush.
    """

    end: int
    chain: int
    next_offset: int


class Fold:
    """State of a reader. Only `apply_record` changes it."""

    def __init__(self, cluster: bytes | None = None) -> None:
        self.cluster = cluster
        self.epoch, self.holder = 0, NOBODY
        self.end, self.chain = 0, CHAIN_AT_GENESIS
        """End of the accepted history as a CommitLog offset, and the chain there."""
        self.next_offset = 0
        """Offset of the next record to apply."""
        self.last_read: tuple[int, int] | None = None
        """Offset and CRC-32 of the last applied record."""
        self.last_led: tuple[int, int] | None = None
        """Offset and CRC-32 of the last valid leader record. No other history can contain it."""
        self.led = LeaderRecords()
        """Newest leader records."""
        self.leads: dict[str, Any] = {}
        """Facts in the newest EPOCH record, updated by the BEAT records of its leader."""
        self.halted = ""
        self.finalized = versions.OLDEST
        """Finalized version of the cluster."""
        self.holdings = Holdings()
        """Copies of the store that the nodes have announced."""
        self.foreign_count = self.dead_count = 0
        self.repeated_count = 0
        """Number of records skipped because the engine returned them twice."""
        self._positions = Positions()
        self._gathered: list[SharedRecord] = []
        self._gathered_at: list[int] = []
        self._leader_records_from = 0
        """End of the history when the newest epoch began."""
        self._before = FlushStart(0, CHAIN_AT_GENESIS, 0)
        self._reads = 0

    @property
    def is_founded(self) -> bool:
        """Whether a GENESIS record has been applied."""
        return self._positions.count > 0

    @property
    def gathered(self) -> Position:
        """Position after the last BYTES record in the unfinished flush.

        This is the end of the history if no flush is unfinished.
        """
        if not self._gathered:
            return Position(self.end, self.chain)
        return Position(self._gathered[-1].end, self._gathered[-1].chain)

    @property
    def gathered_count(self) -> int:
        """Number of records read so far in the unfinished flush."""
        return len(self._gathered)

    def apply_record(self, offset: int, stored: bytes) -> Step:
        """Apply the next record, stored at `offset` in the shared log.

        After READ_AGAIN, the state is unchanged and the caller must read the record again. Raise `Halted` if
        the record is not permitted in this state.
        """
        if self.halted:
            raise Halted(self.halted)
        if offset < self.next_offset:
            return self._skip_duplicate(offset, stored)
        try:
            record = decode(stored, self.cluster)
        except ForeignRecord:
            self._record_read(offset, stored)
            self.foreign_count += 1
            return Step(Outcome.FOREIGN)
        except CorruptRecord:
            self._reads += 1
            if self._reads >= READS_MAX:
                self._halt(offset, f"{self._reads} times it did not match its CRC", LogDamaged)
            return Step(Outcome.READ_AGAIN)
        self._check_record(offset, record)
        step = _APPLIERS[Kind(record.kind)](self, offset, record)
        self._record_read(offset, stored)
        self.repeated_count += step.outcome is Outcome.ALREADY_HAD
        if step.outcome in _LED and self.last_read is not None:
            self.last_led = self.last_read
            self.led.add(*self.last_led)
        return step

    def freeze(self, *, before_flush: bool = False) -> dict[str, Any]:
        """Return the state for a checkpoint.

        A reader restored from this state resumes at the start of any unfinished flush. If `before_flush` is
        set, the reader resumes at the start of the last accepted flush. Set `before_flush` only immediately
        after that flush has been accepted.
        """
        next_offset = self._gathered_at[0] if self._gathered else self.next_offset
        at = self._before if before_flush else FlushStart(self.end, self.chain, next_offset)
        return {
            "cluster": (self.cluster or b"").hex(),
            "epoch": self.epoch,
            "holder": self.holder.hex(),
            "end": at.end,
            "led_from": self._leader_records_from,
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
        """Restore the state from a checkpoint.

        Raise `VersionUnsupported` if this program does not support its finalized version.
        """
        finalized = int(frozen["finalized"])
        if why := versions.describe_unsupported(finalized):
            raise VersionUnsupported(f"The checkpoint at byte {frozen['end']} of the log: {why}.")
        fold = cls(bytes.fromhex(frozen["cluster"]))
        fold.epoch, fold.holder = frozen["epoch"], bytes.fromhex(frozen["holder"])
        fold.end, fold.chain = frozen["end"], frozen["chain"]
        fold.next_offset, fold._leader_records_from = frozen["next_offset"], frozen["led_from"]
        fold._positions, fold.led = (
            Positions.thaw(frozen["positions"]),
            LeaderRecords.thaw(frozen["led"]),
        )
        fold.holdings = Holdings.thaw(frozen["holdings"])
        fold.leads, fold.finalized = frozen["leads"], finalized
        return fold

    def has_position(self, position: Position) -> bool | None:
        """Return whether a position is part of this history, or None if it was discarded."""
        return self._positions.has_position(position)

    def compare_epoch(self, record: SharedRecord) -> EpochRelation:
        """Compare a record's epoch and holder with the newest epoch and holder."""
        if record.epoch < self.epoch:
            return EpochRelation.OLDER
        if record.epoch == self.epoch:
            return EpochRelation.OURS if record.holder == self.holder else EpochRelation.OTHER_HOLDER
        return EpochRelation.NEXT if record.epoch == self.epoch + 1 else EpochRelation.BEYOND

    # The following methods apply one kind of record each. Only these methods and `_record_read` modify the
    # state.

    def _apply_genesis(self, offset: int, record: SharedRecord) -> Step:
        if self.is_founded:
            if Position(record.start, record.chain) == self._positions.first and record.epoch <= self.epoch:
                return Step(Outcome.ALREADY_HAD, record)
            self._halt(offset, "a second GENESIS: the cluster was made twice")
        self._set_finalized(offset, record.facts.get("finalized", versions.UNSAID))
        self.cluster, self.epoch = record.cluster, record.epoch
        self.end, self.chain = record.start, record.chain
        self._positions.add(record.start, record.chain)
        return Step(Outcome.NOTED, record)

    def _apply_epoch(self, offset: int, record: SharedRecord) -> Step:
        relation = self.compare_epoch(record)
        if relation is EpochRelation.BEYOND:
            missing = f"epoch {record.epoch} follows epoch {self.epoch}: an EPOCH is missing"
            self._halt(offset, missing, LogDamaged)
        if relation is not EpochRelation.NEXT:
            return self._count_dead(record)
        self._require_bytes(offset, record)
        if record.start > self.end or self._positions.chain_at(record.start) != record.chain:
            self._halt(offset, f"whoever wants to lead epoch {record.epoch} has another history")
        self.epoch, self.holder, self.leads = record.epoch, record.holder, record.facts
        self._leader_records_from = self.end
        self._drop_gathered()
        return Step(Outcome.NEW_EPOCH, record)

    def _apply_bytes(self, offset: int, record: SharedRecord) -> Step:
        if not self._may_write(offset, record):
            return self._count_dead(record)
        self._require_bytes(offset, record)
        at = self.gathered
        if record.start < at.end or record.end == record.start:
            if record.end > at.end or self._positions.chain_at(record.end) != record.chain:
                self._halt(offset, f"two histories: bytes {record.start} to {record.end} are not the same")
            return Step(Outcome.ALREADY_HAD, record)
        if extend_chain(at.chain, record.start, record.body, record.zeros) != record.chain:
            self._halt(offset, f"two histories: the chain is another one at {record.end}")
        return self._gather_bytes(offset, record)

    def _apply_beat(self, offset: int, record: SharedRecord) -> Step:
        if not self._may_write(offset, record):
            return self._count_dead(record)
        self._require_bytes(offset, record)
        if not self._gathered and Position(record.start, record.chain) != Position(self.end, self.chain):
            is_of_before = self._leader_records_from <= record.start < self.end
            if is_of_before and self._positions.chain_at(record.start) == record.chain:
                return Step(Outcome.ALREADY_HAD, record)
            self._halt(offset, f"the leader is at {record.start}, and the history ends at {self.end}")
        facts = record.facts
        self.leads = update_leader_facts(self.leads, facts)
        if "finalize" in facts:
            self._set_finalized(offset, max(self.finalized, facts["finalize"]))
        if "forget" in facts:
            self.holdings.remove_node(facts["forget"])
        return Step(Outcome.ALIVE, record)

    def _apply_holding(self, _: int, record: SharedRecord) -> Step:
        self.holdings.apply_record(record.facts)
        return Step(Outcome.NOTED, record)

    def _gather_bytes(self, offset: int, record: SharedRecord) -> Step:
        """Add a BYTES record to the current flush. The last record completes the flush."""
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
        self._before = FlushStart(self.end, self.chain, offsets[0])
        self.end, self.chain = record.end, record.chain
        return Step(Outcome.ACCEPTED, record, flush, offsets)

    def _set_finalized(self, offset: int, version: int) -> None:
        """Set the finalized version. Halt if the version is not supported."""
        if why := versions.describe_unsupported(version):
            self._halt(offset, why, VersionUnsupported)
        self.finalized = version

    def _drop_gathered(self) -> None:
        self._gathered, self._gathered_at = [], []
        self._positions.cut(self.end)

    def _skip_duplicate(self, offset: int, stored: bytes) -> Step:
        """Skip a duplicate of the last record.

        Halt if its offset or content differs.
        """
        crc = zlib.crc32(stored)
        if self.last_read is None or offset != self.last_read[0]:
            why = f"the engine returned it after record {self.next_offset - 1}: its answer is out of order"
            self._halt(offset, why, LogDamaged)
        if crc != self.last_read[1]:
            both = f"CRC-32 {self.last_read[1]:08x} and {crc:08x}"
            self._halt(offset, f"the engine has two that differ, {both}: it has doubled one", LogDamaged)
        self.repeated_count += 1
        return Step(Outcome.ALREADY_HAD)

    def _count_dead(self, record: SharedRecord) -> Step:
        self.dead_count += 1
        return Step(Outcome.DEAD, record)

    def _record_read(self, offset: int, stored: bytes) -> None:
        self.next_offset = offset + 1
        self.last_read = (offset, zlib.crc32(stored))
        self._reads = 0
        assert self.end <= self.gathered.end, "an unfinished flush begins behind its end"

    # The following methods check a record before it is applied.

    def _check_record(self, offset: int, record: SharedRecord) -> None:
        """Halt if this program cannot read a record, or if the record precedes the GENESIS record."""
        if record.version > VERSION or record.kind not in Kind.__members__.values():
            what = f"kind {record.kind}, version {record.version}"
            self._halt(
                offset, f"{what}: a newer Tidewheel wrote it, so install that one here", VersionUnsupported
            )
        if not self.is_founded and record.kind != Kind.GENESIS:
            self._halt(offset, "the log does not begin with a GENESIS: its first records are gone")

    def _may_write(self, offset: int, record: SharedRecord) -> bool:
        """Return whether a record was appended by the current leader.

        Halt if the writer's EPOCH record is missing.
        """
        relation = self.compare_epoch(record)
        if relation not in (EpochRelation.OLDER, EpochRelation.OURS):
            missing = f"it is of epoch {record.epoch} ({relation.value}): an EPOCH is missing"
            self._halt(offset, missing, LogDamaged)
        return relation is EpochRelation.OURS

    def _require_bytes(self, offset: int, record: SharedRecord) -> None:
        """Halt if a record begins beyond the end of the history read so far."""
        if record.start > (end := self.gathered.end):
            self._halt(offset, f"bytes {end} to {record.start} of the history are missing", LogDamaged)

    def _halt(self, offset: int, why: str, kind: type[Halted] = Halted) -> NoReturn:
        self.halted = f"Record {offset} of the shared log: {why}."
        raise LogDamaged(self.halted, offset) if kind is LogDamaged else kind(self.halted)


_APPLIERS: Final[dict[Kind, Callable[[Fold, int, SharedRecord], Step]]] = {
    Kind.GENESIS: Fold._apply_genesis,
    Kind.EPOCH: Fold._apply_epoch,
    Kind.BYTES: Fold._apply_bytes,
    Kind.BEAT: Fold._apply_beat,
    Kind.CHECKPOINT: Fold._apply_holding,
    Kind.HOLD: Fold._apply_holding,
}


def update_leader_facts(leads: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts from an EPOCH record, updated with those from a BEAT record."""
    anew = {name: facts[name] for name in UPDATED_FACTS if name in facts}
    return leads | anew if anew else leads


class Positions:
    """The newest positions in a history.

    Each position holds a CommitLog offset and a chain, and uses 16 bytes.
    """

    def __init__(self) -> None:
        self._ends, self._chains = array("Q"), array("Q")
        self.first: Position | None = None
        """Start of the history. It is never discarded."""

    @property
    def count(self) -> int:
        """Number of positions in memory."""
        return len(self._ends)

    def add(self, end: int, chain: int) -> None:
        """Add a position at the end of the history.

        If more than `POSITIONS_MAX` are stored, discard the older half.
        """
        assert not self._ends or end > self._ends[-1], "positions come in order"
        if self.first is None:
            self.first = Position(end, chain)
        self._ends.append(end)
        self._chains.append(chain)
        if len(self._ends) > POSITIONS_MAX:
            del self._ends[: POSITIONS_MAX // 2], self._chains[: POSITIONS_MAX // 2]

    def chain_at(self, end: int) -> int | None:
        """Return the chain at a CommitLog offset, or None if it is not stored."""
        at = bisect_left(self._ends, end)
        return self._chains[at] if at < len(self._ends) and self._ends[at] == end else None

    def has_position(self, position: Position) -> bool | None:
        """Return whether a position is part of this history, or None if it was discarded."""
        if position == self.first:
            return True
        if not self._ends or position.end < self._ends[0]:
            return None
        return self.chain_at(position.end) == position.chain

    def cut(self, end: int) -> None:
        """Discard all positions after `end`."""
        while self._ends and self._ends[-1] > end:
            self._ends.pop()
            self._chains.pop()

    def freeze(self, end: int) -> list[list[int]]:
        """Return the first position and the newest positions up to `end`, for use in a checkpoint."""
        first = [list(self.first)] if self.first is not None else []
        newest = slice(-FROZEN_POSITIONS_MAX, None)
        both = zip(self._ends[newest], self._chains[newest], strict=True)
        return first + [[one, at] for one, at in both if one <= end]

    @classmethod
    def thaw(cls, frozen: list[list[int]]) -> Positions:
        """Restore the positions from a checkpoint."""

        positions = cls()
        for end, chain in frozen[1:]:
            positions.add(end, chain)
        if frozen:
            positions.first = Position(*frozen[0])
        return positions
