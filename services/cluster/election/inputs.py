"""The inputs of the election: action results, shared log records, ticks, and commands.

Inputs are immutable. Worker threads and the event loop create them. The state machine ignores fields of type
Any, which are for the node or a later action.
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
    """A node's position in the shared log, and how many records it has skipped."""

    end: int = 0
    next_record: int = 0
    foreign_lines: int = 0
    repeated_records: int = 0


def read_progress_of(fold: Fold) -> ReadProgress:
    """Return the read position of a fold, and how many records it has skipped."""
    return ReadProgress(fold.end, fold.next_offset, fold.foreign_count, fold.repeated_count)


class Opened(NamedTuple):
    """The result of OPEN: the checkpoint's epoch (or 0) and facts, the position, and the replica."""

    epoch: int
    leads: Mapping[str, Any]
    seen: ReadProgress = ReadProgress()
    replica: Any = None


class ReadDone(NamedTuple):
    """The result of READ or CATCH_UP. `records` is the number of records read, or 0 at the log end."""

    records: int
    seen: ReadProgress
    is_founded: bool
    is_listed: bool
    """Whether the shared log contains this node's holding."""
    unfit: str
    """Why this node is unfit to lead, or "" if it is fit."""


class Appended(NamedTuple):
    """The result of APPEND_EPOCH: the candidate and its EPOCH offset, or None if refused."""

    candidacy: tuple[Any, int] | None


class Confirmed(NamedTuple):
    """The result of CONFIRM. `has_won` is None until the EPOCH record has been read back."""

    has_won: bool | None


class Begun(NamedTuple):
    """The result of SERVE. `proven_ms` is the monotonic start time of the last confirmed append."""

    proven_ms: int


class HeartbeatDone(NamedTuple):
    """The result of BEAT: the start time of the last confirmed append, and the changed facts."""

    proven_ms: int
    news: Mapping[str, Any] = NO_NEWS


class LookDone(NamedTuple):
    """The result of LOOK. A leader also reports the fittest follower and all complaints."""

    seen: ReadProgress
    has_room: bool = True
    shown: Any = None
    unfit: str = ""
    fitter: str = ""
    complaints: tuple[tuple[str, tuple[int, int]], ...] = ()


class ClientsAsked(NamedTuple):
    """The result of ASK_CLIENTS: whether any client responded after `node` complained."""

    node: str
    is_reached: bool


class Ended(NamedTuple):
    """The result of HAND_OVER. The node no longer serves clients."""


class CopiesFound(NamedTuple):
    """An intermediate result of COPY: the newest epoch in the log (or 0) and its facts."""

    epoch: int
    leads: Mapping[str, Any]


class Copied(NamedTuple):
    """The result of COPY. The node has fetched a copy from `source`."""

    source: str


class Failed(NamedTuple):
    """An action failed with one of the errors in FAILURES.

    If the shared log is inconsistent, `recovery_advice` tells the operator what to do. `where` is the
    unreadable record that caused the failure, or None.
    """

    act: Act
    error: Exception
    recovery_advice: str = ""
    where: Unreadable | None = None


class RecordTaken(NamedTuple):
    """A shared log record has been read and applied. `step` is the outcome."""

    step: Step


class Tick(NamedTuple):
    """A timer tick. On a leader: the start of the last confirmed append, and the changed facts."""

    proven_ms: int = 0
    news: Mapping[str, Any] = NO_NEWS


class ProofWanted(NamedTuple):
    """A client response requires proof of leadership."""


class SteppedDown(NamedTuple):
    """The core was released after an unconfirmed append or a disk failure."""

    error: Exception


class Leave(NamedTuple):
    """The process is shutting down and must stop following or leading."""


class Move(NamedTuple):
    """An operator command to move the leadership to the node `to`, or to any node if empty."""

    to: str


class Order(NamedTuple):
    """An operator command to be written in a BEAT record.

    The state machine ignores `written`, which is for the node.
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
"""The stages that accept each input. Other inputs are accepted except in HALTED and LEFT."""
AWAITED_ACTS: Final[Mapping[Act, frozenset[Stage]]] = {
    Act.OPEN: frozenset((Stage.OPENING,)),
    Act.READ: frozenset((Stage.READING,)),
    Act.SERVE: frozenset((Stage.STARTING,)),
    Act.COPY: frozenset((Stage.COPYING,)),
    Act.HAND_OVER: frozenset((Stage.HANDING_OVER,)),
    **dict.fromkeys((Act.CATCH_UP, Act.APPEND_EPOCH, Act.CONFIRM), frozenset(STANDING)),
}
"""The stages that accept a failure of each action. All stages accept a LOOK failure."""
