"""The inputs of the election: answers to its acts, records that were read, ticks and orders.

Each input is an immutable value from a worker thread or the loop. The machine does not use fields of type
Any, which are for the node or for a later act.
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
    """The progress of a node's reads, and the numbers of skipped records."""

    end: int = 0
    next_record: int = 0
    foreign_lines: int = 0
    repeated_records: int = 0


def read_progress_of(fold: Fold) -> ReadProgress:
    """Return the progress of a fold, and the numbers of records that it has skipped."""
    return ReadProgress(fold.end, fold.next_offset, fold.foreign_count, fold.repeated_count)


class Opened(NamedTuple):
    """OPEN: the epoch in the checkpoint (0 without one), its facts, the progress and the replica."""

    epoch: int
    leads: Mapping[str, Any]
    seen: ReadProgress = ReadProgress()
    replica: Any = None


class ReadDone(NamedTuple):
    """READ and CATCH_UP: the number of records (0 at the end of the log), and the state of the node."""

    records: int
    seen: ReadProgress
    is_founded: bool
    is_listed: bool
    """Whether the shared log has the holding of this node."""
    unfit: str
    """The reason why this node should lead only if no other can, or "" if this node is fit."""


class Appended(NamedTuple):
    """APPEND_EPOCH: the candidate and the offset of its EPOCH, or None if the engine returns no offset."""

    candidacy: tuple[Any, int] | None


class Confirmed(NamedTuple):
    """CONFIRM: whether the EPOCH is the newest, or None until the EPOCH is read back."""

    has_won: bool | None


class Begun(NamedTuple):
    """SERVE: the time at which the newest proven append began, by this node's monotonic clock."""

    proven_ms: int


class Beaten(NamedTuple):
    """BEAT: the append of the BEAT was proven."""

    proven_ms: int
    news: Mapping[str, Any] = NO_NEWS


class LookDone(NamedTuple):
    """LOOK: the state of the node, and for a leader a fit follower and complaints (node, (epoch, number))."""

    seen: ReadProgress
    has_room: bool = True
    shown: Any = None
    unfit: str = ""
    fitter: str = ""
    complaints: tuple[tuple[str, tuple[int, int]], ...] = ()


class ClientsAsked(NamedTuple):
    """ASK_CLIENTS: whether any client answers this node, after a complaint of `node`."""

    node: str
    is_reached: bool


class Ended(NamedTuple):
    """HAND_OVER: the node no longer serves clients."""


class CopiesFound(NamedTuple):
    """COPY, in progress: the newest epoch in the log (0 without one), and the facts of its EPOCH."""

    epoch: int
    leads: Mapping[str, Any]


class Copied(NamedTuple):
    """COPY: the node has fetched a copy from `source`."""

    source: str


class Failed(NamedTuple):
    """An act has failed with an error in FAILURES.

    `recovery_advice` is a text for the operator if the log is inconsistent, and `where` is the record that
    cannot be read.
    """

    act: Act
    error: Exception
    recovery_advice: str = ""
    where: Unreadable | None = None


class RecordTaken(NamedTuple):
    """The node has read a record, whose outcome is `step`."""

    step: Step


class Tick(NamedTuple):
    """Time has passed; the tick of a leader contains the start of its newest proven append, and its news."""

    proven_ms: int = 0
    news: Mapping[str, Any] = NO_NEWS


class ProofWanted(NamedTuple):
    """An answer waits for a proof that this node leads."""


class SteppedDown(NamedTuple):
    """An append was not proven, or the disk failed: the core is void."""

    error: Exception


class Leave(NamedTuple):
    """The process is about to end."""


class Move(NamedTuple):
    """An operator moves the lead to the node `to`, or to any other node if `to` is empty."""

    to: str


class Order(NamedTuple):
    """An operator's order, whose facts are written in a BEAT; only the node uses `written`."""

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
"""The stages in which an input is valid; an unlisted input is valid in all stages but HALTED and LEFT."""
AWAITED_ACTS: Final[Mapping[Act, frozenset[Stage]]] = {
    Act.OPEN: frozenset((Stage.OPENING,)),
    Act.READ: frozenset((Stage.READING,)),
    Act.SERVE: frozenset((Stage.STARTING,)),
    Act.COPY: frozenset((Stage.COPYING,)),
    Act.HAND_OVER: frozenset((Stage.HANDING_OVER,)),
    **dict.fromkeys((Act.CATCH_UP, Act.APPEND_EPOCH, Act.CONFIRM), frozenset(STANDING)),
}
"""The stages in which the failure of an act is valid; a failure of LOOK is valid in all stages."""
