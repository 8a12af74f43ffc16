"""The inputs of the election: results of acts, records of the shared log, ticks and commands.

Each input is an immutable value from a worker thread or the event loop. The state machine does not read
fields of type Any, which are meant for the node or for a later act.
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
    """Return the position of a fold in the shared log, and its numbers of skipped records."""
    return ReadProgress(fold.end, fold.next_offset, fold.foreign_count, fold.repeated_count)


class Opened(NamedTuple):
    """The result of OPEN: the epoch in the checkpoint, or 0, its facts, the position and the replica."""

    epoch: int
    leads: Mapping[str, Any]
    seen: ReadProgress = ReadProgress()
    replica: Any = None


class ReadDone(NamedTuple):
    """The result of READ and CATCH_UP: the number of records, 0 at the log's end, and the node's state."""

    records: int
    seen: ReadProgress
    is_founded: bool
    is_listed: bool
    """Whether the shared log contains a holding of this node."""
    unfit: str
    """The reason why this node is unfit to lead, or "" if this node is fit."""


class Appended(NamedTuple):
    """The result of APPEND_EPOCH: the candidate and the offset of its EPOCH, or None for a lost election."""

    candidacy: tuple[Any, int] | None


class Confirmed(NamedTuple):
    """The result of CONFIRM: whether the EPOCH is the newest, or None if it was not read back yet."""

    has_won: bool | None


class Begun(NamedTuple):
    """The result of SERVE: the start time of the newest confirmed append, in ms of the monotonic clock."""

    proven_ms: int


class Beaten(NamedTuple):
    """The result of BEAT: the start time of the newest confirmed append, and the changed facts."""

    proven_ms: int
    news: Mapping[str, Any] = NO_NEWS


class LookDone(NamedTuple):
    """The result of LOOK: the state and, from a leader, a fit follower and the complaints by node."""

    seen: ReadProgress
    has_room: bool = True
    shown: Any = None
    unfit: str = ""
    fitter: str = ""
    complaints: tuple[tuple[str, tuple[int, int]], ...] = ()


class ClientsAsked(NamedTuple):
    """The result of ASK_CLIENTS: whether any client has responded after a complaint of `node`."""

    node: str
    is_reached: bool


class Ended(NamedTuple):
    """The result of HAND_OVER: the node no longer serves clients."""


class CopiesFound(NamedTuple):
    """An intermediate result of COPY: the newest epoch in the log, or 0, and the facts in its EPOCH."""

    epoch: int
    leads: Mapping[str, Any]


class Copied(NamedTuple):
    """The result of COPY: the node has fetched a copy from `source`."""

    source: str


class Failed(NamedTuple):
    """The failure of an act with one of the errors in FAILURES.

    The field `recovery_advice` contains advice for the operator if the shared log is inconsistent, and
    `where` is the unreadable record, if any.
    """

    act: Act
    error: Exception
    recovery_advice: str = ""
    where: Unreadable | None = None


class RecordTaken(NamedTuple):
    """A record of the shared log that the node has read and applied, with the outcome `step`."""

    step: Step


class Tick(NamedTuple):
    """A tick, with the start time of the newest confirmed append and the changed facts on a leader."""

    proven_ms: int = 0
    news: Mapping[str, Any] = NO_NEWS


class ProofWanted(NamedTuple):
    """The request for a proof of leadership, because a response to a client waits for the proof."""


class SteppedDown(NamedTuple):
    """The loss of the core after an unconfirmed append or a disk failure."""

    error: Exception


class Leave(NamedTuple):
    """The request to stop following or leading, because the process ends."""


class Move(NamedTuple):
    """An operator's command to transfer the leadership to the node `to`, or to any node if `to` is empty."""

    to: str


class Order(NamedTuple):
    """An operator's command, written to the log as facts in a BEAT; only the node uses `written`."""

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
"""The stages that accept each input; unlisted inputs are valid in all stages except HALTED and LEFT."""
AWAITED_ACTS: Final[Mapping[Act, frozenset[Stage]]] = {
    Act.OPEN: frozenset((Stage.OPENING,)),
    Act.READ: frozenset((Stage.READING,)),
    Act.SERVE: frozenset((Stage.STARTING,)),
    Act.COPY: frozenset((Stage.COPYING,)),
    Act.HAND_OVER: frozenset((Stage.HANDING_OVER,)),
    **dict.fromkeys((Act.CATCH_UP, Act.APPEND_EPOCH, Act.CONFIRM), frozenset(STANDING)),
}
"""The stages that accept the failure of each act; a failure of LOOK is valid in all stages."""
