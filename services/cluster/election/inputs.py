"""The inputs of the election: answers to its acts, records that were read, ticks and orders.

Each is a value that a worker thread or the loop has made, and nothing changes it afterwards. A field of type
Any is for the shell alone, or for a later act: the machine passes it on.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from services.cluster.election.table import STANDING, Act, Stage
from sharedlog.fold import Fold, Step
from sharedlog.holdings import Unreadable

NO_NEWS: Final[Mapping[str, Any]] = MappingProxyType({})


class Seen(NamedTuple):
    """How far a node has read, and the counts of what it has stepped over."""

    end: int = 0
    next_record: int = 0
    foreign_lines: int = 0
    repeated_records: int = 0


def seen_by(fold: Fold) -> Seen:
    """Return what a fold has seen."""
    return Seen(fold.end, fold.next_offset, fold.foreign_count, fold.repeated_count)


class Opened(NamedTuple):
    """OPEN: the newest EPOCH that the checkpoint knows (0: none), its facts, what was seen, the replica."""

    epoch: int
    leads: Mapping[str, Any]
    seen: Seen = Seen()
    replica: Any = None


class ReadDone(NamedTuple):
    """READ and CATCH_UP: the number of records, 0 at the end of the log, and what the node knows then."""

    records: int
    seen: Seen
    is_founded: bool
    is_listed: bool
    """Whether the log says what this node holds."""
    unfit: str
    """Why this node should lead only where no other can; empty if it may."""


class Appended(NamedTuple):
    """APPEND_EPOCH: the candidate and the offset of its EPOCH; None if the engine tells no offset."""

    candidacy: tuple[Any, int] | None


class Confirmed(NamedTuple):
    """CONFIRM: whether the EPOCH is the newest; None while it was not read back."""

    has_won: bool | None


class Begun(NamedTuple):
    """SERVE: when the newest proven append began, by this node's monotonic clock."""

    proven_ms: int


class Beaten(NamedTuple):
    """BEAT: it was proven."""

    proven_ms: int
    news: Mapping[str, Any] = NO_NEWS


class LookDone(NamedTuple):
    """LOOK: of a leader also the fittest follower, and complaints: (node, (epoch, number))."""

    seen: Seen
    has_room: bool = True
    shown: Any = None
    unfit: str = ""
    fitter: str = ""
    complaints: tuple[tuple[str, tuple[int, int]], ...] = ()


class ClientsAsked(NamedTuple):
    """ASK_CLIENTS: whether any client answers this node, asked for a node that complains."""

    node: str
    is_reached: bool


class Ended(NamedTuple):
    """HAND_OVER: clients are served no more."""


class CopiesFound(NamedTuple):
    """COPY, under way: the newest EPOCH in the log (0: none), and its facts."""

    epoch: int
    leads: Mapping[str, Any]


class Copied(NamedTuple):
    """COPY: a copy was fetched, from where it says."""

    source: str


class Failed(NamedTuple):
    """An act came to an error, one of FAILURES.

    What an operator may do where the log is not one history; where the log cannot be read on.
    """

    act: Act
    error: Exception
    ways_on: str = ""
    where: Unreadable | None = None


class RecordTaken(NamedTuple):
    """A record was read, and what became of it."""

    step: Step


class Tick(NamedTuple):
    """Time has passed; of a leader, when its newest proven append began, and its news of itself."""

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
    """Another node is to lead: the one named, or any."""

    to: str


class Order(NamedTuple):
    """A BEAT is to say these facts; `written` is of the shell."""

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
"""The stages in which an input counts; one that is not listed counts in all but HALTED and LEFT."""
AWAITED_ACTS: Final[Mapping[Act, frozenset[Stage]]] = {
    Act.OPEN: frozenset((Stage.OPENING,)),
    Act.READ: frozenset((Stage.READING,)),
    Act.SERVE: frozenset((Stage.STARTING,)),
    Act.COPY: frozenset((Stage.COPYING,)),
    Act.HAND_OVER: frozenset((Stage.HANDING_OVER,)),
    **dict.fromkeys((Act.CATCH_UP, Act.APPEND_EPOCH, Act.CONFIRM), frozenset(STANDING)),
}
"""The same of a failure, by its act; one of a LOOK always counts."""
