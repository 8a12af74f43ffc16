"""A sink over a shared log: a flush is durable once the shared log has accepted it.

    append   parts to the local segments, BYTES to the engine --answer--> a proof --> the fold takes them
    beat     a BEAT, if nothing else was written for a while: a sign of life, and a proof of leadership

Rules
1. The local write comes first and is not synced: after a restart this node reads accepted records again from
   the shared log. So an append waits only for the commit of the engine.
2. Only a proven append returns (`sharedlog.leading`). Any other raises `NotAccepted`, an OSError: the state
   of the core is then void, as after a disk failure, and this node no longer leads.
3. The leader's own records go through its fold like a follower's, in the order of the log. So leader and
   followers check one history, and their checkpoints name the same positions of the log.
4. One append at a time, BEATs included: the next begins at the proven end of the last.

`proven_ms` is the start of the newest proven append, by the caller's clock: at that time no other node led. A
negative answer waits until `proven_ms` is later than the start of its call (`services.live.durability`).

Cost: the engine's round trip, 79 bytes a record, BLAKE2b twice (written and folded). Weak spot: an unanswered
append blocks all later ones until the engine gives up; its outcome may then still be unknown.
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
from sharedlog.reading import read_to
from sharedlog.record import Kind, SharedRecord, encode
from sharedlog.versions import may_write


class SharedSink:
    """The sink of the leader of a cluster; `fold` has just read that this node leads.

    `clock` is any monotonic clock, in ms. `accepted` is called after each proof, and raises OSError.
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
        """The start of the newest proven append; until then no other node led."""
        self.is_over = False
        """Whether an append was not proven: this node no longer leads."""

    def append(self, first_offset: int, parts: Sequence[Part], epoch: int) -> None:
        """Append contiguous parts from a log offset on; runs in a worker thread.

        Raise OSError; raise `NotAccepted` if the shared log does not prove that it has the parts.
        """
        with self._lock:
            self._require_right()
            assert first_offset == self._leader.position.end, "a flush begins where the shared log ends"
            assert epoch <= self._right[0], "a flush under a right that nobody has"
            self._local.append(first_offset, parts, epoch)
            self._write(self._leader.flush(parts))

    def beat(self, facts: dict[str, Any]) -> None:
        """Append a BEAT, which proves that this node leads; raise `NotAccepted`."""
        with self._lock:
            self._require_right()
            self._write([self._leader.beat(facts)])

    def leave(self, to: str = "") -> None:
        """Announce that this node no longer leads, and its successor `to`; raise `NotAccepted`.

        Later writes are refused: they would count as a sign of life.
        """
        with self._lock:
            self._require_right()
            self._write([self._leader.beat({"leaves": True} | ({"to": to} if to else {}))])
            self.is_over = True

    def fault_at(self, record: int) -> str:
        """Return the fault at which another node cannot read on; "" if the log matches this node's history.

        Raise `Unknown`, `Refused`, or `Halted` if the log has another history.
        """
        with self._lock:  # an append moves the fold
            try:
                return fault_at(self._engine, self._fold, record)
            except LogDamaged as error:  # the engine as a whole is damaged
                return error.detail

    def _require_right(self) -> None:
        if self.is_over:
            raise NotAccepted("This node leads no more: an append was not accepted by the shared log.")

    def _write(self, records: list[SharedRecord]) -> None:
        assert all(may_write(one, self._fold.finalized) for one in records), "a node could not read it"
        began_ms, self.is_over = self._clock(), True  # until proven, whatever is raised in between
        try:
            self._append_and_prove(records)
        except (Refused, Unknown, Halted, Trimmed) as error:  # trimmed: another node has long been leader
            raise NotAccepted(f"{error}") from error
        self.is_over, self.proven_ms = False, began_ms
        try:
            self._accepted()
        except OSError as error:  # this node still leads, so it may announce that it leaves
            raise NotAccepted(f"The disk of this node has failed ({error}).") from error

    def _append_and_prove(self, records: list[SharedRecord]) -> None:
        position = Position(self._fold.end, self._fold.chain)
        stored = [encode(one) for one in records]
        offset = self._engine.append_if(Head(*self._right, position), stored, self._head())
        self._require_new(offset, len(stored))
        if offset is None or self._leader.answered(offset, len(stored)) is Proof.NOTHING:
            self._leader.answered(None)
            # A plain BEAT after "leaves" would revoke it as a sign of life, so a BEAT repeats its facts.
            self._prove(records[-1].facts if records[-1].kind == Kind.BEAT else {})
            return
        outcomes = [self._fold.take(offset - len(stored) + n, one).outcome for n, one in enumerate(stored, 1)]
        assert outcomes[-1] in (Outcome.ACCEPTED, Outcome.ALIVE), f"a proven append came to {outcomes}"
        assert position.end <= self._fold.end == self._leader.position.end, (
            "the fold is elsewhere than the log"
        )

    def _prove(self, facts: dict[str, Any]) -> None:
        """Append a BEAT, fold all records up to it, and raise `Unknown` if that proves nothing."""
        offset = self._engine.append_if(self._head(), [encode(self._leader.beat(facts))], self._head())
        if offset is None:
            raise Unknown("The shared log has taken a BEAT, and does not tell where.")
        self._require_new(offset, 1)
        read_to(self._engine, self._fold, offset + 1)
        if not self._leader.proven(self._fold):
            raise Unknown("What was appended is not in the history, or another node leads now.")

    def _require_new(self, offset: int | None, count: int) -> None:
        """Raise `LogDamaged` if new records got offsets at which this node has read others."""
        if offset is None or (first := offset - count + 1) >= self._fold.next_offset:
            return
        raise LogDamaged(
            f"A new record got offset {first}, and records up to {self._fold.next_offset - 1} were read "
            "before: the engine has lost its end."
        )

    def _head(self) -> Head:
        """Return the head of the shared log after the records written so far."""
        return Head(*self._right, self._leader.position)
