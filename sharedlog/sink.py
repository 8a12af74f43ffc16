"""A sink over a shared log, in which a flush is durable when the shared log has accepted it.

    append   parts to the local segments, BYTES to the engine --answer--> a proof --> the fold applies them
    beat     a BEAT, if nothing else was written for a while: a sign of life, and a proof of leadership

Rules
1. The local write comes first and is not synced, since after a restart this node reads accepted records again
   from the shared log. An append therefore waits only for the commit of the engine.
2. An append returns only if it is proven (`sharedlog.leading`). Otherwise `append` raises `NotAccepted`, an
   OSError. The state of the core is then void, as after a disk failure, and this node no longer leads.
3. The fold of the leader applies the leader's own records in the order of the log, as followers do. Leader
   and followers therefore check the same history, and their checkpoints have the same positions of the log.
4. Only one append, of a flush or a BEAT, runs at a time. The next append begins at the proven end of the
   last append.

`proven_ms` is the start of the newest proven append, by the caller's clock. At that time, no other node was
leader. A negative answer waits until `proven_ms` is later than the start of its call
(`services.live.durability`).

Cost: the round trip of the engine, 79 bytes for each record, and two computations of BLAKE2b, by the writer
and by the fold. Weak spot: an unanswered append blocks all later appends until the engine gives up, and even
then the outcome of the append may be unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from commitlog.sink import LogSink, Part
from sharedlog.engine import Engine, Head
from sharedlog.errors import Halted, LogDamaged, NotAccepted, Refused, Trimmed, Unknown
from sharedlog.faults import fault_at
from sharedlog.fold import Fold, Outcome, Position
from sharedlog.leading import Leader, Proof
from sharedlog.reading import read_until
from sharedlog.record import Kind, SharedRecord, encode
from sharedlog.versions import may_write


class SharedSink:
    """The sink of the leader of a cluster. `fold` has just read the EPOCH of this node.

    `clock` is any monotonic clock in ms. `accepted` is called after each proof, and may raise OSError.
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
        """The start of the newest proven append. No other node was leader until then."""
        self.is_over = False
        """Whether an append was not proven, so that this node no longer leads."""

    def append(self, first_offset: int, parts: Sequence[Part], epoch: int) -> None:
        """Append contiguous parts that begin at `first_offset`. This method runs in a worker thread.

        Raise `NotAccepted` if the acceptance of the parts is not proven, or OSError if the disk fails.
        """
        with self._lock:
            self._require_leadership()
            assert first_offset == self._leader.position.end, "a flush begins where the shared log ends"
            assert epoch <= self._right[0], "a flush under a right that nobody has"
            self._local.append(first_offset, parts, epoch)
            self._append_proven(self._leader.make_flush(parts))

    def beat(self, facts: dict[str, Any]) -> None:
        """Append a BEAT, which proves that this node leads. Raise `NotAccepted` if the proof fails."""
        with self._lock:
            self._require_leadership()
            self._append_proven([self._leader.make_beat(facts)])

    def leave(self, to: str = "") -> None:
        """Announce the end of this node's leadership, and its successor `to`.

        Later writes are refused, since they would count as a sign of life. Raise `NotAccepted` if the
        announcement is not proven.
        """
        with self._lock:
            self._require_leadership()
            self._append_proven([self._leader.make_beat({"leaves": True} | ({"to": to} if to else {}))])
            self.is_over = True

    def fault_at(self, record: int) -> str:
        """Return the fault that stops another node at `record`, or "" if the log matches this node's history.

        Raise `Halted` if the log has another history, or `Unknown` or `Refused` if the engine cannot answer.
        """
        with self._lock:  # an append changes the fold
            try:
                return fault_at(self._engine, self._fold, record)
            except LogDamaged as error:  # the engine as a whole is damaged
                return error.detail

    def _require_leadership(self) -> None:
        if self.is_over:
            raise NotAccepted("This node leads no more: an append was not accepted by the shared log.")

    def _append_proven(self, records: list[SharedRecord]) -> None:
        assert all(may_write(one, self._fold.finalized) for one in records), "a node could not read it"
        began_ms, self.is_over = self._clock(), True  # until proven, even if an exception is raised
        try:
            self._append_and_prove(records)
        except (Refused, Unknown, Halted, Trimmed) as error:  # if trimmed, another node has long been leader
            raise NotAccepted(f"{error}") from error
        self.is_over, self.proven_ms = False, began_ms
        try:
            self._accepted()
        except OSError as error:  # this node still leads, so it may announce that it leaves
            raise NotAccepted(f"The disk of this node has failed ({error}).") from error

    def _append_and_prove(self, records: list[SharedRecord]) -> None:
        position = Position(self._fold.end, self._fold.chain)
        stored = [encode(one) for one in records]
        offset = self._engine.append_if(Head(*self._right, position), stored, self._current_head())
        self._require_new_offset(offset, len(stored))
        if offset is None or self._leader.record_answer(offset, len(stored)) is Proof.NOTHING:
            self._leader.record_answer(None)
            # A plain BEAT after "leaves" would be a sign of life and revoke it, so repeat the facts.
            self._prove_by_beat(records[-1].facts if records[-1].kind == Kind.BEAT else {})
            return
        outcomes = [self._fold.take(offset - len(stored) + n, one).outcome for n, one in enumerate(stored, 1)]
        assert outcomes[-1] in (Outcome.ACCEPTED, Outcome.ALIVE), f"a proven append came to {outcomes}"
        assert position.end <= self._fold.end == self._leader.position.end, (
            "the fold is elsewhere than the log"
        )

    def _prove_by_beat(self, facts: dict[str, Any]) -> None:
        """Append a BEAT and apply all records up to the BEAT. Raise `Unknown` if this proves nothing."""
        offset = self._engine.append_if(
            self._current_head(), [encode(self._leader.make_beat(facts))], self._current_head()
        )
        if offset is None:
            raise Unknown("The shared log has taken a BEAT, and does not tell where.")
        self._require_new_offset(offset, 1)
        read_until(self._engine, self._fold, offset + 1)
        if not self._leader.check_proof(self._fold):
            raise Unknown("What was appended is not in the history, or another node leads now.")

    def _require_new_offset(self, offset: int | None, count: int) -> None:
        """Raise `LogDamaged` if new records got offsets at which this node has read other records."""
        if offset is None or (first := offset - count + 1) >= self._fold.next_offset:
            return
        raise LogDamaged(
            f"A new record got offset {first}, and records up to {self._fold.next_offset - 1} were read "
            "before: the engine has lost its end."
        )

    def _current_head(self) -> Head:
        """Return the head of the shared log after the records written so far."""
        return Head(*self._right, self._leader.position)
