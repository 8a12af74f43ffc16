"""What clients were told, and what of it a broker must keep: the histories of a run and their checker.

Every call has an outcome: `ok`, `refused` (the broker said so and did nothing), or `unknown` (the connection
broke, or the answer was that nobody knows). What is unknown may have happened or not; all else binds:

    lost       an ok send, or commit, that was never delivered (unless it was cancelled)
    phantom    a delivery of what was refused, rolled back, never committed or cancelled
    early      a delivery before its time, by the clocks of all nodes
    again      a receive that began after an ok acknowledgement, and got the message all the same
    order      in a message group, a receive that began when a later one was seen, and got an earlier one; or
               a delivery before an earlier one was acknowledged
    twice      one message at two places of its topic's queues
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from pathlib import Path

from tests.endurance.watching import Watcher

NEVER_MS = 1 << 62


class Outcome(Enum):
    """What a caller knows of a call."""

    OK = "ok"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Sent:
    """A message as its sender knows it; `ending` is commit or rollback, None of what is no half."""

    message_id: str
    topic: str
    outcome: Outcome
    due_ms: int = 0
    group: str = ""
    number: int = 0
    is_half: bool = False
    is_commit: bool = False
    end_outcome: Outcome | None = None
    cancel_outcome: Outcome | None = None
    began_ms: int = 0

    @property
    def must_come(self) -> bool:
        """Whether it has to be delivered."""
        if self.outcome is not Outcome.OK or self.cancel_outcome in (Outcome.OK, Outcome.UNKNOWN):
            return False
        return not self.is_half or (self.is_commit and self.end_outcome is Outcome.OK)

    @property
    def may_come(self) -> bool:
        """Whether it may be delivered at all."""
        if self.outcome is Outcome.REFUSED or self.cancel_outcome is Outcome.OK:
            return False
        return not self.is_half or (self.is_commit and self.end_outcome in (Outcome.OK, Outcome.UNKNOWN))


@dataclass(slots=True, frozen=True)
class Delivered:
    """A message as a consumer got it: where it lay, when its receive began, and when it was seen."""

    message_id: str
    place: tuple[str, int, int]
    """Topic, queue and offset; the last two are -1 where the client does not tell them."""
    began_s: float
    seen_s: float
    seen_ms: int


@dataclass(slots=True)
class Step:
    """From when to when the clock of a node was off, and by how much."""

    node: str
    offset_ms: int
    from_ms: int
    until_ms: int = NEVER_MS

    def explains(self, sent: Sent, seen_ms: int) -> bool:
        """Return whether by that clock a message was due while the clock was off, before it was seen."""
        began_ms, ended_ms = max(self.from_ms, sent.began_ms), min(self.until_ms, seen_ms)
        return began_ms <= ended_ms and ended_ms + self.offset_ms >= sent.due_ms


@dataclass(slots=True)
class History:
    """Everything that clients did and saw."""

    sent: dict[str, Sent] = field(default_factory=dict)
    last_numbers: Counter[str] = field(default_factory=Counter)
    """The number of the newest message of each message group."""
    delivered: list[Delivered] = field(default_factory=list)
    acknowledged_s: dict[str, float] = field(default_factory=dict)
    """When an acknowledgement was answered with ok."""
    tried_s: dict[str, float] = field(default_factory=dict)
    """When the first acknowledgement was begun, whatever came of it."""
    outcomes: Counter[str] = field(default_factory=Counter)
    acknowledged_sends_s: list[float] = field(default_factory=list)
    """When each send was answered with ok."""
    steps: list[Step] = field(default_factory=list)
    watcher: Watcher = field(default_factory=Watcher)

    def sends(self, sent: Sent) -> None:
        """Note a message whose send begins, the first time or again."""
        self.sent[sent.message_id] = sent
        if sent.group:
            self.last_numbers[sent.group] = max(sent.number, self.last_numbers[sent.group])

    def stepped(self, node: str, offset_ms: int, now_ms: int) -> None:
        """Note that from now on a node's clock is off by so much; 0: no more."""
        for one in self.steps:
            if one.node == node and one.until_ms == NEVER_MS:
                one.until_ms = now_ms
                told = {name: getattr(one, name) for name in ("node", "offset_ms", "from_ms", "until_ms")}
                self.watcher.file.note("clock", **told)
        if offset_ms:
            self.steps.append(Step(node, offset_ms, now_ms))

    def write(self, path: Path) -> None:
        """Write all calls and their ends as `tests/checker` reads them."""
        self.watcher.file.write(path)

    def came_twice(self, topic: str, lease_ms: int) -> dict[str, int]:
        """Return how many messages of a topic came, more than once, and again while they were leased."""
        seen_s: defaultdict[str, list[float]] = defaultdict(list)
        for one in self.delivered:
            if one.place[0] == topic:
                seen_s[one.message_id].append(one.seen_s)
        leased_s = [
            any(later - before < lease_ms / 1000 for before, later in pairwise(sorted(times)))
            for times in seen_s.values()
        ]
        twice = sum(len(times) > 1 for times in seen_s.values())
        return {"came": len(seen_s), "came_twice": twice, "came_again_while_leased": sum(leased_s)}

    def missing(self) -> list[str]:
        """Return what has to be delivered and was not yet."""
        came = {one.message_id for one in self.delivered}
        return [one.message_id for one in self.sent.values() if one.must_come and one.message_id not in came]

    def violations(self) -> list[str]:
        """Return every promise that was broken."""
        return [*(f"lost: {one}" for one in self.missing()), *self._wrong_deliveries(), *self._wrong_orders()]

    def _wrong_deliveries(self) -> Iterator[str]:
        places: defaultdict[str, set[tuple[str, int, int]]] = defaultdict(set)
        for one in self.delivered:
            sent = self.sent.get(one.message_id)
            if sent is None or not sent.may_come:
                yield f"phantom: {one} of {sent}"
                continue
            is_early = one.seen_ms < sent.due_ms
            if is_early and not any(step.explains(sent, one.seen_ms) for step in self.steps):
                yield f"early: {one.message_id} by {sent.due_ms - one.seen_ms} ms"
            if one.began_s > self.acknowledged_s.get(one.message_id, one.began_s):
                yield f"again: {one} after an acknowledgement at {self.acknowledged_s[one.message_id]}"
            if one.place[1] >= 0:
                places[one.message_id].add(one.place)
        yield from (f"twice: {name} at {found}" for name, found in places.items() if len(found) > 1)

    def _wrong_orders(self) -> Iterator[str]:
        in_groups = [one for one in self.delivered if (sent := self.sent.get(one.message_id)) and sent.group]
        for one, highest in self._with_highest_before(in_groups):
            sent = self.sent[one.message_id]
            if sent.number < highest:
                yield f"order: {one.message_id} behind {sent.group}-{highest}"
        yield from self._before_acknowledged(in_groups)

    def _before_acknowledged(self, in_groups: list[Delivered]) -> Iterator[str]:
        """Yield deliveries before an earlier message of the group was acknowledged.

        What was tried before one was seen was tried before all that are seen later: the messages before
        `done_counts` are not looked at again, so a long group costs no more than its length.
        """
        by_group: defaultdict[str, list[Sent]] = defaultdict(list)
        for sent in self.sent.values():
            if sent.group and sent.outcome is Outcome.OK:
                by_group[sent.group].append(sent)
        done_counts: Counter[str] = Counter()
        for one in sorted(in_groups, key=lambda one: one.seen_s):
            sent = self.sent[one.message_id]
            many, is_done = by_group[sent.group], True
            for earlier in many[done_counts[sent.group] :]:
                if earlier.number >= sent.number:
                    break
                is_tried = self.tried_s.get(earlier.message_id, one.seen_s) < one.seen_s
                is_done = is_done and is_tried
                done_counts[sent.group] += is_done
                if not is_tried:
                    yield f"order: {one.message_id} before {earlier.message_id} was acknowledged"

    def _with_highest_before(self, in_groups: list[Delivered]) -> Iterator[tuple[Delivered, int]]:
        """Yield deliveries of message groups, and the highest number that was seen when their receive began.

        What is on its way to a client that stands still is seen late, and was given out in time.
        """
        highest: dict[str, int] = {}
        by_seen = deque(sorted(in_groups, key=lambda one: one.seen_s))
        for one in sorted(in_groups, key=lambda one: one.began_s):
            while by_seen and by_seen[0].seen_s < one.began_s:
                seen = self.sent[by_seen.popleft().message_id]
                highest[seen.group] = max(seen.number, highest.get(seen.group, -1))
            yield one, highest.get(self.sent[one.message_id].group, -1)
