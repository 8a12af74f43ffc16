"""The inputs of the election: answers to its acts, records that were read, ticks and orders.

Each is a value: what it says was so when it was made, and is not looked up again.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from services.cluster.election_table import AFTER_READ, COPYING, STANDING, Stage
from sharedlog.fold import Step

NO_NEWS: Final[Mapping[str, Any]] = MappingProxyType({})

# Answers to acts.


class ReplicaOpened(NamedTuple):
    """The replica is open; the newest EPOCH that its checkpoint knows, and what that says."""

    epoch: int
    leads: Mapping[str, Any]


class HistoryKept(NamedTuple):
    """The engine still has what this node has read."""


class SteppedOver(NamedTuple):
    """Counts of what this node has stepped over in the shared log, up to the record that it reads next."""

    lines: int = 0
    """Lines that are no records of the cluster."""
    records: int = 0
    """Records that the engine has doubled."""
    next_record: int = 0


class ReadDone(NamedTuple):
    """The shared log was read; what the node knows then."""

    records: int
    """How many records came; 0 at its end."""
    next_offset: int
    is_founded: bool
    is_checkpoint_due: bool
    is_listed: bool
    """Whether the log says what this node holds."""
    stepped_over: SteppedOver
    unfit: str
    """Why this node should lead only where no other can; empty if it may."""


class CheckpointDone(NamedTuple):
    """The checkpoint is written."""


class ComplaintDone(NamedTuple):
    """The complaint is in the log, or is not: then it is repeated."""


class EpochAppended(NamedTuple):
    """The EPOCH was taken, at an offset; None if the engine does not tell it."""

    offset: int | None


class Compared(NamedTuple):
    """Whether the EPOCH of this node is the newest, and what it read before is still there."""

    has_won: bool


class LeadBegun(NamedTuple):
    """Clients are served; when the newest proven append began, by this node's monotonic clock."""

    proven_ms: int


class BeatDone(NamedTuple):
    """The BEAT was proven."""

    proven_ms: int
    news: Mapping[str, Any] = NO_NEWS


class LookDone(NamedTuple):
    """The findings of a look; of a leader also the fittest follower, and the complaints of other nodes.

    A complaint is the node's name, and the epoch and the number of it.
    """

    stepped_over: SteppedOver
    unfit: str = ""
    fitter: str = ""
    complaints: tuple[tuple[str, tuple[int, int]], ...] = ()


class LookFailed(NamedTuple):
    """A look has found that the copy or the log is not what it was, or the disk failed."""

    error: Exception


class ClientsAsked(NamedTuple):
    """Whether any client answers this node."""

    is_reached: bool


class LeadEnded(NamedTuple):
    """Clients are served no more."""


class CopiesFound(NamedTuple):
    """The log was read for copies; the newest EPOCH in it (0: none), and what that says."""

    epoch: int
    leads: Mapping[str, Any]


class CopyFetched(NamedTuple):
    """A copy was fetched, from where it says."""

    source: str


class ActFailed(NamedTuple):
    """An act came to an error, one of FAILURES."""

    error: Exception


# What comes by itself.


class RecordTaken(NamedTuple):
    """A record was read; what became of it."""

    step: Step


class Tick(NamedTuple):
    """Time has passed; of a leader, when its newest proven append began, and what it has to say of itself."""

    proven_ms: int = 0
    news: Mapping[str, Any] = NO_NEWS


class ProofWanted(NamedTuple):
    """An answer waits for a proof that this node leads."""


class SteppedDown(NamedTuple):
    """An append was not proven, or the disk failed: the core is void."""

    error: Exception


class Leave(NamedTuple):
    """The process is to end."""


class Move(NamedTuple):
    """Another node is to lead: this one, or any if none is named."""

    to: str


class Order(NamedTuple):
    """A BEAT is to say these facts; `number` names the order."""

    number: int
    facts: dict[str, Any]


Input = (
    ReplicaOpened | HistoryKept | ReadDone | CheckpointDone | ComplaintDone | EpochAppended | Compared
    | LeadBegun | BeatDone | LookDone | LookFailed | ClientsAsked | LeadEnded | CopiesFound | CopyFetched
    | ActFailed | RecordTaken | Tick | ProofWanted | SteppedDown | Leave | Move | Order
)  # fmt: skip

AWAITED: Final[Mapping[type[Any], frozenset[Stage]]] = {
    ReplicaOpened: frozenset((Stage.OPENING,)),
    HistoryKept: frozenset((Stage.CHECKING,)),
    ReadDone: frozenset((Stage.READING, Stage.CATCHING_UP, Stage.CONFIRMING)),
    CheckpointDone: frozenset((Stage.CHECKPOINTING,)),
    ComplaintDone: frozenset((Stage.COMPLAINING,)),
    EpochAppended: frozenset((Stage.APPENDING,)),
    Compared: frozenset((Stage.COMPARING,)),
    LeadBegun: frozenset((Stage.STARTING,)),
    BeatDone: frozenset((Stage.LEADING,)),
    ClientsAsked: frozenset((Stage.LEADING,)),
    LeadEnded: frozenset((Stage.HANDING_OVER, Stage.STOPPING)),
    CopiesFound: frozenset((Stage.FINDING,)),
    CopyFetched: frozenset((Stage.FETCHING,)),
    ActFailed: frozenset((Stage.OPENING, Stage.CHECKING, *AFTER_READ, *STANDING, Stage.STARTING, *COPYING)),
    ProofWanted: frozenset((Stage.LEADING,)),
    Move: frozenset((Stage.LEADING,)),
    Order: frozenset((Stage.LEADING,)),
    SteppedDown: frozenset((Stage.STARTING, Stage.LEADING)),
}
"""In which states an input counts; one that is not listed counts in all but HALTED and LEFT."""
