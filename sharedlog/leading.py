"""Leadership of a shared log: candidacy, writing, and the proof of each append.

    candidacy   A candidate reads to the end of the log, appends an EPOCH record with a new random holder ID,
                and reads up to the EPOCH record. The holder in the newest EPOCH record is the leader. The
                candidate also reads again the last record that it had read before the candidacy. If this
                record has changed, the engine has lost the end of the log, and other records have been
                appended.
    writing     A flush consists of one or more BYTES records, the last of which is marked. Only one flush is
                in flight at a time.
    proof       The engine's response to an append has one of the following results:

                response                                 result
                success at the expected offset           accepted, because no other node has appended a record
                                                         in the meantime
                success at another or unknown offset     unknown: append a BEAT record, read it, and check the
                                                         reader state
                an error, a timeout, or a rejection      unknown: step down, because the next append would
                                                         hide a gap

A leader that has stepped down no longer answers calls from its in-memory tables, because they may contain
records that were not accepted. In an engine that compares heads (`sharedlog.engine`), no append succeeds at
an unexpected or unknown offset.

Cost: a proven append requires no additional records and no additional copies. Limitation: each append that
succeeds without proof requires a BEAT record and a read. Appends are slow if the engine never returns the
expected offset.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, Final

from commitlog.log.sink import Part, Zeros
from sharedlog import record
from sharedlog.errors import Halted
from sharedlog.fold import Fold, Position
from sharedlog.record import Kind, SharedRecord, encode_facts, extend_chain

_LENGTH: Final = struct.Struct(">I")


class Proof(Enum):
    """The conclusion drawn from the engine's response to an append."""

    ACCEPTED = "accepted"
    NOTHING = "nothing"


class Candidate:
    """A candidacy for the next epoch. `fold` must have applied all records up to the end of the log."""

    def __init__(self, fold: Fold, holder: bytes, facts: dict[str, Any]) -> None:
        assert fold.is_founded, "only who has read the history from its first record may stand"
        assert fold.cluster is not None, "a cluster is founded with its id"
        self._last_read = fold.last_read
        self.epoch = SharedRecord(
            fold.cluster, Kind.EPOCH, fold.epoch + 1, holder, fold.end, fold.chain, encode_facts(facts)
        )

    @property
    def record_to_verify(self) -> int | None:
        """Return the offset of the last record read before the candidacy, or None if no record was read.

        The candidate must read this record again before the takeover.
        """
        return None if self._last_read is None else self._last_read[0]

    def has_won(self, fold: Fold, crc_again: int | None) -> bool:
        """Return whether the candidate is the leader of the new epoch.

        `fold` must have applied the candidate's EPOCH record. `crc_again` is the CRC-32 of the record at
        `record_to_verify`, or None if the record was trimmed. Raise `Halted` if the record has changed.
        """
        if self._last_read is not None and crc_again is not None and crc_again != self._last_read[1]:
            raise Halted(f"Record {self._last_read[0]} of the shared log is not what was read there before.")
        return (fold.epoch, fold.holder) == (self.epoch.epoch, self.epoch.holder)


class Leader:
    """Creates the records of a leader. The first record continues the history that `fold` has applied."""

    def __init__(self, fold: Fold) -> None:
        assert fold.cluster is not None, "nobody leads a cluster without an id"
        self._cluster, self._epoch, self._holder = fold.cluster, fold.epoch, fold.holder
        self.position = Position(fold.end, fold.chain)
        """The position in the history after the last record that was created."""
        self._expected_offset = fold.next_offset
        self._is_proven = True

    def make_flush(self, parts: Sequence[Part]) -> list[SharedRecord]:
        """Return the BYTES records of a flush that consists of `parts`.

        The parts must be contiguous, and the first part must begin at `position`.
        """
        assert self._is_proven, "a flush behind one of which nobody knows"
        cut = list(_split_parts(parts))
        assert cut, "a flush without a byte"
        records = []
        for number, (body, zeros) in enumerate(cut, 1):
            start = self.position.end
            chain = extend_chain(self.position.chain, start, body, zeros)
            self.position = Position(start + len(body) + zeros, chain)
            records.append(
                self._make_record(Kind.BYTES, start, chain, body, zeros, is_last=number == len(cut))
            )
        return records

    def make_beat(self, facts: dict[str, Any]) -> SharedRecord:
        """Return a BEAT record at the current position.

        An accepted BEAT record also proves all previous records of the leader.
        """
        return self._make_record(Kind.BEAT, self.position.end, self.position.chain, encode_facts(facts))

    def record_answer(self, offset: int | None, count: int = 1) -> Proof:
        """Register a successful append of `count` records, and return whether they are proven.

        `offset` is the offset of the last record, or None if the engine returned no offset. A failed append
        must not be registered, because the leader steps down after a failure.
        """
        is_next = offset == self._expected_offset + count - 1
        if offset is not None:
            self._expected_offset = max(self._expected_offset, offset + 1)
        self._is_proven = self._is_proven and is_next
        return Proof.ACCEPTED if self._is_proven else Proof.NOTHING

    def check_proof(self, fold: Fold) -> bool:
        """Return whether the history in `fold` contains all records of this leader.

        `fold` must have applied the leader's last BEAT record. If the result is False, the leader must step
        down.
        """
        right = (fold.epoch, fold.holder) == (self._epoch, self._holder)
        self._is_proven = right and Position(fold.end, fold.chain) == self.position
        self._expected_offset = fold.next_offset
        return self._is_proven

    def _make_record(
        self, kind: Kind, start: int, chain: int, body: bytes, zeros: int = 0, *, is_last: bool = True
    ) -> SharedRecord:
        return SharedRecord(
            self._cluster, kind, self._epoch, self._holder, start, chain, body, zeros, is_last
        )


def _split_parts(parts: Sequence[Part]) -> Iterator[tuple[bytes, int]]:
    """Yield the body of each BYTES record in a flush, and the number of zero bytes after the body."""
    gathered = bytearray()
    for part in parts:
        if isinstance(part, Zeros):
            yield bytes(gathered), len(part)
            gathered.clear()
            continue
        for one in _split_part(bytes(part)):
            if gathered and len(gathered) + len(one) > record.BODY_BYTES_MAX:
                yield bytes(gathered), 0
                gathered.clear()
            gathered += one
    if gathered:
        yield bytes(gathered), 0


def _split_part(part: bytes) -> Iterator[bytes]:
    """Split a part at CommitLog record boundaries into pieces of up to `BODY_BYTES_MAX` bytes.

    A CommitLog record that is larger than `BODY_BYTES_MAX` is not split.
    """
    begin = at = 0
    while len(part) - begin > record.BODY_BYTES_MAX and at < len(part):
        # A blank record can extend past the end of the part.
        end = min(at + int(_LENGTH.unpack_from(part, at)[0]), len(part))
        assert end > at, f"a CommitLog record without a length at byte {at} of a part"
        if end - begin > record.BODY_BYTES_MAX and at > begin:
            yield part[begin:at]
            begin = at
        at = end
    yield part[begin:]
