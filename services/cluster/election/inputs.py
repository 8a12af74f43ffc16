"""The inputs of the election state machine, such as action results, shared log records and commands.

Inputs are immutable. Worker threads and the event loop create them. The state machine never reads fields of
type Any, which only the node or a later action uses.
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
    """A node's read position in the shared log, and the numbers of records that it has skipped."""

    end: int = 0
    next_record: int = 0
    foreign_lines: int = 0
    repeated_records: int = 0


def read_progress_of(fold: Fold) -> ReadProgress:
    """Return the read position of a `Fold`, and the numbers of records that it has skipped."""
    return ReadProgress(fold.end, fold.next_offset, fold.foreign_count, fold.repeated_count)


class ReplicaOpened(NamedTuple):
    """The result of OPEN_REPLICA.

    The field `epoch` is the newest epoch in the checkpoint, or 0. The mapping `leads` contains the fields of
    the EPOCH record of that epoch.
    """

    epoch: int
    leads: Mapping[str, Any]
    seen: ReadProgress = ReadProgress()
    replica: Any = None


class ReadCompleted(NamedTuple):
    """The result of READ_LOG or CATCH_UP.

    The field `records` is the number of records that were read, or 0 at the end of the log.
    """

    records: int
    seen: ReadProgress
    is_founded: bool
    is_listed: bool
    """Whether the shared log contains a `Holding` of this node."""
    unfit: str
    """The reason why this node is unfit to lead, or "" if the node is fit."""


class EpochAppended(NamedTuple):
    """The result of APPEND_EPOCH: the candidate and the offset of its EPOCH record.

    The field is None if the shared log has leader records that this node has not read.
    """

    candidacy: tuple[Any, int] | None


class EpochConfirmed(NamedTuple):
    """The result of CONFIRM_EPOCH. The field is None until the EPOCH record has been read back."""

    has_won: bool | None


class LeadershipGained(NamedTuple):
    """The result of SERVE_CLIENTS.

    The field `proven_ms` is the monotonic start time of the last confirmed append.
    """

    proven_ms: int


class HeartbeatAppended(NamedTuple):
    """The result of APPEND_BEAT.

    The field `proven_ms` is the monotonic start time of the last confirmed append. The mapping
    `changed_facts` contains the leader fields that have not been announced yet.
    """

    proven_ms: int
    changed_facts: Mapping[str, Any] = NO_FACTS


class HealthCheckCompleted(NamedTuple):
    """The result of CHECK_HEALTH. Only a leader sets `unfit`, `fitter` and `complaints`."""

    seen: ReadProgress
    has_room: bool = True
    identity: Any = None
    unfit: str = ""
    fitter: str = ""
    complaints: tuple[tuple[str, tuple[int, int]], ...] = ()


class ClientProbeCompleted(NamedTuple):
    """The result of PROBE_CLIENTS. The flag is true if any client responded after a complaint from `node`."""

    node: str
    is_reached: bool


class LeadershipEnded(NamedTuple):
    """The result of HAND_OVER. The node has stopped serving clients."""


class CopiesFound(NamedTuple):
    """An intermediate result of FETCH_COPY: the newest epoch in the log and its EPOCH fields."""

    epoch: int
    leads: Mapping[str, Any]


class CopyFetched(NamedTuple):
    """The result of FETCH_COPY. The copy was fetched from `source`."""

    source: str


class ActionFailed(NamedTuple):
    """The failure of an action with one of the errors in FAILURES.

    If the shared log is inconsistent, the field `recovery_advice` contains advice for the operator. The field
    `where` is the unreadable record that caused the failure, or None.
    """

    action: ActionType
    error: Exception
    recovery_advice: str = ""
    where: Unreadable | None = None


class RecordApplied(NamedTuple):
    """A shared log record that was read and applied, with the outcome `step`."""

    step: Step


class Tick(NamedTuple):
    """A timer tick.

    On the leader, a tick has the same fields as `HeartbeatAppended`.
    """

    proven_ms: int = 0
    changed_facts: Mapping[str, Any] = NO_FACTS


class ProofRequested(NamedTuple):
    """A request for a proof of leadership, which a pending response to a client requires."""


class CoreReleased(NamedTuple):
    """The release of the core after an unconfirmed append or a disk failure."""

    error: Exception


class ShutdownRequested(NamedTuple):
    """A request to stop following or leading, because the process is shutting down."""


class LeadershipTransferRequested(NamedTuple):
    """An operator command to transfer the leadership to the node `to`, or to any node if `to` is empty."""

    to: str


class BeatRequest(NamedTuple):
    """A request to append a BEAT record with the fields `facts`, for example for an operator command.

    The state machine does not read the field `written`. The node sets this future when the append is
    confirmed.
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
"""The stages that accept each input. Inputs that are not listed are accepted in every stage.

As an exception, HALTED accepts only `ShutdownRequested`, and LEFT accepts no input.
"""
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
"""The stages that accept a failure of each action. A CHECK_HEALTH failure is accepted in every stage."""
