"""The table of the election: the states of a node, what it does in each, and what follows from the answer.

See `services.cluster.election` for the picture, and for what makes an event of an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum
from typing import Any, Final, NamedTuple

from services.cluster.silence import BEAT_MS


class Role(StrEnum):
    """What a node does, as status, probes and metrics say it."""

    OPENING = "opening"
    COPYING = "copying"
    FOLLOWING = "following"
    STANDING = "standing"
    LEADING = "leading"
    HALTED = "halted"


class Stage(Enum):
    """The states of the machine; each is a part of a role (`ROLES`)."""

    OPENING = "opening"
    REOPENING = "reopening"
    HANDING_OVER = "handing over"
    STOPPING = "stopping"
    FINDING = "finding"
    FETCHING = "fetching"
    COPY_PAUSED = "copy paused"
    CHECKING = "checking"
    READING = "reading"
    CHECKPOINTING = "checkpointing"
    COMPLAINING = "complaining"
    IDLE = "idle"
    PAUSED = "paused"
    CATCHING_UP = "catching up"
    APPENDING = "appending"
    CONFIRMING = "confirming"
    COMPARING = "comparing"
    STARTING = "starting"
    LEADING = "leading"
    HALTED = "halted"
    LEFT = "left"


class Event(Enum):
    """What an input comes to."""

    OPENED = "opened"
    KEPT = "kept"
    MORE = "more"
    CHECKPOINT_DUE = "checkpoint due"
    COMPLAINT_DUE = "complaint due"
    CAUGHT_UP = "caught up"
    SILENT = "silent"
    CURRENT = "current"
    APPENDED = "appended"
    READ_BACK = "read back"
    LOST = "lost"
    WON = "won"
    SERVED = "served"
    BEAT_DUE = "beat due"
    LOOK_DUE = "look due"
    UNREACHED = "unreached"
    OVER = "over"
    CLOSED = "closed"
    FOUND = "found"
    COPIED = "copied"
    NO_COPY = "no copy"
    UNANSWERED = "unanswered"
    NEEDS_COPY = "needs copy"
    VOID = "void"
    HALT = "halt"
    TICK = "tick"
    TICK_CHECK = "tick, check first"
    LEAVE = "leave"


class Act(Enum):
    """What the node is to do; an act with an argument says so."""

    OPEN = "open the replica at its newest checkpoint"
    REQUIRE_KEPT = "see that the engine still has what was read"
    READ = "read the shared log and fold it"
    CHECKPOINT = "write a checkpoint"
    COMPLAIN = "note that the leader answers no client: (epoch, number)"
    APPEND_EPOCH = "append an EPOCH: its holder"
    COMPARE = "see whether that EPOCH is the newest, and what was read before is still there"
    SERVE = "let the core decide, and serve clients: why the node stood"
    BEAT = "write a BEAT: a `Beat`"
    LOOK = "look after copy, disk, clock and log: whether all was read since the replica was opened"
    ASK_CLIENTS = "ask whether any client is reached: the node that complains"
    HAND_OVER = "stop serving, and say that the node leaves: to which node, if to one"
    STOP_SERVING = "stop serving, and say nothing"
    FIND_COPIES = "read which nodes hold a copy"
    FETCH_COPY = "fetch a copy"
    WAIT = "give a tick after some time: in seconds"
    SAY = "write a line to the log: a `Line`"
    HALT = "do nothing more: the sentence"
    END = "end: the node has left"


class Wait(Enum):
    """What a WAIT is for."""

    POLL = "poll"
    BEHIND = "behind"
    COPY_AGAIN = "copy again"
    BEAT = "beat"


SECONDS: Final = {Wait.POLL: 0.05, Wait.BEHIND: 0.5, Wait.COPY_AGAIN: 5.0, Wait.BEAT: BEAT_MS / 1000 / 3}
"""How long a node waits: for new records, after a failure, after no copy was to be had, between BEATs."""
LOOK_SECONDS: Final = 1.0
"""How often a node looks after its copy, and a leader after the trim."""
EPOCH_SECONDS: Final = 3.0
"""How long a candidate waits for its EPOCH to be read back."""


class Row(NamedTuple):
    """A row of the table: the next state, its act, and what a WAIT is for."""

    stage: Stage
    act: Act | None = None
    wait: Wait | None = None


class Output(NamedTuple):
    """An act to be carried out, with its argument as `Act` says."""

    act: Act
    argument: Any = None


class Line(NamedTuple):
    """A line for the log."""

    level: str
    event: str
    facts: dict[str, Any]


STANDING: Final = (Stage.CATCHING_UP, Stage.APPENDING, Stage.CONFIRMING, Stage.COMPARING)
AFTER_READ: Final = (Stage.READING, Stage.CHECKPOINTING, Stage.COMPLAINING)
COPYING: Final = (Stage.FINDING, Stage.FETCHING)
WAITING: Final = (Stage.REOPENING, Stage.COPY_PAUSED, Stage.IDLE, Stage.PAUSED, Stage.HALTED)
HOLDS_RIGHT: Final = frozenset(
    (
        *(Stage.APPENDING, Stage.CONFIRMING, Stage.COMPARING, Stage.STARTING),
        *(Stage.LEADING, Stage.HANDING_OVER, Stage.STOPPING),
    )
)
"""Stages in which a node has a right to lead, or may have: one that is to leave goes on through them."""
ROLES: Final[Mapping[Stage, Role]] = {
    **dict.fromkeys((Stage.OPENING, Stage.REOPENING, Stage.HANDING_OVER, Stage.STOPPING), Role.OPENING),
    **dict.fromkeys((*COPYING, Stage.COPY_PAUSED), Role.COPYING),
    **dict.fromkeys((Stage.CHECKING, *AFTER_READ, Stage.IDLE, Stage.PAUSED), Role.FOLLOWING),
    **dict.fromkeys((*STANDING, Stage.STARTING), Role.STANDING),
    Stage.LEADING: Role.LEADING,
    Stage.HALTED: Role.HALTED,
}
"""A node that has left keeps the role that it had."""
_FOLLOWING: Final = (Stage.OPENING, Stage.CHECKING, *AFTER_READ, *STANDING, Stage.STARTING)
_FAILING: Final = (*_FOLLOWING, Stage.HANDING_OVER)
_READ: Final = Row(Stage.READING, Act.READ)
_CHECK: Final = Row(Stage.CHECKING, Act.REQUIRE_KEPT)
_OPEN: Final = Row(Stage.OPENING, Act.OPEN)
_IDLE: Final = Row(Stage.IDLE, Act.WAIT, Wait.POLL)


def _rows(stages: Iterable[Stage], event: Event, row: Row) -> dict[tuple[Stage, Event], Row]:
    """Return one row for each stage."""
    return {(stage, event): row for stage in stages}


TABLE: Final[Mapping[tuple[Stage, Event], Row]] = {
    (Stage.OPENING, Event.OPENED): _CHECK,
    (Stage.CHECKING, Event.KEPT): _READ,
    (Stage.READING, Event.CHECKPOINT_DUE): Row(Stage.CHECKPOINTING, Act.CHECKPOINT),
    **_rows(AFTER_READ[:2], Event.COMPLAINT_DUE, Row(Stage.COMPLAINING, Act.COMPLAIN)),
    **_rows(AFTER_READ, Event.MORE, _READ),
    **_rows(AFTER_READ, Event.CAUGHT_UP, _IDLE),
    **_rows(AFTER_READ, Event.SILENT, Row(Stage.CATCHING_UP, Act.READ)),
    **_rows((Stage.IDLE, Stage.PAUSED), Event.TICK, _READ),
    **_rows((Stage.IDLE, Stage.PAUSED), Event.TICK_CHECK, _CHECK),
    (Stage.CATCHING_UP, Event.MORE): Row(Stage.CATCHING_UP, Act.READ),
    (Stage.CATCHING_UP, Event.CURRENT): Row(Stage.APPENDING, Act.APPEND_EPOCH),
    (Stage.APPENDING, Event.APPENDED): Row(Stage.CONFIRMING, Act.READ),
    (Stage.CONFIRMING, Event.MORE): Row(Stage.CONFIRMING, Act.READ),
    (Stage.CONFIRMING, Event.READ_BACK): Row(Stage.COMPARING, Act.COMPARE),
    (Stage.COMPARING, Event.WON): Row(Stage.STARTING, Act.SERVE),
    **_rows(STANDING, Event.LOST, _IDLE),
    (Stage.STARTING, Event.SERVED): Row(Stage.LEADING, Act.WAIT, Wait.BEAT),
    (Stage.LEADING, Event.TICK): Row(Stage.LEADING, Act.WAIT, Wait.BEAT),
    (Stage.LEADING, Event.BEAT_DUE): Row(Stage.LEADING, Act.BEAT),
    (Stage.LEADING, Event.LOOK_DUE): Row(Stage.LEADING, Act.LOOK),
    (Stage.LEADING, Event.UNREACHED): Row(Stage.LEADING, Act.ASK_CLIENTS),
    (Stage.LEADING, Event.OVER): Row(Stage.HANDING_OVER, Act.HAND_OVER),
    (Stage.LEADING, Event.HALT): Row(Stage.STOPPING, Act.STOP_SERVING),
    (Stage.HANDING_OVER, Event.CLOSED): _OPEN,
    (Stage.STOPPING, Event.CLOSED): Row(Stage.HALTED, Act.HALT),
    (Stage.FINDING, Event.FOUND): Row(Stage.FETCHING, Act.FETCH_COPY),
    (Stage.FETCHING, Event.COPIED): _OPEN,
    **_rows((Stage.REOPENING, Stage.COPY_PAUSED), Event.TICK, _OPEN),
    **_rows((Stage.CHECKING, *AFTER_READ), Event.UNANSWERED, Row(Stage.PAUSED, Act.WAIT, Wait.BEHIND)),
    **_rows(_FAILING, Event.NEEDS_COPY, Row(Stage.FINDING, Act.FIND_COPIES)),
    **_rows((*_FAILING, *COPYING), Event.NO_COPY, Row(Stage.COPY_PAUSED, Act.WAIT, Wait.COPY_AGAIN)),
    **_rows(_FAILING, Event.VOID, Row(Stage.REOPENING, Act.WAIT, Wait.BEHIND)),
    **_rows((*_FOLLOWING, *COPYING), Event.HALT, Row(Stage.HALTED, Act.HALT)),
    **_rows(WAITING, Event.LEAVE, Row(Stage.LEFT, Act.END)),
}
"""An event that has no row in a stage changes nothing there."""
