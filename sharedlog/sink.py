"""A log sink that writes to a shared log. A flush is durable when the shared log has accepted it.

    append   The parts are written to the local segments, and the BYTES records are sent to the engine. When
             the response proves the append, the leader applies the records to the reader state.
    beat     A BEAT record is appended if no other record has been written for some time. It proves that this
             node is still the leader.

Rules
1. An append writes the parts to the local segments without a sync, and then waits until the engine has
   committed the records. A sync is not required, because a restarted node reads the accepted records from the
   shared log again.
2. An append returns only with proof that the records were accepted (`sharedlog.leading`). An append without
   proof raises `NotAccepted`, a subclass of OSError. The node is then no longer the leader, and discards the
   state of the broker core as after a disk failure.
3. The leader applies the appended records to the reader state in log order, as followers do. The leader and
   the followers therefore verify the same history and store the same positions in their checkpoints.
4. Flushes and BEAT records are appended one at a time. Each append begins at the proven end of the previous
   one.

`proven_ms` is the monotonic time at which the newest proven append began. No other node was the leader at
that time. A negative response is delayed until `proven_ms` is later than the start of the call
(`services.live.durability`).

Cost: one round trip to the engine per append. Each record adds 79 bytes and two BLAKE2b hashes. Limitation:
if the engine does not respond, all other appends wait until the call fails. The result of a failed append may
remain unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from commitlog.log.sink import LogSink, Part
from sharedlog.engine import Engine, Head
from sharedlog.errors import EngineRefused, EngineUnavailable, Halted, LogDamaged, LogTrimmed, NotAccepted
from sharedlog.faults import fault_at
from sharedlog.fold import Fold, Outcome, Position
from sharedlog.leading import Leader, Proof
from sharedlog.reading import read_until
from sharedlog.record import Kind, SharedRecord, encode
from sharedlog.versions import may_write


class SharedSink:
    """The log sink of the cluster leader.

    The last record that `fold` has applied must be the EPOCH record of this node. `clock` returns monotonic
    time in milliseconds. `accepted` is called after each proven append, and can raise OSError.
    """

    def __init__(
        self,
        local: LogSink,
        engine: Engine,
        fold: Fold,
        clock: Callable[[], int],
        accepted: Callable[[], None] = lambda: None,
    ) -> None:
        self.appends_max = 1
        self._local, self._engine, self._fold, self._clock = local, engine, fold, clock
        self._accepted, self._leader = accepted, Leader(fold)
        self._right = fold.epoch, fold.holder
        self._lock = Lock()
        self.proven_ms = clock()
        """Monotonic time in milliseconds at which the newest proven append began.

        No other node was the leader at that time.
        """
        self.is_over = False
        """Whether an append was not proven or this node has stepped down."""

    def append(self, first_offset: int, parts: Sequence[Part], epoch: int) -> None:
        """Append contiguous parts, the first of which begins at the CommitLog offset `first_offset`.

        The method is called in a worker thread. Raise `NotAccepted` if the append is not proven, or OSError
        if the disk fails.
        """
        with self._lock:
            self._require_leadership()
            assert first_offset == self._leader.position.end, "a flush begins where the shared log ends"
            assert epoch <= self._right[0], "a flush under a right that nobody has"
            self._local.append(first_offset, parts, epoch)
            self._append_proven(self._leader.make_flush(parts))

    def beat(self, facts: dict[str, Any]) -> None:
        """Append a BEAT record to prove that this node is still the leader.

        Raise `NotAccepted` if the append is not proven.
        """
        with self._lock:
            self._require_leadership()
            self._append_proven([self._leader.make_beat(facts)])

    def leave(self, to: str = "") -> None:
        """Announce that this node steps down in favor of the node `to`, or of any node if `to` is "".

        Subsequent writes are rejected, because a further record would revoke the announcement. Raise
        `NotAccepted` if the announcement is not proven.
        """
        with self._lock:
            self._require_leadership()
            self._append_proven([self._leader.make_beat({"leaves": True} | ({"to": to} if to else {}))])
            self.is_over = True

    def fault_at(self, record: int) -> str:
        """Return a message about the fault that stopped another node at `record`, or "" if no fault is found.

        Raise `Halted` if the log contains a different history, or `EngineUnavailable` or `EngineRefused` if
        the engine does not respond.
        """
        with self._lock:  # The lock prevents a concurrent append from modifying the reader state.
            try:
                return fault_at(self._engine, self._fold, record)
            except LogDamaged as error:  # The damage is not limited to a single record.
                return error.detail

    def _require_leadership(self) -> None:
        if self.is_over:
            raise NotAccepted("This node leads no more: an append was not accepted by the shared log.")

    def _append_proven(self, records: list[SharedRecord]) -> None:
        assert all(may_write(one, self._fold.finalized) for one in records), "a node could not read it"
        # `is_over` is cleared only after the append has been proven, and remains set after an exception.
        began_ms, self.is_over = self._clock(), True
        try:
            self._append_and_prove(records)
        # `LogTrimmed` is raised here only if another node has become the leader.
        except (EngineRefused, EngineUnavailable, Halted, LogTrimmed) as error:
            raise NotAccepted(f"{error}") from error
        self.is_over, self.proven_ms = False, began_ms
        try:
            self._accepted()
        # After a disk failure, this node is still the leader and can announce the step-down.
        except OSError as error:
            raise NotAccepted(f"The disk of this node has failed ({error}).") from error

    def _append_and_prove(self, records: list[SharedRecord]) -> None:
        position = Position(self._fold.end, self._fold.chain)
        stored = [encode(one) for one in records]
        offset = self._engine.append_if(Head(*self._right, position), stored, self._current_head())
        self._require_new_offset(offset, len(stored))
        if offset is None or self._leader.record_answer(offset, len(stored)) is Proof.NOTHING:
            self._leader.record_answer(None)
            # The new BEAT record repeats the fields of an unproven BEAT record, because a BEAT record without
            # these fields would revoke a "leaves" announcement.
            self._prove_by_beat(records[-1].facts if records[-1].kind == Kind.BEAT else {})
            return
        outcomes = [
            self._fold.apply_record(offset - len(stored) + n, one).outcome for n, one in enumerate(stored, 1)
        ]
        assert outcomes[-1] in (Outcome.ACCEPTED, Outcome.ALIVE), f"a proven append came to {outcomes}"
        assert position.end <= self._fold.end == self._leader.position.end, (
            "the fold is elsewhere than the log"
        )

    def _prove_by_beat(self, facts: dict[str, Any]) -> None:
        """Append a BEAT record, and apply all records of the log up to and including it.

        Raise `EngineUnavailable` if the history does not contain all records of this leader.
        """
        offset = self._engine.append_if(
            self._current_head(), [encode(self._leader.make_beat(facts))], self._current_head()
        )
        if offset is None:
            raise EngineUnavailable("The shared log has taken a BEAT, and does not tell where.")
        self._require_new_offset(offset, 1)
        read_until(self._engine, self._fold, offset + 1)
        if not self._leader.check_proof(self._fold):
            raise EngineUnavailable("What was appended is not in the history, or another node leads now.")

    def _require_new_offset(self, offset: int | None, count: int) -> None:
        """Raise `LogDamaged` if the engine has assigned the offset of an earlier record to a new record."""
        if offset is None or (first := offset - count + 1) >= self._fold.next_offset:
            return
        raise LogDamaged(
            f"A new record got offset {first}, and records up to {self._fold.next_offset - 1} were read "
            "before: the engine has lost its end."
        )

    def _current_head(self) -> Head:
        """Return the head of the shared log after this leader's last record."""
        return Head(*self._right, self._leader.position)
