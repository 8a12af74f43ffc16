"""The inputs of the election: action results, shared log records, ticks, and commands.

Inputs are immutable. Worker threads and the event loop create them. The state machine ignores fields of type
Any, which are used by the node or a later action.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from services.cluster.election.table import CANDIDATE_STAGES, ActionType, Stage
from sharedlog.fold import Fold, Step
from sharedlog.holdings import Unreadable

NO_FACTS: Final[Mapping[str, Any]] = MappingProxyType({})


class ReadProgress(NamedTuple):
    """A node's read position in the shared log, and the number of records it has skipped."""

    end: int = 0
    next_record: int = 0
    foreign_lines: int = 0
    repeated_records: int = 0


def read_progress_of(fold: Fold) -> ReadProgress:
    """Return the read position of a `Fold`, and the number of records it has skipped."""
    return ReadProgress(fold.end, fold.next_offset, fold.foreign_count, fold.repeated_count)


class ReplicaOpened(NamedTuple):
    """The result of OPEN_REPLICA: the checkpoint's epoch (or 0) and facts, position, and replica."""

    epoch: int
    leads: Mapping[str, Any]
    seen: ReadProgress = ReadProgress()
    replica: Any = None


class ReadCompleted(NamedTuple):
    """The result of READ_LOG or CATCH_UP.

    `records` is the number of records read, or 0 at the end of the log.
    """

    records: int
    seen: ReadProgress
    is_founded: bool
    is_listed: bool
    """Whether the shared log contains this node's holding."""
    unfit: str
    """Why this node is unfit to lead, or "" if it is fit."""


class EpochAppended(NamedTuple):
    """The result of APPEND_EPOCH: the candidate and its EPOCH offset, or None if it was refused."""

    candidacy: tuple[Any, int] | None


class EpochConfirmed(NamedTuple):
    """The result of CONFIRM_EPOCH. `has_won` is None until the EPOCH record has been read back."""

    has_won: bool | None


class LeadershipGained(NamedTuple):
    """The result of SERVE_CLIENTS. `proven_ms` is the monotonic start time of the last confirmed append."""

    proven_ms: int


class HeartbeatAppended(NamedTuple):
    """The result of APPEND_BEAT: the start time of the last confirmed append, and the changed facts."""

    proven_ms: int
    changed_facts: Mapping[str, Any] = NO_FACTS


class HealthCheckCompleted(NamedTuple):
    """The result of CHECK_HEALTH. A leader also reports the fittest follower and all complaints."""

    seen: ReadProgress
    has_room: bool = True
    identity: Any = None
    unfit: str = ""
    fitter: str = ""
    complaints: tuple[tuple[str, tuple[int, int]], ...] = ()


class ClientProbeCompleted(NamedTuple):
    """The result of PROBE_CLIENTS: whether any client responded after `node` complained."""

    node: str
    is_reached: bool


class LeadershipEnded(NamedTuple):
    """The result of HAND_OVER. The node no longer serves clients."""


class CopiesFound(NamedTuple):
    """An intermediate result of FETCH_COPY: the newest epoch in the log (or 0) and its facts."""

    epoch: int
    leads: Mapping[str, Any]


class CopyFetched(NamedTuple):
    """The result of FETCH_COPY. The node has fetched a copy from `source`."""

    source: str


class ActionFailed(NamedTuple):
    """An action failed with one of the errors in FAILURES.

    If the shared log is inconsistent, `recovery_advice` tells the operator what to do. `where` is the
    unreadable record that caused the failure, or None.
    """

    action: ActionType
    error: Exception
    recovery_advice: str = ""
    where: Unreadable | None = None


class RecordApplied(NamedTuple):
    """A shared log record has been read and applied. `step` is the outcome."""

    step: Step


class Tick(NamedTuple):
    """A timer tick. On the leader: the start time of the last confirmed append, and the changed facts."""

    proven_ms: int = 0
    changed_facts: Mapping[str, Any] = NO_FACTS


class ProofRequested(NamedTuple):
    """A response to a client requires proof of leadership."""


class CoreReleased(NamedTuple):
    """The core was released because of an unconfirmed append or a disk failure."""

    error: Exception


class ShutdownRequested(NamedTuple):
    """The process is shutting down, so the node must stop following or leading."""


class LeadershipTransferRequested(NamedTuple):
    """An operator command to transfer the leadership to node `to`, or to any node if `to` is empty."""

    to: str


class BeatRequest(NamedTuple):
    """An operator command to be written to a BEAT record.

    The state machine ignores `written`, which the node uses.
    """

    facts: Mapping[str, Any]
    written: Any = None


Input = (
    ReplicaOpened
    | ReadCompleted
    | EpochAppended
    | EpochConfirmed
    | LeadershipGained
    | HeartbeatAppended
    | HealthCheckCompleted
    | ClientProbeCompleted
    | LeadershipEnded
    | CopiesFound
    | CopyFetched
    | ActionFailed
    | RecordApplied
    | Tick
    | ProofRequested
    | CoreReleased
    | ShutdownRequested
    | LeadershipTransferRequested
    | BeatRequest
)
INPUT_STAGES: Final[Mapping[type[Any], frozenset[Stage]]] = {
    ReplicaOpened: frozenset((Stage.OPENING,)),
    ReadCompleted: frozenset((Stage.READING, Stage.CATCHING_UP)),
    EpochAppended: frozenset((Stage.APPENDING,)),
    EpochConfirmed: frozenset((Stage.CONFIRMING,)),
    LeadershipGained: frozenset((Stage.STARTING,)),
    LeadershipEnded: frozenset((Stage.HANDING_OVER,)),
    **dict.fromkeys((CopiesFound, CopyFetched), frozenset((Stage.COPYING,))),
    CoreReleased: frozenset((Stage.STARTING, Stage.LEADING)),
    **dict.fromkeys(
        (HeartbeatAppended, ClientProbeCompleted, ProofRequested, LeadershipTransferRequested, BeatRequest),
        frozenset((Stage.LEADING,)),
    ),
}
"""The stages that accept each input. Other inputs are accepted except in HALTED and LEFT."""
FAILURE_STAGES: Final[Mapping[ActionType, frozenset[Stage]]] = {
    ActionType.OPEN_REPLICA: frozenset((Stage.OPENING,)),
    ActionType.READ_LOG: frozenset((Stage.READING,)),
    ActionType.SERVE_CLIENTS: frozenset((Stage.STARTING,)),
    ActionType.FETCH_COPY: frozenset((Stage.COPYING,)),
    ActionType.HAND_OVER: frozenset((Stage.HANDING_OVER,)),
    **dict.fromkeys(
        (ActionType.CATCH_UP, ActionType.APPEND_EPOCH, ActionType.CONFIRM_EPOCH), frozenset(CANDIDATE_STAGES)
    ),
}
"""The stages that accept a failure of each action. All stages accept a CHECK_HEALTH failure."""
