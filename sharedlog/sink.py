"""A sink over a shared log: a flush is durable when the shared log has accepted it.

    append   parts to the local segments, BYTES to the engine --answer--> a proof --> the fold takes them
    beat     a BEAT, when nothing else was written for a while: a sign of life, and a proof to lead still

Rules
1. The local write comes first and is not synced: what the cluster accepted, a start of this node reads again
   from the shared log. So of an append the engine's commit is the only thing that is waited for.
2. Only what is proven returns (`sharedlog.leading`). Anything else raises `NotAccepted`, an OSError: the core
   that appended is void from then on, as after a disk that failed, and this node leads no more.
3. The leader's own records go through its fold like a follower's, in the order of the log. So leader and
   followers check one history, and a checkpoint of either tells the same place of the log.
4. One append at a time, a BEAT too: the next begins where the one before was proven to end.

`proven_ms` is when the newest proven append began, by the caller's clock: at that moment nobody else led. An
answer that something is not there waits until it lies behind the call (`services.live.durability`).

Cost: the engine's round trip, 79 bytes a record, BLAKE2b twice (written and folded). Weak spot: an append
that is not answered holds up all behind it until the engine gives up; what it says by then may be nothing.
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
    """Where the leader of a cluster writes; `fold` has just read that this node leads.

    `clock` is any clock, in ms, that never goes back. `accepted`, called after each proof, raises OSError.
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
        """When the newest append began that is proven; before that moment nobody else led."""
        self.is_over = False
        """Whether an append was not proven: this node leads no more."""

    def append(self, first_offset: int, parts: Sequence[Part], epoch: int) -> None:
        """Keep parts that lie back to back from a log offset on; runs in a worker thread.

        Raise OSError, `NotAccepted` if the shared log does not prove that it has them.
        """
        with self._lock:
            self._require_right()
            assert first_offset == self._leader.position.end, "a flush begins where the shared log ends"
            assert epoch <= self._right[0], "a flush under a right that nobody has"
            self._local.append(first_offset, parts, epoch)
            self._write(self._leader.flush(parts))

    def beat(self, facts: dict[str, Any]) -> None:
        """Write a sign of life, which proves that this node leads; raise `NotAccepted`."""
        with self._lock:
            self._require_right()
            self._write([self._leader.beat(facts)])

    def leave(self, to: str = "") -> None:
        """Say that this node leads no more, and that the node `to` is to lead; raise `NotAccepted`.

        Nothing is written behind that, whoever still wants to: it would be a sign of life.
        """
        with self._lock:
            self._require_right()
            self._write([self._leader.beat({"leaves": True} | ({"to": to} if to else {}))])
            self.is_over = True

    def fault_at(self, record: int) -> str:
        """Return what is wrong where another node cannot read on; "" if the log is what this one has.

        Raise `Unknown`, `Refused`, or `Halted` where the log is another one.
        """
        with self._lock:  # an append moves the fold
            try:
                return fault_at(self._engine, self._fold, record)
            except LogDamaged as error:  # of the engine as a whole
                return error.detail

    def _require_right(self) -> None:
        if self.is_over:
            raise NotAccepted("This node leads no more: an append was not accepted by the shared log.")

    def _write(self, records: list[SharedRecord]) -> None:
        assert all(may_write(one, self._fold.finalized) for one in records), "a node could not read it"
        began_ms, self.is_over = self._clock(), True  # until it is proven, whatever is raised on the way
        try:
            self._append_and_prove(records)
        except (Refused, Unknown, Halted, Trimmed) as error:  # trimmed: another one has led for long
            raise NotAccepted(f"{error}") from error
        self.is_over, self.proven_ms = False, began_ms
        try:
            self._accepted()
        except OSError as error:  # the right to lead is still this node's, so it may say that it leaves
            raise NotAccepted(f"The disk of this node has failed ({error}).") from error

    def _append_and_prove(self, records: list[SharedRecord]) -> None:
        position = Position(self._fold.end, self._fold.chain)
        stored = [encode(one) for one in records]
        offset = self._engine.append_if(Head(*self._right, position), stored, self._head())
        self._require_new(offset, len(stored))
        if offset is None or self._leader.answered(offset, len(stored)) is Proof.NOTHING:
            self._leader.answered(None)
            # A sign of life behind the word that this node leaves would take that back: a BEAT says it again.
            self._prove(records[-1].facts if records[-1].kind == Kind.BEAT else {})
            return
        outcomes = [self._fold.take(offset - len(stored) + n, one).outcome for n, one in enumerate(stored, 1)]
        assert outcomes[-1] in (Outcome.ACCEPTED, Outcome.ALIVE), f"a proven append came to {outcomes}"
        assert position.end <= self._fold.end == self._leader.position.end, (
            "the fold is elsewhere than the log"
        )

    def _prove(self, facts: dict[str, Any]) -> None:
        """Append a BEAT, fold all up to it, and see what came of what was written before."""
        offset = self._engine.append_if(self._head(), [encode(self._leader.beat(facts))], self._head())
        if offset is None:
            raise Unknown("The shared log has taken a BEAT, and does not tell where.")
        self._require_new(offset, 1)
        read_to(self._engine, self._fold, offset + 1)
        if not self._leader.proven(self._fold):
            raise Unknown("What was appended is not in the history, or another node leads now.")

    def _require_new(self, offset: int | None, count: int) -> None:
        """Raise `LogDamaged` if records were given offsets at which this node has read others."""
        if offset is None or (first := offset - count + 1) >= self._fold.next_offset:
            return
        raise LogDamaged(
            f"A new record got offset {first}, and records up to {self._fold.next_offset - 1} were read "
            "before: the engine has lost its end."
        )

    def _head(self) -> Head:
        """The head of the shared log behind what was written."""
        return Head(*self._right, self._leader.position)
