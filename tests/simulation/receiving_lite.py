"""The clients of `receiving_world` that subscribe to lite topics, and set their group's position in one.

The broker is queried for the subscriptions of a client. It may have dropped them (after a restart, or a long
silence of the client), but never has more than the client has subscribed to.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from commitlog.records.kinds import GROUP_TOPIC
from services.broker.groups.group_values import GroupStart
from services.broker.groups.lite_subscribing import LiteStart, LiteStartPosition
from services.broker.groups.lite_topics import queue_of
from services.broker.spine.values import StartPosition, Subscriber
from tests.simulation.receiving_checks import FILTERS, LITE, LITE_TOPICS
from tests.simulation.receiving_operators import Operators
from tests.simulation.receiving_oracle import FOREVER, Course, Stored, in_flight_of

CLIENTS: Final = ("c1", "c2", "c3")


class Subscribers(Operators):
    """A machine with subscribers of lite topics."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.said: defaultdict[Subscriber, set[str]] = defaultdict(set)

    def subscribed(self, group: str, client: str) -> set[str]:
        """Return a client's subscriptions at the broker; verify that the client has made them."""
        who = Subscriber(group, LITE, client)
        found = set(self.broker.lite.lite_topics_of(who))
        assert found <= self.said[who], f"{who} never subscribed to {found - self.said[who]}"
        return found

    def subscribe(self) -> None:
        """Add, replace or remove subscriptions of a client."""
        group, client = self.chance.choice([*FILTERS]), self.chance.choice(CLIENTS)
        who, wanted = Subscriber(group, LITE, client), self._some()
        if self.chance.random() < 0.2:
            self.broker.lite.unsubscribe(who, wanted, self.now_ms)
            self.said[who] -= set(wanted)
        elif self.chance.random() < 0.5:
            self._subscribe(who, wanted, LiteStart())
        else:
            self._replace(who, wanted)
            assert self.subscribed(group, client) == set(wanted)

    def subscribe_to_all(self, group: str) -> None:
        """Subscribe every client of a group to all lite topics."""
        for client in CLIENTS:
            self._replace(Subscriber(group, LITE, client), [*LITE_TOPICS])

    def say_goodbye(self) -> None:
        client = self.chance.choice(CLIENTS)
        self.broker.lite.remove_client(client, self.now_ms)
        for group in FILTERS:
            assert not self.subscribed(group, client)

    def go_elsewhere(self) -> None:
        """Subscribe a client with a start position."""
        who = Subscriber(self.chance.choice([*FILTERS]), LITE, self.chance.choice(CLIENTS))
        lite_topic, start = self.chance.choice(LITE_TOPICS), self._any_lite_start()
        self.quieten()
        if self.oracle.course(who.group, LITE) is None:
            return
        course, queue_id = self._course(who.group, LITE), queue_of(lite_topic, self.broker.topics.get(LITE))
        wanted_from = self._place(course, queue_id, lite_topic, start)
        durable_at = self._subscribe(who, [lite_topic], start)
        if start.kind is not LiteStartPosition.LAST:
            self._end_leases(course, queue_id, lite_topic)
            for stored in self._stored(queue_id, lite_topic):
                self._move(course, stored, stored.queue_offset >= wanted_from, durable_at)
        if self.chance.random() < 0.5:
            self.quieten()
            self.compare()

    def _end_leases(self, course: Course, queue_id: int, lite_topic: str) -> None:
        """End the leases of a lite topic, also those of messages deleted by retention."""
        for place in [place for place, held in course.held.items() if held.message_group == lite_topic]:
            if place[0] == queue_id:
                ended_at = self.broker.end_offset + 1
                self.stale.append((course.group, LITE, course.end(place, ended_at).handle))

    def _move(self, course: Course, stored: Stored, is_to_come: bool, durable_at: int) -> None:
        place = stored.place
        if is_to_come and not course.is_open(place):
            course.reopen(place, durable_at)
        elif not is_to_come and course.is_open(place):
            if self.wants(course.group, stored):
                course.done[place] = durable_at
            else:
                course.unwanted.add(place)

    def _place(self, course: Course, queue_id: int, lite_topic: str, start: LiteStart) -> int:
        """Return the queue offset at which a start position begins for a lite topic."""
        first, end = self.broker.finding.queue_range(LITE, queue_id)
        done = self._done_by_broker(course.group, queue_id)
        offsets = [one.queue_offset for one in self._stored(queue_id, lite_topic)]
        here = next((at for at in offsets if at not in done), end)
        before = [at for at in offsets if at < here][-start.at :] if start.at > 0 else []
        return {
            LiteStartPosition.LAST: lambda: first,
            LiteStartPosition.MIN: lambda: first,
            LiteStartPosition.MAX: lambda: end,
            LiteStartPosition.OFFSET: lambda: start.at,
            LiteStartPosition.TIME: lambda: self._starts(LITE, GroupStart(StartPosition.TIME, start.at))[
                queue_id
            ],
            LiteStartPosition.TAIL: lambda: before[0] if before else here,
        }[start.kind]()

    def _done_by_broker(self, group: str, queue_id: int) -> set[int]:
        """Return the queue offsets done for a group at the broker, including those passed over by filters."""
        first, end = self.broker.finding.queue_range(LITE, queue_id)
        offsets = in_flight_of(self.broker, group, LITE, queue_id).offsets
        return {at for at in range(first, end) if offsets.is_done(at)}

    def _stored(self, queue_id: int, lite_topic: str) -> list[Stored]:
        """Return the remaining messages of a lite topic, in order."""
        first, end = self.broker.finding.queue_range(LITE, queue_id)
        found = self.oracle.fifo[LITE, queue_id, lite_topic]
        return [one for one in found if first <= one.queue_offset < end and self._is_kept(one)]

    def _any_lite_start(self) -> LiteStart:
        kind = self.chance.choice(list(LiteStartPosition))
        at = {
            LiteStartPosition.TIME: self.now_ms - self.chance.choice([0, 10, 1_000, 60_000]),
            LiteStartPosition.OFFSET: self.chance.randrange(60),
            LiteStartPosition.TAIL: self.chance.choice([0, 1, 3, 99]),
        }
        return LiteStart(kind, at.get(kind, 0))

    def _some(self) -> list[str]:
        return self.chance.sample(LITE_TOPICS, self.chance.randrange(len(LITE_TOPICS) + 1))

    def _subscribe(self, who: Subscriber, wanted: list[str], start: LiteStart) -> int:
        """Subscribe a client; return the offset that must be durable before the answer."""
        before = self._about_to_join(who.group)
        durable_at = self.broker.lite.subscribe(who, wanted, start, self.now_ms).durable_at
        self._see_joined(self._course(who.group, LITE), before)
        self.said[who] |= set(wanted)
        assert set(wanted) <= self.subscribed(who.group, who.client_id)
        return durable_at

    def _replace(self, who: Subscriber, wanted: list[str]) -> None:
        before = self._about_to_join(who.group)
        self.broker.lite.replace(who, wanted, self.now_ms)
        self._see_joined(self._course(who.group, LITE), before)
        self.said[who] = set(wanted)

    def _about_to_join(self, group: str) -> int:
        if self.oracle.course(group, LITE) is None:
            self._joined(group, LITE)
        return self.broker.end_offset

    def _joined(self, group: str, topic: str) -> None:
        """Begin the course of a group before its creation; its record's offset is known afterwards."""
        starts = {}
        if self.settings.group_start is StartPosition.LATEST and topic in self._topic_names():
            starts = {
                queue_id: self.broker.finding.queue_range(topic, queue_id)[1]
                for queue_id in range(self.broker.topics.get(topic).queue_count)
            }
        self.oracle.begin(Course(group, topic, FOREVER, starts))

    def _see_joined(self, course: Course, before: int) -> None:
        """Set the durable offset of a group that was just created."""
        if course.durable_at == FOREVER:
            course.durable_at = self._appended(GROUP_TOPIC, before)[0].physical_offset + 1

    def _course(self, group: str, topic: str) -> Course:
        course = self.oracle.course(group, topic)
        assert course is not None
        return course
