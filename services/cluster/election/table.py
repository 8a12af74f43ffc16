"""The transition table of the election state machine.

The module `machine` contains an overview and maps inputs to events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum
from typing import Any, Final, NamedTuple

from services.cluster.election.candidacy_timer import HEARTBEAT_MS


class Role(StrEnum):
    """The role of a node in its status, probes, and metrics."""

    OPENING = "opening"
    COPYING = "copying"
    FOLLOWING = "following"
    STANDING = "standing"
    LEADING = "leading"
    HALTED = "halted"


Stage = Enum(
    "Stage",
    "OPENING REOPENING COPYING COPY_PAUSED READING IDLE CATCHING_UP APPENDING CONFIRMING STARTING LEADING "
    "HANDING_OVER HALTED LEFT",
)
"""The states of the state machine. Each state except LEFT has a role (`STAGE_ROLES`)."""
Event = Enum(
    "Event",
    "REPLICA_OPENED MORE_RECORDS CAUGHT_UP ENGINE_UNRESPONSIVE LEADER_SILENT LOG_END_REACHED EPOCH_APPENDED "
    "ELECTION_WON ELECTION_LOST LEADERSHIP_GAINED LEADERSHIP_RELINQUISHED LEADERSHIP_ENDED COPY_FETCHED "
    "COPY_UNAVAILABLE COPY_NEEDED REPLICA_UNUSABLE HALT_REQUIRED TICK SHUTDOWN_REQUESTED",
)
"""The events of the state machine."""


class ActionType(Enum):
    """The actions of a node. The value of each member describes the action and its argument."""

    OPEN_REPLICA = "open the replica at its newest checkpoint"
    READ_LOG = "read the shared log, fold it, write a checkpoint if due: whether to check the past first"
    CATCH_UP = "read the shared log and fold it"
    APPEND_EPOCH = "append an EPOCH: its holder"
    CONFIRM_EPOCH = (
        "read on, and compare the EPOCH with the newest: the candidate and the offset of its EPOCH"
    )
    SERVE_CLIENTS = "serve clients: why the node stood"
    HAND_OVER = "stop serving, and write that the node leaves: the successor, empty for any"
    FETCH_COPY = "fetch the copy of another node: where the log cannot be read on, if that is why"
    CHECK_HEALTH = "look after copy, disk, clock and log: whether all was read since the replica was opened"
    APPEND_COMPLAINT = "note that the leader answers no client: (epoch, number)"
    APPEND_BEAT = "write a BEAT: a `BeatRequest`"
    PROBE_CLIENTS = "ask whether any client is reached: the node that complains"
    WAIT = "give a tick after some time: in seconds"
    WRITE_LOG_LINE = "write a line to the log: a `LogLine`"
    HALT = "do nothing more: the sentence"
    END_PROCESS = "end: the node has left"


CONCURRENT_ACTIONS: Final = frozenset(
    (ActionType.CHECK_HEALTH, ActionType.APPEND_COMPLAINT, ActionType.APPEND_BEAT, ActionType.PROBE_CLIENTS)
)
"""The actions that can run concurrently with the action of the stage."""


class Wait(Enum):
    """The reason for a WAIT, which determines its duration (`WAIT_SECONDS`)."""

    POLL = "for new records"
    BEHIND = "after a failure"
    COPY_AGAIN = "after no copy was fetched"
    BEAT = "between ticks of a leader"


WAIT_SECONDS: Final = {
    Wait.POLL: 0.05,
    Wait.BEHIND: 0.5,
    Wait.COPY_AGAIN: 5.0,
    Wait.BEAT: HEARTBEAT_MS / 1000 / 3,
}
HEALTH_CHECK_SECONDS: Final = 1.0
"""Interval in seconds between two health checks. A leader's health check also trims the shared log."""
EPOCH_CONFIRMATION_SECONDS: Final = 3.0
"""Time limit in seconds for a candidate to read back its EPOCH record."""


class Transition(NamedTuple):
    """A row of the transition table, with the next stage, its action, and the reason for a WAIT."""

    stage: Stage
    action: ActionType
    wait: Wait | None = None


class Output(NamedTuple):
    """An action for the node to perform. The members of `ActionType` describe the argument."""

    action: ActionType
    argument: Any = None


class LogLine(NamedTuple):
    """A line for the log of this process."""

    level: str
    event: str
    facts: dict[str, Any]


CANDIDATE_STAGES: Final = (Stage.CATCHING_UP, Stage.APPENDING, Stage.CONFIRMING)
WAITING_STAGES: Final = (Stage.REOPENING, Stage.COPY_PAUSED, Stage.IDLE, Stage.HALTED)
_WORKING_STAGES: Final = (Stage.OPENING, Stage.READING, *CANDIDATE_STAGES, Stage.STARTING, Stage.HANDING_OVER)
LEADERSHIP_STAGES: Final = frozenset(
    (Stage.APPENDING, Stage.CONFIRMING, Stage.STARTING, Stage.LEADING, Stage.HANDING_OVER)
)
"""The stages in which a node may have the right to lead. A node does not exit in these stages."""
STAGE_ROLES: Final[Mapping[Stage, Role]] = {
    **dict.fromkeys((Stage.OPENING, Stage.REOPENING, Stage.HANDING_OVER), Role.OPENING),
    **dict.fromkeys((Stage.COPYING, Stage.COPY_PAUSED), Role.COPYING),
    **dict.fromkeys((Stage.READING, Stage.IDLE), Role.FOLLOWING),
    **dict.fromkeys((*CANDIDATE_STAGES, Stage.STARTING), Role.STANDING),
    Stage.LEADING: Role.LEADING,
    Stage.HALTED: Role.HALTED,
}
"""The role of a node in each stage. A node that has left keeps its last role."""
_OPEN: Final = Transition(Stage.OPENING, ActionType.OPEN_REPLICA)
_READ: Final = Transition(Stage.READING, ActionType.READ_LOG)
_POLL: Final = Transition(Stage.IDLE, ActionType.WAIT, Wait.POLL)


def _rows(stages: Iterable[Stage], event: Event, row: Transition) -> dict[tuple[Stage, Event], Transition]:
    """Return `row` for each stage in `stages`, by stage and event."""
    return {(stage, event): row for stage in stages}


TRANSITIONS: Final[Mapping[tuple[Stage, Event], Transition]] = {
    (Stage.OPENING, Event.REPLICA_OPENED): _READ,
    (Stage.READING, Event.MORE_RECORDS): _READ,
    (Stage.READING, Event.CAUGHT_UP): _POLL,
    (Stage.READING, Event.ENGINE_UNRESPONSIVE): Transition(Stage.IDLE, ActionType.WAIT, Wait.BEHIND),
    (Stage.IDLE, Event.TICK): _READ,
    (Stage.READING, Event.LEADER_SILENT): Transition(Stage.CATCHING_UP, ActionType.CATCH_UP),
    (Stage.CATCHING_UP, Event.MORE_RECORDS): Transition(Stage.CATCHING_UP, ActionType.CATCH_UP),
    (Stage.CATCHING_UP, Event.LOG_END_REACHED): Transition(Stage.APPENDING, ActionType.APPEND_EPOCH),
    (Stage.APPENDING, Event.EPOCH_APPENDED): Transition(Stage.CONFIRMING, ActionType.CONFIRM_EPOCH),
    (Stage.CONFIRMING, Event.MORE_RECORDS): Transition(Stage.CONFIRMING, ActionType.CONFIRM_EPOCH),
    **_rows(CANDIDATE_STAGES, Event.ELECTION_LOST, _POLL),
    (Stage.CONFIRMING, Event.ELECTION_WON): Transition(Stage.STARTING, ActionType.SERVE_CLIENTS),
    (Stage.STARTING, Event.LEADERSHIP_GAINED): Transition(Stage.LEADING, ActionType.WAIT, Wait.BEAT),
    (Stage.LEADING, Event.TICK): Transition(Stage.LEADING, ActionType.WAIT, Wait.BEAT),
    (Stage.LEADING, Event.LEADERSHIP_RELINQUISHED): Transition(Stage.HANDING_OVER, ActionType.HAND_OVER),
    (Stage.HANDING_OVER, Event.LEADERSHIP_ENDED): _OPEN,
    (Stage.COPYING, Event.COPY_FETCHED): _OPEN,
    **_rows((Stage.REOPENING, Stage.COPY_PAUSED), Event.TICK, _OPEN),
    **_rows(_WORKING_STAGES, Event.COPY_NEEDED, Transition(Stage.COPYING, ActionType.FETCH_COPY)),
    **_rows(
        (*_WORKING_STAGES, Stage.COPYING),
        Event.COPY_UNAVAILABLE,
        Transition(Stage.COPY_PAUSED, ActionType.WAIT, Wait.COPY_AGAIN),
    ),
    **_rows(
        _WORKING_STAGES, Event.REPLICA_UNUSABLE, Transition(Stage.REOPENING, ActionType.WAIT, Wait.BEHIND)
    ),
    **_rows(
        (*_WORKING_STAGES, Stage.COPYING), Event.HALT_REQUIRED, Transition(Stage.HALTED, ActionType.HALT)
    ),
    **_rows(WAITING_STAGES, Event.SHUTDOWN_REQUESTED, Transition(Stage.LEFT, ActionType.END_PROCESS)),
}
"""The rows of the table, by stage and event. Events without a row are ignored."""
