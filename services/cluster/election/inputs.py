"""The inputs of the election, which are action results, shared log records, ticks, and commands.

Each input is an immutable value that is created in a worker thread or in the event loop. The state machine
does not read fields of type Any, which are intended for the node or for a later action.
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
    """The position of a node in the shared log, and the numbers of records that the node has skipped."""

    end: int = 0
    next_record: int = 0
    foreign_lines: int = 0
    repeated_records: int = 0


def read_progress_of(fold: Fold) -> ReadProgress:
    """Return the position of a fold in the shared log, and the numbers of records that it has skipped."""
    return ReadProgress(fold.end, fold.next_offset, fold.foreign_count, fold.repeated_count)


class Opened(NamedTuple):
    """The result of OPEN: the epoch of the checkpoint (or 0), its facts, the position, and the replica."""

    epoch: int
    leads: Mapping[str, Any]
    seen: ReadProgress = ReadProgress()
    replica: Any = None


class ReadDone(NamedTuple):
    """The result of READ or CATCH_UP, with the number of records read (0 at the end of the log)."""

    records: int
    seen: ReadProgress
    is_founded: bool
    is_listed: bool
    """Whether the shared log contains a holding for this node."""
    unfit: str
    """The reason why this node is unfit to lead, or "" if this node is fit."""


class Appended(NamedTuple):
    """The result of APPEND_EPOCH: the candidate and its EPOCH offset, or None if the append was refused."""

    candidacy: tuple[Any, int] | None


class Confirmed(NamedTuple):
    """The result of CONFIRM.

    `has_won` is None if the EPOCH record has not been read back yet.
    """

    has_won: bool | None


class Begun(NamedTuple):
    """The result of SERVE.

    `proven_ms` is the start time, in ms of the monotonic clock, of the last confirmed append.
    """

    proven_ms: int


class HeartbeatDone(NamedTuple):
    """The result of BEAT, with the start time of the last confirmed append and the changed facts."""

    proven_ms: int
    news: Mapping[str, Any] = NO_NEWS


class LookDone(NamedTuple):
    """The result of LOOK. On a leader, it includes the fittest follower and the complaints of other nodes."""

    seen: ReadProgress
    has_room: bool = True
    shown: Any = None
    unfit: str = ""
    fitter: str = ""
    complaints: tuple[tuple[str, tuple[int, int]], ...] = ()


class ClientsAsked(NamedTuple):
    """The result of ASK_CLIENTS, which indicates whether any client responded after `node` complained."""

    node: str
    is_reached: bool


class Ended(NamedTuple):
    """The result of HAND_OVER, after which the node no longer serves clients."""


class CopiesFound(NamedTuple):
    """An intermediate result of COPY, with the newest epoch in the log (or 0) and its facts."""

    epoch: int
    leads: Mapping[str, Any]


class Copied(NamedTuple):
    """The result of COPY, after which the node has fetched a copy from `source`."""

    source: str


class Failed(NamedTuple):
    """The failure of an action with one of the errors in FAILURES.

    If the shared log is inconsistent, `recovery_advice` contains advice for the operator. `where` is the
    unreadable record that caused the failure, if any.
    """

    act: Act
    error: Exception
    recovery_advice: str = ""
    where: Unreadable | None = None


class RecordTaken(NamedTuple):
    """A shared log record that the node has read and applied, with the outcome `step`."""

    step: Step


class Tick(NamedTuple):
    """A timer tick. On a leader, it contains the start of the last confirmed append and the changed facts."""

    proven_ms: int = 0
    news: Mapping[str, Any] = NO_NEWS


class ProofWanted(NamedTuple):
    """A request for a proof of leadership, on which a pending response to a client depends."""


class SteppedDown(NamedTuple):
    """The release of the core after an unconfirmed append or a disk failure."""

    error: Exception


class Leave(NamedTuple):
    """A request to stop following or leading because the process is shutting down."""


class Move(NamedTuple):
    """An operator command to transfer the leadership to the node `to`, or to any node if `to` is empty."""

    to: str


class Order(NamedTuple):
    """An operator command whose facts are written to the log in a BEAT record.

    The state machine ignores `written`, which is intended for the node.
    """

    facts: Mapping[str, Any]
    written: Any = None


Input = (
    Opened | ReadDone | Appended | Confirmed | Begun | HeartbeatDone | LookDone | ClientsAsked | Ended |
    CopiesFound | Copied | Failed | RecordTaken | Tick | ProofWanted | SteppedDown | Leave | Move | Order
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
    **dict.fromkeys((HeartbeatDone, ClientsAsked, ProofWanted, Move, Order), frozenset((Stage.LEADING,))),
}
"""The stages in which each input is accepted. Inputs not listed are accepted except in HALTED and LEFT."""
AWAITED_ACTS: Final[Mapping[Act, frozenset[Stage]]] = {
    Act.OPEN: frozenset((Stage.OPENING,)),
    Act.READ: frozenset((Stage.READING,)),
    Act.SERVE: frozenset((Stage.STARTING,)),
    Act.COPY: frozenset((Stage.COPYING,)),
    Act.HAND_OVER: frozenset((Stage.HANDING_OVER,)),
    **dict.fromkeys((Act.CATCH_UP, Act.APPEND_EPOCH, Act.CONFIRM), frozenset(STANDING)),
}
"""The stages in which the failure of each action is accepted. A LOOK failure is accepted in all stages."""
