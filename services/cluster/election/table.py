"""The transition table of the election.

For an overview, and for how inputs cause events, see the module `machine`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum
from typing import Any, Final, NamedTuple

from services.cluster.election.candidacy_timer import BEAT_MS


class Role(StrEnum):
    """A node's role, as shown in its status, probes and metrics."""

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
"""The states of the state machine. Each state except LEFT corresponds to a role (`ROLES`)."""
Event = Enum(
    "Event",
    "OPENED MORE CAUGHT_UP UNANSWERED SILENT CURRENT APPENDED WON LOST SERVED OVER CLOSED COPIED NO_COPY "
    "NEEDS_COPY VOID HALT TICK LEAVE",
)
"""The events of the state machine."""


class Act(Enum):
    """The actions of a node. Each value describes the action and its argument."""

    OPEN = "open the replica at its newest checkpoint"
    READ = "read the shared log, fold it, write a checkpoint if due: whether to check the past first"
    CATCH_UP = "read the shared log and fold it"
    APPEND_EPOCH = "append an EPOCH: its holder"
    CONFIRM = "read on, and compare the EPOCH with the newest: the candidate and the offset of its EPOCH"
    SERVE = "serve clients: why the node stood"
    HAND_OVER = "stop serving, and write that the node leaves: the successor, empty for any"
    COPY = "fetch the copy of another node: where the log cannot be read on, if that is why"
    LOOK = "look after copy, disk, clock and log: whether all was read since the replica was opened"
    COMPLAIN = "note that the leader answers no client: (epoch, number)"
    BEAT = "write a BEAT: an `Order`"
    ASK_CLIENTS = "ask whether any client is reached: the node that complains"
    WAIT = "give a tick after some time: in seconds"
    SAY = "write a line to the log: a `Line`"
    HALT = "do nothing more: the sentence"
    END = "end: the node has left"


BESIDE: Final = frozenset((Act.LOOK, Act.COMPLAIN, Act.BEAT, Act.ASK_CLIENTS))
"""The actions that can run concurrently with the stage's action."""


class Wait(Enum):
    """The reason for a WAIT. Determines its duration (`SECONDS`)."""

    POLL = "for new records"
    BEHIND = "after a failure"
    COPY_AGAIN = "after no copy was fetched"
    BEAT = "between ticks of a leader"


SECONDS: Final = {Wait.POLL: 0.05, Wait.BEHIND: 0.5, Wait.COPY_AGAIN: 5.0, Wait.BEAT: BEAT_MS / 1000 / 3}
LOOK_SECONDS: Final = 1.0
"""Interval in seconds between checks of the copy. A leader also trims the shared log."""
EPOCH_SECONDS: Final = 3.0
"""Maximum time in seconds for a candidate to read back its EPOCH record."""


class Row(NamedTuple):
    """A row of the transition table: the next stage, its action, and the reason for a WAIT."""

    stage: Stage
    act: Act
    wait: Wait | None = None


class Output(NamedTuple):
    """An action for the node to perform. `Act` describes its argument."""

    act: Act
    argument: Any = None


class Line(NamedTuple):
    """A line for the node's log."""

    level: str
    event: str
    facts: dict[str, Any]


STANDING: Final = (Stage.CATCHING_UP, Stage.APPENDING, Stage.CONFIRMING)
WAITING: Final = (Stage.REOPENING, Stage.COPY_PAUSED, Stage.IDLE, Stage.HALTED)
_AT_WORK: Final = (Stage.OPENING, Stage.READING, *STANDING, Stage.STARTING, Stage.HANDING_OVER)
HOLDS_RIGHT: Final = frozenset(
    (Stage.APPENDING, Stage.CONFIRMING, Stage.STARTING, Stage.LEADING, Stage.HANDING_OVER)
)
"""The stages in which a node may hold the right to lead. It leaves only after these stages."""
ROLES: Final[Mapping[Stage, Role]] = {
    **dict.fromkeys((Stage.OPENING, Stage.REOPENING, Stage.HANDING_OVER), Role.OPENING),
    **dict.fromkeys((Stage.COPYING, Stage.COPY_PAUSED), Role.COPYING),
    **dict.fromkeys((Stage.READING, Stage.IDLE), Role.FOLLOWING),
    **dict.fromkeys((*STANDING, Stage.STARTING), Role.STANDING),
    Stage.LEADING: Role.LEADING,
    Stage.HALTED: Role.HALTED,
}
"""The role in each stage. A node that has left keeps its last role."""
_OPEN: Final = Row(Stage.OPENING, Act.OPEN)
_READ: Final = Row(Stage.READING, Act.READ)
_POLL: Final = Row(Stage.IDLE, Act.WAIT, Wait.POLL)


def _rows(stages: Iterable[Stage], event: Event, row: Row) -> dict[tuple[Stage, Event], Row]:
    """Return a mapping of `event` to the same row in each of the stages."""
    return {(stage, event): row for stage in stages}


TABLE: Final[Mapping[tuple[Stage, Event], Row]] = {
    (Stage.OPENING, Event.OPENED): _READ,
    (Stage.READING, Event.MORE): _READ,
    (Stage.READING, Event.CAUGHT_UP): _POLL,
    (Stage.READING, Event.UNANSWERED): Row(Stage.IDLE, Act.WAIT, Wait.BEHIND),
    (Stage.IDLE, Event.TICK): _READ,
    (Stage.READING, Event.SILENT): Row(Stage.CATCHING_UP, Act.CATCH_UP),
    (Stage.CATCHING_UP, Event.MORE): Row(Stage.CATCHING_UP, Act.CATCH_UP),
    (Stage.CATCHING_UP, Event.CURRENT): Row(Stage.APPENDING, Act.APPEND_EPOCH),
    (Stage.APPENDING, Event.APPENDED): Row(Stage.CONFIRMING, Act.CONFIRM),
    (Stage.CONFIRMING, Event.MORE): Row(Stage.CONFIRMING, Act.CONFIRM),
    **_rows(STANDING, Event.LOST, _POLL),
    (Stage.CONFIRMING, Event.WON): Row(Stage.STARTING, Act.SERVE),
    (Stage.STARTING, Event.SERVED): Row(Stage.LEADING, Act.WAIT, Wait.BEAT),
    (Stage.LEADING, Event.TICK): Row(Stage.LEADING, Act.WAIT, Wait.BEAT),
    (Stage.LEADING, Event.OVER): Row(Stage.HANDING_OVER, Act.HAND_OVER),
    (Stage.HANDING_OVER, Event.CLOSED): _OPEN,
    (Stage.COPYING, Event.COPIED): _OPEN,
    **_rows((Stage.REOPENING, Stage.COPY_PAUSED), Event.TICK, _OPEN),
    **_rows(_AT_WORK, Event.NEEDS_COPY, Row(Stage.COPYING, Act.COPY)),
    **_rows((*_AT_WORK, Stage.COPYING), Event.NO_COPY, Row(Stage.COPY_PAUSED, Act.WAIT, Wait.COPY_AGAIN)),
    **_rows(_AT_WORK, Event.VOID, Row(Stage.REOPENING, Act.WAIT, Wait.BEHIND)),
    **_rows((*_AT_WORK, Stage.COPYING), Event.HALT, Row(Stage.HALTED, Act.HALT)),
    **_rows(WAITING, Event.LEAVE, Row(Stage.LEFT, Act.END)),
}
"""The rows by stage and event. Events without a row are ignored."""
