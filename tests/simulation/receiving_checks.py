"""Verification of all deliveries and all views of the broker.

A delivery is the right message, to a group whose filters match it, in the order of its message group and
never concurrent with another one of it, with the right attempt; an empty receive means that nothing is
available. Messages that have used up their attempts move to the dead letters, with their errors. Views agree
with `receiving_oracle`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Container, Iterator
from typing import Final

from commitlog import limits
from commitlog.records.kinds import GROUP_TOPIC
from commitlog.records.message import MessageType
from commitlog.records.record import Record, decode
from consumequeue.filters.filter import EVERYTHING, Filter, parse_tags
from consumequeue.filters.sql_filter import parse_sql
from consumequeue.groups.attempts import Failure
from consumequeue.groups.in_flight import InFlight
from services.broker.groups.group_values import GroupPolicy, QueueView
from services.broker.spine.topics import DEAD_LETTER_PREFIX
from services.broker.spine.values import Delivery
from tests.simulation.receiving_filters import FiltersOfGroup
from tests.simulation.receiving_machine import Machine
from tests.simulation.receiving_oracle import (
    FOREVER,
    Course,
    Stored,
    in_flight_of,
    stored_of,
)
from tidewheel import property_names
from tidewheel.property_names import DEAD_ATTEMPTS

ORDERED, PRIORITIES, LITE = ("a", "b"), "p", "l"
TOPICS: Final = (*ORDERED, PRIORITIES, LITE)
LITE_TOPICS: Final = ("x1", "x2", "x3", "x4", "x5")
Wanted = tuple[Filter, frozenset[str]]
"""A filter, and the tags that it matches."""
ANYTHING: Final = EVERYTHING, frozenset({"", "red", "blue"})
FILTERS: Final[dict[str, tuple[Wanted, ...]]] = {
    "all": (ANYTHING,),
    "some": ((parse_tags("red || blue"), frozenset({"red", "blue"})),),
    "push": (ANYTHING,),
    "mixed": (
        (parse_tags("red"), frozenset({"red"})),
        (parse_tags("blue"), frozenset({"blue"})),
        (parse_sql("TAGS IS NULL OR TAGS = 'red'"), frozenset({"", "red"})),
    ),
}
"""Each group with the filters of its clients."""
TAGS_OF: Final = {wanted.text: tags for each in FILTERS.values() for wanted, tags in each}


class Checks(Machine):
    """A machine whose broker is verified against the oracle."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.receive_count = 0
        self.policies: dict[str, list[tuple[int, GroupPolicy | None]]] = {}
        self.filters: defaultdict[tuple[str, str], FiltersOfGroup] = defaultdict(FiltersOfGroup)
        self.alive_ms: dict[str, int] = {}
        self.broker.topics.create(PRIORITIES, MessageType.PRIORITY, 3, self.now_ms)
        self.broker.topics.create(LITE, MessageType.LITE, 2, self.now_ms)
        self.flush()

    def wants(self, group: str, stored: Stored) -> bool:
        """Return whether a known filter of the group matches a message."""
        known = self.filters[group, stored.topic].known
        return stored.for_group in ("", group) and any(stored.tag in TAGS_OF[one] for one in known)

    def _see_filters(self, course: Course, wanted: Filter | None, client: str, before: int) -> None:
        """Verify filters after a receive: dropped ones may be dropped; offsets passed over match none.

        `wanted` is None if the filter of the receive was refused: then no other could be dropped.
        """
        group, topic = course.group, course.topic
        found, filters = set(self.broker.groups.filters.texts(group, topic)), self.filters[group, topic]
        records = self._appended(GROUP_TOPIC, before)
        said = {key: one.physical_offset + 1 for one in records for key in json.loads(one.body)}
        filters.move_clock(self.now_ms)
        if wanted is not None:
            filters.use(wanted.text, client, said.get("filter"))
        filters.see(found, self.alive_ms, self.now_ms, said.get("forgotten", FOREVER))
        if wanted is None:
            filters.refused()
        for place, stored in self.oracle.messages[topic].items():
            if not self.wants(group, stored) and self._is_done(course, stored):
                course.unwanted.add(place)

    def _is_passed(self, course: Course, stored: Stored) -> bool:
        """Return whether a message was passed over at a time when no filter matched it."""
        return stored.place in course.unwanted and self._is_done(course, stored)

    def policy(self, group: str) -> GroupPolicy:
        """Return the newest policy of a group, or the default."""
        said = self.policies.get(group)
        default = GroupPolicy(attempts_max=self.settings.attempts_max)
        return (said[-1][1] if said else None) or default

    def _check_given(self, course: Course, delivery: Delivery, tags: Container[str]) -> None:
        """Verify a delivery: content, filter, state, attempt and order."""
        place = delivery.queue_id, delivery.queue_offset
        stored = self.oracle.messages[course.topic][place]
        assert delivery.message.message_id == stored.message_id
        assert delivery.message.body == stored.body
        is_wanted = stored.tag in tags and stored.for_group in ("", course.group)
        assert is_wanted, f"a client of {course.group} with another filter got {stored}"
        assert place not in course.done, f"{stored} is done, yet given out"
        assert course.is_open(place), f"{stored} lies before the start of {course.group}"
        assert place not in course.held, f"{stored} is leased already: {course.held[place]}"
        attempt, attempts_max = len(course.failures[place]) + 1, self.policy(course.group).attempts_max
        assert delivery.attempt == attempt, f"attempt {delivery.attempt} is told, it is {attempt}"
        assert attempt <= attempts_max, f"attempt {attempt} of {attempts_max}"
        if stored.message_group:
            self._check_order(course, stored)

    def _check_order(self, course: Course, stored: Stored) -> None:
        """Verify the order of a message group: only this receive's run is in flight, all before it is done.

        A redelivered message, of a run that was not fully acknowledged, is not joined by new messages.
        """
        standing = course.standing(stored.message_group)
        other = [one for one in standing if one.receive_number != self.receive_count]
        assert not other, f"{stored} is given out beside {other}"
        assert len(standing) < self.policy(course.group).fifo_run_max, f"{stored} is beyond the run"
        again = [one for one in standing if course.given[one.place] > 1]
        assert not again or stored.place in course.ever_given, f"{stored} beside {again}, which came again"
        for one in self.oracle.fifo[stored.topic, stored.queue_id, stored.message_group]:
            if one.queue_offset >= stored.queue_offset:
                break
            is_there = self._is_kept(one) and self.wants(course.group, one)
            is_waiting = is_there and course.is_open(one.place) and one.place not in course.held
            is_waiting = is_waiting and not self._is_passed(course, one)
            assert not is_waiting, f"{stored} is given out before {one}"

    def _check_nothing_left(self, course: Course, subscribed: Container[str], tags: Container[str]) -> None:
        """Verify an empty receive: nothing is available, or for lite topics nothing subscribed to."""
        is_lite = course.topic == LITE
        left = next(
            (one for one in self._left(course, tags) if not is_lite or one.message_group in subscribed), None
        )
        assert left is None, f"{course.group} received nothing, yet there is {left}"

    def _check_priority(self, course: Course, delivery: Delivery, tags: Container[str]) -> None:
        """Verify that queues of higher priority have nothing left, unless one is at its limit in flight."""
        for left in self._left(course, tags):
            if left.queue_id > delivery.queue_id:
                flight = in_flight_of(self.broker, course.group, course.topic, left.queue_id)
                assert flight.is_crowded, f"{delivery} is given out before {left}"

    def _left(self, course: Course, tags: Container[str]) -> Iterator[Stored]:
        """Yield the messages available to a client whose filter matches these tags.

        A message group waits for its first message, which may be for another client.
        """
        taken = {one.message_group for one in course.held.values()} - {""}
        for place, stored in sorted(self.oracle.messages[course.topic].items()):
            first, end = self.broker.finding.queue_range(course.topic, place[0])
            is_there = first <= place[1] < end and self._is_kept(stored) and self.wants(course.group, stored)
            is_free = place not in course.held and stored.message_group not in taken
            if is_there and course.is_open(place) and is_free and not self._is_passed(course, stored):
                if stored.message_group:
                    taken.add(stored.message_group)
                if stored.tag in tags:
                    yield stored

    def _check_crowded(self, course: Course) -> None:
        """Verify a refused receive: a queue has the maximum of messages in flight or waiting."""
        queues = [
            in_flight_of(self.broker, course.group, course.topic, queue_id)
            for queue_id in range(self.broker.topics.get(course.topic).queue_count)
        ]
        assert any(one.is_crowded for one in queues), "refused for nothing"

    def _see_buried(self, course: Course, before: int) -> None:
        """Verify that a receive or a tick moved only messages without attempts left to the dead letters.

        This includes messages that no filter matches any more, but one matched at their delivery.
        """
        topic = DEAD_LETTER_PREFIX + course.group
        for record in self._appended(topic, before):
            dead_letter = stored_of(record)
            if dead_letter.marks[property_names.DEAD_LETTER_TOPIC] != course.topic:
                continue
            assert dead_letter.marks[property_names.DEAD_REASON] == "attempts used up"
            stored = min(
                (
                    one
                    for place, one in self.oracle.messages[course.topic].items()
                    if one.message_id == dead_letter.message_id
                    and (self.wants(course.group, one) or place in course.ever_given)
                    and course.is_open(place)
                    and place not in course.held
                    and self._is_done(course, one)
                ),
                key=lambda one: (
                    str(len(course.failures[one.place])) != dead_letter.marks[DEAD_ATTEMPTS],
                    one.place,
                ),
            )
            count = len(course.failures[stored.place])
            assert count >= self.policy(course.group).attempts_max, f"buried after {count}: {stored}"
            failures = [failure for _, failure in course.failures[stored.place]]
            self._check_dead_letter(course, stored, dead_letter, failures)
            course.done[stored.place] = before + 1

    def see_buried(self, before: int) -> None:
        """Verify that no message without attempts left remains after a tick, even without a receive."""
        for course in self.oracle.now():
            self._see_buried(course, before)
            attempts_max = self.policy(course.group).attempts_max
            used_up = [place for place, failed in course.failures.items() if len(failed) >= attempts_max]
            for place in [one for one in used_up if course.is_open(one) and one not in course.held]:
                stored = self.oracle.messages[course.topic][place]
                is_left = self._is_kept(stored) and not self._is_done(course, stored)
                assert not is_left or self.broker.store.has_flush_backlog, (
                    f"{stored} is not buried: {course.group}"
                )

    def _appended(self, topic: str, first_offset: int) -> list[Record]:
        """Return the records of a topic appended from an offset on that are not durable yet."""
        stored = [one.stored for one in self.broker.store._appended]
        appended = [decode(one) if isinstance(one, bytes) else one for one in stored if one]
        return [one for one in appended if one.topic == topic and one.physical_offset >= first_offset]

    def _check_dead_letter(
        self, course: Course, stored: Stored, dead_letter: Stored, failures: list[Failure]
    ) -> None:
        errors = (str(failures[0]), str(failures[-1])) if failures else ("", "")
        marks = dead_letter.marks
        assert marks[property_names.DEAD_LETTER_TOPIC] == course.topic
        assert marks[property_names.DEAD_LETTER_MESSAGE_ID] == stored.message_id
        assert marks[DEAD_ATTEMPTS] == str(len(failures))
        assert (
            marks.get(property_names.DEAD_FIRST_ERROR, ""),
            marks.get(property_names.DEAD_LAST_ERROR, ""),
        ) == errors
        assert dead_letter.body == stored.body

    def _is_done(self, course: Course, stored: Stored) -> bool:
        flight = in_flight_of(self.broker, course.group, course.topic, stored.queue_id)
        return flight.offsets.is_done(stored.queue_offset)

    def _everything(self) -> object:
        groups = self.broker.groups
        return groups.freeze(), groups.leased_counts(), self.broker.is_quiet, self.broker.end_offset

    def _topic_names(self) -> list[str]:
        return [topic.name for topic in self.broker.topics.all()]

    def _is_kept(self, stored: Stored) -> bool:
        return stored.physical_offset >= self.broker._log.first_offset

    def compare(self) -> None:
        """Verify all views of the broker against the oracle."""
        views = {view.name: view for view in self.broker.group_views.view_all()}
        courses = {(course.group, course.topic): course for course in self.oracle.now()}
        with_policy = {group for group, said in self.policies.items() if said and said[-1][1]}
        assert set(views) == {group for group, _ in courses} | with_policy
        for group, view in views.items():
            assert view.policy == self.policy(group)
            assert {one.topic for one in view.queues} == {topic for name, topic in courses if name == group}
            for queue in view.queues:
                self._compare_queue(courses[group, queue.topic], queue)
        lag = self.broker.groups.lag()
        for (group, topic), _ in courses.items():
            queues = [one for one in views[group].queues if one.topic == topic]
            assert lag.get((topic, group), 0) == sum(one.lag for one in queues)
        held = [one.generation for course in courses.values() for one in course.held.values()]
        assert sorted(self.broker.groups.leases._leases) == sorted(held), "leases that no queue has in flight"
        self._compare_dead_letters()

    def _compare_queue(self, course: Course, view: QueueView) -> None:
        queue_id = view.queue_id
        flight = in_flight_of(self.broker, course.group, course.topic, queue_id)
        first, end = self.broker.finding.queue_range(course.topic, queue_id)
        assert (view.min_offset, view.end_offset) == (first, end)
        held = {place[1] for place in course.held if place[0] == queue_id}
        done = {at for at in range(first, end) if flight.offsets.is_done(at)}
        for at in range(first, end):
            stored = self.oracle.messages[course.topic][queue_id, at]
            is_open = course.is_open(stored.place)
            assert is_open or at in done, f"{stored} is done, and {course.group} does not know it"
            is_unwanted = not self.wants(course.group, stored) or not self._is_kept(stored)
            is_unwanted = is_unwanted or stored.place in course.unwanted
            assert at not in done or not is_open or is_unwanted, f"{course.group} has lost {stored}"
        low = next((at for at in range(first, end) if at not in done), max(end, view.committed_offset))
        assert view.committed_offset == low
        assert view.done_above == sum(at > low for at in done)
        assert view.lag == end - first - len(done)
        assert view.in_flight == sum(at >= low for at in held), "discarded messages are not in flight"
        waiting = set(range(low, min(view.next_offset, end))) - done - held
        assert view.waiting == len(waiting), f"{view}, yet {waiting} wait"
        limit = limits.IN_FLIGHT_PER_QUEUE_MAX + limits.PARKED_PER_QUEUE_MAX
        assert view.in_flight + view.waiting <= limit, f"{view} is beyond the limits"
        self._check_memory(flight)
        kept = (self.oracle.messages[course.topic][queue_id, at] for at in range(low, end))
        assert view.oldest_ms == next((one.store_ms for one in kept if self._is_kept(one)), None)

    def _check_memory(self, flight: InFlight) -> None:
        """Verify that the broker keeps no state of done messages except leases, and none of a message group
        without leased or waiting messages."""
        offsets, held = flight.offsets, {lease.queue_offset for lease in flight.leases()}
        assert all(at in held or not offsets.is_done(at) for at in offsets._attempts)
        assert offsets.leases.keys() <= held & offsets._attempts.keys()
        names = flight.message_groups
        assert names.parked_count == sum(len(one.waiting) for one in names._groups.values())
        has_turn = set(names._turns.values())
        assert all(one.in_flight or name in has_turn for name, one in names._groups.items())
        aside = set(flight._aside._wanted_by)
        assert set(names._turns) <= set(flight._ready) | aside
        assert not any(offsets.is_done(at) for at in aside), "what is done waits for another filter"
        assert aside.isdisjoint(held), "what is leased waits for another filter"
        assert max(aside, default=-1) < flight.next_offset, "what is fresh waits for another filter"

    def _compare_dead_letters(self) -> None:
        """Verify that exactly the dead letters without a redrive or purge are listed, as far as kept."""
        for group, dead_letters in self.oracle.dead_letters.items():
            listed = []
            after: int | None = None
            while True:
                page = self.broker.dead_letters.read_page(group, after, self.chance.choice([1, 3, 100]))
                listed += page.dead_letters
                after = page.after
                if after is None:
                    break
            expected = [
                offset
                for offset, one in dead_letters.items()
                if one.closed_at == FOREVER and self._is_kept(one.stored)
            ]
            assert [one.queue_offset for one in listed] == expected
            for one in listed:
                assert one.message.message_id == dead_letters[one.queue_offset].stored.message_id
