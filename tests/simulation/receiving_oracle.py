"""The expected state of every group on every topic, derived from calls and answers.

A `Course` is a group on a topic since its last positioning: joined, reset or deleted. Changes are recorded
with the log offset that makes them durable. After a crash, all answered changes must still hold; unanswered
ones may or may not have happened, and the oracle queries the broker for them (`crash`) and verifies that the
result is allowed. Remaining changes are durable, so their offset is 0 from then on. Thus the oracle has the
exact expected state at any time.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from commitlog.records import properties
from commitlog.records.kinds import GROUP_TOPIC, RETENTION_TOPIC
from commitlog.records.record import Record
from consumequeue.groups.attempts import Cause, Failure
from consumequeue.groups.in_flight import InFlight, Lease
from services.broker.broker import Broker
from services.broker.groups.group_values import GroupQueue
from services.broker.spine.topics import DEAD_LETTER_PREFIX
from tidewheel import property_names

Place = tuple[int, int]
"""Queue id and queue offset."""
FOREVER = 1 << 62


@dataclass(slots=True, frozen=True)
class Stored:
    """A message stored in a user's topic, or in a group's dead letters.

    `message_group` is its lite topic if it has one: a group treats both equally.
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_ms: int
    body: bytes = field(repr=False)
    message_id: str
    tag: str
    message_group: str
    for_group: str
    marks: dict[str, str] = field(repr=False)

    @property
    def place(self) -> Place:
        return self.queue_id, self.queue_offset


@dataclass(slots=True)
class Held:
    """One lease; `granted_at` and `ended_at` are the offsets that make its start and end durable."""

    place: Place
    generation: int
    handle: str
    consumer: str
    visible_ms: int
    is_renewed: bool
    renewed_until_ms: int
    message_group: str
    granted_at: int
    receive_number: int
    leased_ms: int
    span_ms: int
    """Its duration in ms."""
    failure_count: int
    is_gone: bool = False
    is_changed: bool = False
    is_suspended: bool = False
    is_failed: bool = False
    """Whether its consumer has reported a failure: the rest is a pause. Not kept over a restart."""
    ended_at: int = FOREVER
    is_replaced: bool = False

    @property
    def cause(self) -> Cause:
        if self.is_gone:
            return Cause.GONE
        return Cause.SET_ASIDE if self.is_changed else Cause.EXPIRED


@dataclass(slots=True)
class Course:
    """A group on a topic, from these offsets on (other queues: the earliest), and its messages' state."""

    group: str
    topic: str
    durable_at: int
    starts: dict[int, int] = field(default_factory=dict)
    is_left: bool = False
    reopened: dict[Place, int] = field(default_factory=dict)
    done: dict[Place, int] = field(default_factory=dict)
    held: dict[Place, Held] = field(default_factory=dict)
    past: defaultdict[Place, list[Held]] = field(default_factory=lambda: defaultdict(list))
    failures: defaultdict[Place, list[tuple[int, Failure]]] = field(default_factory=lambda: defaultdict(list))
    given: Counter[Place] = field(default_factory=Counter)
    """The number of certain deliveries of each message: a crash may leave no trace of a delivery."""
    ever_given: set[Place] = field(default_factory=set)
    unwanted: set[Place] = field(default_factory=set)
    """Messages that were done at a time when no filter of the group matched them."""

    def is_open(self, place: Place) -> bool:
        """Return whether a message is not done, and is after the start or was reopened."""
        is_behind_start = place in self.reopened or place[1] >= self.starts.get(place[0], 0)
        return place not in self.done and is_behind_start

    def reopen(self, place: Place, durable_at: int) -> None:
        """Reopen a message that was done."""
        self.done.pop(place, None)
        self.failures.pop(place, None)
        self.given.pop(place, None)
        self.ever_given.discard(place)
        self.unwanted.discard(place)
        self.reopened[place] = durable_at

    def cut(self, end_offset: int) -> None:
        """Revert reopened messages whose record the log has lost."""
        for place, durable_at in [*self.reopened.items()]:
            if durable_at > end_offset:
                del self.reopened[place]
                if self.is_open(place):
                    self.done[place] = 0
            else:
                self.reopened[place] = 0

    def standing(self, message_group: str) -> list[Held]:
        """Return the leases on messages of a message group."""
        return [one for one in self.held.values() if one.message_group == message_group]

    def forget_given(self) -> None:
        """Reset the deliveries after a crash: only those of leases and failures are certain."""
        failed = Counter(place for place, failures in self.failures.items() if failures)
        self.given = failed + Counter(self.held.keys())

    def hold(self, held: Held) -> None:
        self.held[held.place] = held
        if held.message_group:
            self.past[held.place].append(held)

    def end(self, place: Place, ended_at: int) -> Held:
        """End a lease."""
        held = self.held.pop(place)
        held.ended_at = ended_at
        return held

    def fail(self, place: Place, ended_at: int, now_ms: int) -> None:
        """End an expired lease, with a failure unless it was suspended."""
        held = self.end(place, ended_at)
        if not held.is_suspended:
            failure = Failure(now_ms, held.cause, held.consumer)
            self.failures[place].append((ended_at, failure))


@dataclass(slots=True)
class DeadLetter:
    """A dead letter; `closed_at` is the offset that makes its redrive or purge durable."""

    stored: Stored
    closed_at: int = FOREVER


class Oracle:
    """All messages, all courses, all dead letters."""

    def __init__(self) -> None:
        self.messages: defaultdict[str, dict[Place, Stored]] = defaultdict(dict)
        self.fifo: defaultdict[tuple[str, int, str], list[Stored]] = defaultdict(list)
        self.courses: defaultdict[tuple[str, str], list[Course]] = defaultdict(list)
        self.dead_letters: defaultdict[str, dict[int, DeadLetter]] = defaultdict(dict)
        self.missed: Counter[tuple[str, str]] = Counter()
        """Messages missed because of retention according to durable records, by (topic, group)."""

    def follow(self, record: Record) -> None:
        """Add a durable record of a user's topic or of dead letters."""
        stored = stored_of(record)
        if record.topic.startswith(DEAD_LETTER_PREFIX):
            self.dead_letters[record.topic[len(DEAD_LETTER_PREFIX) :]][record.queue_offset] = DeadLetter(
                stored
            )
            return
        assert stored.place not in self.messages[record.topic], "two messages at one place"
        self.messages[record.topic][stored.place] = stored
        if stored.message_group:
            self.fifo[record.topic, record.queue_id, stored.message_group].append(stored)

    def follow_missed(self, record: Record) -> None:
        """Apply a durable record of retention or of a group to the missed messages."""
        if record.topic == RETENTION_TOPIC:
            for group, topic, _, count in json.loads(record.body).get("skipped", ()):
                self.missed[topic, group] += count
        elif record.topic == GROUP_TOPIC and "left" in (said := json.loads(record.body)):
            for topic, group in [*self.missed]:
                if group == said["group"] and said["topic"] in ("", topic):
                    del self.missed[topic, group]

    def course(self, group: str, topic: str) -> Course | None:
        """Return the current course of a group on a topic; None if it does not receive it."""
        courses = self.courses.get((group, topic))
        return courses[-1] if courses and not courses[-1].is_left else None

    def now(self) -> Iterator[Course]:
        """Yield the current course of every group on every topic that it receives."""
        for courses in self.courses.values():
            if courses and not courses[-1].is_left:
                yield courses[-1]

    def begin(self, course: Course) -> None:
        """Begin a new course."""
        self.courses[course.group, course.topic].append(course)

    def crash(self, end_offset: int, told_offset: int, broker: Broker, now_ms: int) -> None:
        """Adapt to a log that ends at `end_offset`; changes up to `told_offset` were answered."""
        for courses in self.courses.values():
            while courses and courses[-1].durable_at > end_offset:
                assert courses.pop().durable_at > told_offset, "a group's record is gone"
            for course in courses:
                course.durable_at = 0
        first_offset = broker._log.first_offset
        gone = {
            topic: {place for place, one in messages.items() if one.physical_offset < first_offset}
            for topic, messages in self.messages.items()
        }
        for course in self.now():
            course.cut(end_offset)
            queue_count = broker.topics.get(course.topic).queue_count
            for queue_id in range(queue_count):
                flight = in_flight_of(broker, course.group, course.topic, queue_id)
                gone_here = gone.get(course.topic, set())
                _Recovery(course, queue_id, flight, gone_here, told_offset, now_ms).run()
            course.forget_given()
        for group, dead_letters in self.dead_letters.items():
            listed = {
                one.queue_offset for one in broker.dead_letters.read_page(group, None, 1_000_000).dead_letters
            }
            for offset, dead_letter in dead_letters.items():
                is_closed = offset not in listed
                assert is_closed or dead_letter.closed_at > told_offset, (
                    f"{dead_letter} was closed, which was told"
                )
                dead_letter.closed_at = 0 if is_closed else FOREVER


@dataclass(slots=True)
class _Recovery:
    """One queue of a course after a crash: answered changes hold, others are taken from the broker."""

    course: Course
    queue_id: int
    flight: InFlight
    gone: set[Place]
    told_offset: int
    now_ms: int

    def run(self) -> None:
        for place, durable_at in [*self.course.done.items()]:
            if place[0] == self.queue_id:
                self.course.done[place] = 0
                if not self.flight.offsets.is_done(place[1]):
                    assert durable_at > self.told_offset, f"{place} was done, which was told, and is not"
                    del self.course.done[place]
        places = [place for place in {*self.course.held, *self.course.past} if place[0] == self.queue_id]
        for place in places:
            self.course.held.pop(place, None)
            if place in self.course.past:
                self._restore(place)
        for place in [one for one in self.course.failures if one[0] == self.queue_id]:
            self._recount(place)
        known = {place[1] for place in self.course.held if place[0] == self.queue_id}
        found = {lease.queue_offset for lease in self.flight.leases()}
        assert found == known, f"leases of nobody: {found - known}, or lost ones: {known - found}"

    def _restore(self, place: Place) -> None:
        """Restore a lease on a message of a message group: kept if it was answered and has not ended."""
        past = self.course.past[place]
        found = self.flight._leases.get(place[1])
        told = max((at for at, one in enumerate(past) if one.granted_at <= self.told_offset), default=-1)
        if found is None:
            later = past[max(told, 0) :] if told >= 0 else []
            may_be_over = not later or any(not one.is_replaced and one.ended_at < FOREVER for one in later)
            is_gone = place in self.course.done or place in self.gone
            assert may_be_over or is_gone, f"a lease that was told is gone: {past[told]}"
            del self.course.past[place]
            return
        matching = [at for at, one in enumerate(past) if one.generation == found.generation]
        assert matching, f"a lease that was never given: {found}"
        assert matching[0] >= told, f"an old lease stands again: {past[matching[0]]}"
        held = past[matching[0]]
        assert held.ended_at > self.told_offset, f"a lease has ended, which was told, and stands: {held}"
        self.course.past[place] = [held]
        held.granted_at, held.ended_at, held.is_replaced, held.is_gone = 0, FOREVER, False, False
        held.is_failed = False
        self._compare(held, found)
        self.course.held[place] = held

    def _compare(self, held: Held, found: Lease) -> None:
        assert (found.consumer, found.message_group) == (held.consumer, held.message_group)
        assert bool(found.client_id) == held.is_renewed
        assert (found.is_changed, found.is_suspended) == (held.is_changed, held.is_suspended)
        if held.is_renewed:
            held.visible_ms, held.renewed_until_ms = found.visible_ms, found.renewed_until_ms
        else:  # if the clock was set back, it lasts no longer than its duration
            held.visible_ms = min(held.leased_ms, self.now_ms) + held.span_ms
        assert found.visible_ms == held.visible_ms
        count = self.flight.attempts(held.place[1]).made
        assert count == held.failure_count + 1, f"{count} attempts of {held}"

    def _recount(self, place: Place) -> None:
        """Restore attempts: all with a durable record, and of the others as many as the broker has."""
        failures, held = self.course.failures[place], self.course.held.get(place)
        if place in self.course.done or place in self.gone or place[1] < self.flight.offsets.committed_offset:
            return
        if place in self.course.unwanted and self.flight.offsets.is_done(place[1]):
            return  # it was available again, and was passed over when its filter was dropped
        found = self.flight.attempts(place[1])
        count = found.made - (held is not None)
        low = sum(durable_at <= self.told_offset for durable_at, _ in failures)
        assert low <= count <= len(failures), f"{place} has {count} attempts, not {low} to {len(failures)}"
        failures[:] = [(0, failure) for _, failure in failures[:count]]
        expected = (failures[0][1], failures[-1][1]) if failures else (None, None)
        assert (found.first, found.last) == expected


def stored_of(record: Record) -> Stored:
    """Return the message of a record."""
    stored = properties.decode(record.properties)
    return Stored(
        topic=record.topic,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        store_ms=record.store_ms,
        body=record.body,
        message_id=stored[property_names.MESSAGE_ID],
        tag=stored.get(property_names.TAG, ""),
        message_group=stored.get(property_names.MESSAGE_GROUP) or stored.get(property_names.LITE_TOPIC, ""),
        for_group=stored.get(property_names.FOR_GROUP, ""),
        marks=stored,
    )


def in_flight_of(broker: Broker, group: str, topic: str, queue_id: int) -> InFlight:
    """Return the broker's in-flight state of a group on a queue, without creating it."""
    return broker.groups.peek_in_flight(GroupQueue(group, topic, queue_id))
