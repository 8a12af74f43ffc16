"""The state machine of a shared log reader, which runs on every node, including the leader.

A reader applies the records of the log in order. A record changes the leader, extends the history, updates
the cluster metadata, or is ignored. Readers that have applied the same records are in the same state and need
no other communication.

    right to write    Only the holder in the newest EPOCH record may write. Later records of older epochs are
                      ignored.
    acceptance        The BYTES records of the holder are accepted in log order. A flush is accepted when its
                      last record has been applied.
    halt              A reader halts at a record that no correct writer can append after the records read so
                      far. Such a record is evidence that the engine has lost, duplicated, or changed a
                      record, or has merged two histories. The reader does not attempt to determine which
                      record is correct.

    kind    older epoch   same epoch    same, other holder   next epoch   later epoch
    EPOCH   dead          dead          dead                 new epoch    HALT: an EPOCH is missing
    BYTES   dead          by position   HALT: missing EPOCH  HALT         HALT
    BEAT    dead          by position   HALT: missing EPOCH  HALT         HALT
    The epochs of GENESIS, CHECKPOINT, and HOLD records are not compared, and their outcome is "noted"
    (`sharedlog.holdings`). The outcome of a second GENESIS record is "already had" if the record contains the
    start of the history and no newer epoch. Otherwise, the reader halts.

    BYTES   starts at the end of the history, same chain    gathered; `last` completes the flush
            starts at the end of the history, other chain   HALT: two histories
            starts after the end of the history             HALT: bytes are missing
            ends at a position of the history, same chain   already had: the engine duplicated a record
            otherwise                                       HALT: two histories
    EPOCH   starts after the end of the history             HALT: bytes are missing
            at a position of the history, same chain        new epoch; an unfinished flush is discarded
            otherwise                                       HALT: the candidate has another history
    BEAT    after the end of the history and of the flush   HALT: bytes are missing
            at the end of the history, same chain           alive: the leader is active; can replace fields
                                                            of the EPOCH record (`update_leader_facts`)
            at an earlier position in the same epoch, same  already had: the engine duplicated a record
            chain
            otherwise                                       HALT; "alive" if a flush is unfinished
            finalizes a version that is not supported       HALT (`sharedlog.versions`)

A reader keeps up to `POSITIONS_MAX` positions in memory and the newest `FROZEN_POSITIONS_MAX` positions in
each checkpoint. Older positions are discarded, because no engine retries an append that old.

An engine may return the same record twice in succession. The second copy is skipped if both copies have the
same offset and the same CRC-32. A reader halts if two records with the same offset have different CRC-32
values, or if the offset of a record is lower than that of the previous record.

Records of other clusters are skipped and counted. A record of this cluster with a CRC mismatch is read again,
and the reader halts at the fourth consecutive mismatch. A halted reader applies no further records.

Cost: a BLAKE2b hash of all bytes, and about 5 us of CPU time per record. The positions use up to 1 MB of
memory, and an unfinished flush is kept in memory. Limitation: a reader cannot detect the loss of records at
the end of the log until it applies the next BEAT record. A candidate therefore also reads the last record
again before it becomes the leader.
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
"""Number of consecutive CRC mismatches of a record at which a reader halts."""


class Outcome(Enum):
    """The effect of a record on the state of a reader."""

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
"""Outcomes of the EPOCH, BYTES, and BEAT records that are part of the history."""


class EpochRelation(Enum):
    """The relation of the epoch and holder in a record to the newest epoch and its holder."""

    OLDER = "older"
    OURS = "ours"
    OTHER_HOLDER = "other holder"
    NEXT = "next"
    BEYOND = "beyond"


class Step(NamedTuple):
    """The result of applying a record.

    If the outcome is ACCEPTED, `flush` contains all records of the flush, and `offsets` contains their shared
    log offsets.
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
    """The state of a reader before the last accepted flush.

    `next_offset` is the shared log offset of the first record in the flush.
    """

    end: int
    chain: int
    next_offset: int


class Fold:
    """The state of a shared log reader. Only `apply_record` changes the state."""

    def __init__(self, cluster: bytes | None = None) -> None:
        self.cluster = cluster
        self.epoch, self.holder = 0, NOBODY
        self.end, self.chain = 0, CHAIN_AT_GENESIS
        """The CommitLog offset at which the accepted history ends, and the chain at this offset."""
        self.next_offset = 0
        """Shared log offset of the next record to apply."""
        self.last_read: tuple[int, int] | None = None
        """Offset and CRC-32 of the last applied record."""
        self.last_led: tuple[int, int] | None = None
        """Offset and CRC-32 of the last valid leader record, which cannot be part of another history."""
        self.led = LeaderRecords()
        """Offsets and CRC-32s of the newest leader records."""
        self.leads: dict[str, Any] = {}
        """Fields of the newest EPOCH record, updated from the BEAT records of the leader."""
        self.halted = ""
        self.finalized = versions.OLDEST
        """Finalized version of the cluster."""
        self.holdings = Holdings()
        """Copies of the store that the nodes have announced."""
        self.foreign_count = self.dead_count = 0
        self.repeated_count = 0
        """Number of duplicate records that were skipped."""
        self._positions = Positions()
        self._gathered: list[SharedRecord] = []
        self._gathered_at: list[int] = []
        self._leader_records_from = 0
        """The CommitLog offset at which the history ended when the newest epoch began."""
        self._before = FlushStart(0, CHAIN_AT_GENESIS, 0)
        self._reads = 0

    @property
    def is_founded(self) -> bool:
        """Return whether a GENESIS record has been applied."""
        return self._positions.count > 0

    @property
    def gathered(self) -> Position:
        """Return the position after the last BYTES record of the unfinished flush.

        If there is no unfinished flush, return the end of the history.
        """
        if not self._gathered:
            return Position(self.end, self.chain)
        return Position(self._gathered[-1].end, self._gathered[-1].chain)

    @property
    def gathered_count(self) -> int:
        """Return the number of BYTES records in the unfinished flush."""
        return len(self._gathered)

    def apply_record(self, offset: int, stored: bytes) -> Step:
        """Apply the record at `offset` of the shared log.

        If the outcome is READ_AGAIN, the record was not applied and must be read again. Raise `Halted` if the
        record is not permitted in the current state or the reader has halted before.
        """
        if self.halted:
            raise Halted(self.halted)
        if offset < self.next_offset:
            return self._skip_duplicate(offset, stored)
        try:
            record = decode(stored, self.cluster)
        except ForeignRecord:
            self._advance_read_position(offset, stored)
            self.foreign_count += 1
            return Step(Outcome.FOREIGN)
        except CorruptRecord:
            self._reads += 1
            if self._reads >= READS_MAX:
                self._halt(offset, f"{self._reads} times it did not match its CRC", LogDamaged)
            return Step(Outcome.READ_AGAIN)
        self._check_record(offset, record)
        step = _APPLIERS[Kind(record.kind)](self, offset, record)
        self._advance_read_position(offset, stored)
        self.repeated_count += step.outcome is Outcome.ALREADY_HAD
        if step.outcome in _LED and self.last_read is not None:
            self.last_led = self.last_read
            self.led.add(*self.last_led)
        return step

    def freeze(self, *, before_flush: bool = False) -> dict[str, Any]:
        """Return the state of the reader for a checkpoint.

        A reader that is restored from this state resumes at the first record of the unfinished flush, if any.
        If `before_flush` is set, the restored reader resumes at the first record of the last accepted flush.
        Set `before_flush` only immediately after a flush has been accepted.
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
        """Restore a reader from the state in a checkpoint.

        Raise `VersionUnsupported` if this program does not support the finalized version in the checkpoint.
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
        """Return whether a position is part of the history, or None if all stored positions are newer."""
        return self._positions.has_position(position)

    def compare_epoch(self, record: SharedRecord) -> EpochRelation:
        """Compare the epoch and holder in a record with the newest epoch and its holder."""
        if record.epoch < self.epoch:
            return EpochRelation.OLDER
        if record.epoch == self.epoch:
            return EpochRelation.OURS if record.holder == self.holder else EpochRelation.OTHER_HOLDER
        return EpochRelation.NEXT if record.epoch == self.epoch + 1 else EpochRelation.BEYOND

    # The following `_apply` methods apply the records of each kind. Only `apply_record`, these methods, and
    # their helper methods modify the state.

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
            return self._count_dead_record(record)
        self._require_bytes(offset, record)
        if record.start > self.end or self._positions.chain_at(record.start) != record.chain:
            self._halt(offset, f"whoever wants to lead epoch {record.epoch} has another history")
        self.epoch, self.holder, self.leads = record.epoch, record.holder, record.facts
        self._leader_records_from = self.end
        self._drop_gathered_records()
        return Step(Outcome.NEW_EPOCH, record)

    def _apply_bytes(self, offset: int, record: SharedRecord) -> Step:
        if not self._may_write(offset, record):
            return self._count_dead_record(record)
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
            return self._count_dead_record(record)
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
        """Add a BYTES record to the unfinished flush, and accept the flush if this is its last record."""
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
        """Set the finalized version, or halt if this program does not support it."""
        if why := versions.describe_unsupported(version):
            self._halt(offset, why, VersionUnsupported)
        self.finalized = version

    def _drop_gathered_records(self) -> None:
        self._gathered, self._gathered_at = [], []
        self._positions.cut(self.end)

    def _skip_duplicate(self, offset: int, stored: bytes) -> Step:
        """Skip a duplicate of the last record that was read.

        Halt if the record has a different offset or different content.
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

    def _count_dead_record(self, record: SharedRecord) -> Step:
        self.dead_count += 1
        return Step(Outcome.DEAD, record)

    def _advance_read_position(self, offset: int, stored: bytes) -> None:
        self.next_offset = offset + 1
        self.last_read = (offset, zlib.crc32(stored))
        self._reads = 0
        assert self.end <= self.gathered.end, "an unfinished flush begins behind its end"

    # The following methods check a record before it is applied.

    def _check_record(self, offset: int, record: SharedRecord) -> None:
        """Halt at a record of an unsupported kind or version, or at a record before the GENESIS record."""
        if record.version > VERSION or record.kind not in Kind.__members__.values():
            what = f"kind {record.kind}, version {record.version}"
            self._halt(
                offset, f"{what}: a newer Tidewheel wrote it, so install that one here", VersionUnsupported
            )
        if not self.is_founded and record.kind != Kind.GENESIS:
            self._halt(offset, "the log does not begin with a GENESIS: its first records are gone")

    def _may_write(self, offset: int, record: SharedRecord) -> bool:
        """Return whether a record was appended by the current leader.

        Halt if the log contains no EPOCH record for the epoch and holder in the record.
        """
        relation = self.compare_epoch(record)
        if relation not in (EpochRelation.OLDER, EpochRelation.OURS):
            missing = f"it is of epoch {record.epoch} ({relation.value}): an EPOCH is missing"
            self._halt(offset, missing, LogDamaged)
        return relation is EpochRelation.OURS

    def _require_bytes(self, offset: int, record: SharedRecord) -> None:
        """Halt if a record starts after the end of the history read so far."""
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
    """Return `leads`, the fields of an EPOCH record, updated from the fields of a BEAT record.

    Only the fields in `UPDATED_FACTS` are updated.
    """
    anew = {name: facts[name] for name in UPDATED_FACTS if name in facts}
    return leads | anew if anew else leads


class Positions:
    """The newest positions in a history.

    A position consists of a CommitLog offset and a chain, and uses 16 bytes of memory.
    """

    def __init__(self) -> None:
        self._ends, self._chains = array("Q"), array("Q")
        self.first: Position | None = None
        """The start of the history, which is never discarded."""

    @property
    def count(self) -> int:
        """Return the number of positions in memory."""
        return len(self._ends)

    def add(self, end: int, chain: int) -> None:
        """Append a position, which must be after all stored positions.

        If more than `POSITIONS_MAX` positions are then stored, discard the older half.
        """
        assert not self._ends or end > self._ends[-1], "positions come in order"
        if self.first is None:
            self.first = Position(end, chain)
        self._ends.append(end)
        self._chains.append(chain)
        if len(self._ends) > POSITIONS_MAX:
            del self._ends[: POSITIONS_MAX // 2], self._chains[: POSITIONS_MAX // 2]

    def chain_at(self, end: int) -> int | None:
        """Return the chain at a CommitLog offset, or None if no position with this offset is stored."""
        at = bisect_left(self._ends, end)
        return self._chains[at] if at < len(self._ends) and self._ends[at] == end else None

    def has_position(self, position: Position) -> bool | None:
        """Return whether a position is part of the history, or None if all stored positions are newer."""
        if position == self.first:
            return True
        if not self._ends or position.end < self._ends[0]:
            return None
        return self.chain_at(position.end) == position.chain

    def cut(self, end: int) -> None:
        """Discard all positions after the CommitLog offset `end`."""
        while self._ends and self._ends[-1] > end:
            self._ends.pop()
            self._chains.pop()

    def freeze(self, end: int) -> list[list[int]]:
        """Return the first position and the newest positions up to `end`, for a checkpoint."""
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
