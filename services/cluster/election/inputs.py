"""The inputs of the election: results of its acts, records of the shared log, ticks and orders.

Each input is an immutable value from a worker thread or the event loop. The machine does not use fields of
type Any, which are meant for the node or for a later act.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from services.cluster.election.table import STANDING, Act, Stage
from sharedlog.fold import Fold, Step
from sharedlog.holdings import Unreadable

NO_NEWS: Final[Mapping[str, Any]] = MappingProxyType({})


class ReadProgress(NamedTuple):
    """The progress of a node in reading the shared log, and the numbers of skipped records."""

    end: int = 0
    next_record: int = 0
    foreign_lines: int = 0
    repeated_records: int = 0


def read_progress_of(fold: Fold) -> ReadProgress:
    """Return the progress of a fold, including the numbers of skipped records."""
    return ReadProgress(fold.end, fold.next_offset, fold.foreign_count, fold.repeated_count)


class Opened(NamedTuple):
    """OPEN: the epoch in the checkpoint (0 if there is none), its facts, the progress and the replica."""

    epoch: int
    leads: Mapping[str, Any]
    seen: ReadProgress = ReadProgress()
    replica: Any = None


class ReadDone(NamedTuple):
    """READ and CATCH_UP: the number of records read (0 at the end of the log), and the state of the node."""

    records: int
    seen: ReadProgress
    is_founded: bool
    is_listed: bool
    """Whether the shared log contains this node's holding."""
    unfit: str
    """The reason why this node should lead only as a last resort, or "" if this node is fit."""


class Appended(NamedTuple):
    """APPEND_EPOCH: the candidate and the offset of its EPOCH, or None if the engine returned no offset."""

    candidacy: tuple[Any, int] | None


class Confirmed(NamedTuple):
    """CONFIRM: whether the EPOCH is the newest, or None if it has not been read back yet."""

    has_won: bool | None


class Begun(NamedTuple):
    """SERVE: the start time of the newest proven append, by this node's monotonic clock."""

    proven_ms: int


class Beaten(NamedTuple):
    """BEAT: the BEAT was appended, and the append was proven."""

    proven_ms: int
    news: Mapping[str, Any] = NO_NEWS


class LookDone(NamedTuple):
    """LOOK: the state of the node and, on a leader, a fit follower and complaints (node, (epoch, number))."""

    seen: ReadProgress
    has_room: bool = True
    shown: Any = None
    unfit: str = ""
    fitter: str = ""
    complaints: tuple[tuple[str, tuple[int, int]], ...] = ()


class ClientsAsked(NamedTuple):
    """ASK_CLIENTS: whether any client responded to this node, after a complaint from `node`."""

    node: str
    is_reached: bool


class Ended(NamedTuple):
    """HAND_OVER: the node no longer serves clients."""


class CopiesFound(NamedTuple):
    """COPY, in progress: the newest epoch in the log (0 if there is none), and the facts in its EPOCH."""

    epoch: int
    leads: Mapping[str, Any]


class Copied(NamedTuple):
    """COPY: the node has fetched a copy from `source`."""

    source: str


class Failed(NamedTuple):
    """An act has failed with one of the errors in FAILURES.

    `recovery_advice` is advice for the operator if the log is inconsistent, and `where` is the unreadable
    record, if any.
    """

    act: Act
    error: Exception
    recovery_advice: str = ""
    where: Unreadable | None = None


class RecordTaken(NamedTuple):
    """The node has read a record and applied it with the outcome `step`."""

    step: Step


class Tick(NamedTuple):
    """A tick; on a leader, it contains the start time of the newest proven append and the leader's news."""

    proven_ms: int = 0
    news: Mapping[str, Any] = NO_NEWS


class ProofWanted(NamedTuple):
    """A response to a client is waiting for proof that this node leads."""


class SteppedDown(NamedTuple):
    """The core is void, because an append was not proven or the disk failed."""

    error: Exception


class Leave(NamedTuple):
    """The process is about to end."""


class Move(NamedTuple):
    """An operator moves leadership to the node `to`, or to any other node if `to` is empty."""

    to: str


class Order(NamedTuple):
    """An operator's order, which is written to the log as facts in a BEAT; only the node uses `written`."""

    facts: Mapping[str, Any]
    written: Any = None


Input = (
    Opened | ReadDone | Appended | Confirmed | Begun | Beaten | LookDone | ClientsAsked | Ended | CopiesFound
    | Copied | Failed | RecordTaken | Tick | ProofWanted | SteppedDown | Leave | Move | Order
)  # fmt: skip
AWAITED: Final[Mapping[type[Any], frozenset[Stage]]] = {
    Opened: frozenset((Stage.OPENING,)),
    ReadDone: frozenset((Stage.READING, Stage.CATCHING_UP)),
    Appended: frozenset((Stage.APPENDING,)),
    Confirmed: frozenset((Stage.CONFIRMING,)),
    Begun: frozenset((Stage.STARTING,)),
    Ended: frozenset((Stage.HANDING_OVER,)),
    **dict.fromkeys((CopiesFound, Copied), frozenset((Stage.COPYING,))),
    SteppedDown: frozenset((Stage.STARTING, Stage.LEADING)),
    **dict.fromkeys((Beaten, ClientsAsked, ProofWanted, Move, Order), frozenset((Stage.LEADING,))),
}
"""The stages in which each input is valid; other inputs are valid in all stages except HALTED and LEFT."""
AWAITED_ACTS: Final[Mapping[Act, frozenset[Stage]]] = {
    Act.OPEN: frozenset((Stage.OPENING,)),
    Act.READ: frozenset((Stage.READING,)),
    Act.SERVE: frozenset((Stage.STARTING,)),
    Act.COPY: frozenset((Stage.COPYING,)),
    Act.HAND_OVER: frozenset((Stage.HANDING_OVER,)),
    **dict.fromkeys((Act.CATCH_UP, Act.APPEND_EPOCH, Act.CONFIRM), frozenset(STANDING)),
}
"""The stages in which the failure of each act is valid; a failure of LOOK is valid in all stages."""
