"""The clients of `receiving_machine`: producers, consumers that answer, forget, cheat or die, and operators.

Everything the broker gives out is held against `receiving_oracle` at once: the right message, to a group that
wants it, in the order of its message group and never beside another one of it, with the right attempt. At
quiet moments everything that can be looked at is compared; `drain` lets all groups receive all that is left.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from commitlog import limits, properties
from commitlog.errors import (
    GroupExists,
    GroupNotFound,
    InvalidReceiptHandle,
    MessageNotFound,
    TooManyRequests,
)
from commitlog.message import Message
from commitlog.properties import DEAD_ATTEMPTS
from commitlog.record import Record
from commitlog.recovery import Found
from consumequeue.filter import EVERYTHING, Filter, parse_tags
from services.broker.group_values import From, GroupPolicy, Received, Start
from services.broker.groups import GROUP_TOPIC
from services.broker.topics import DEAD_LETTER_PREFIX
from services.broker.values import Delivery
from tests.simulation.receiving_machine import Machine
from tests.simulation.receiving_oracle import (
    FOREVER,
    Course,
    Held,
    Stored,
    is_done,
    progress_of,
    stored_of,
)

TOPICS: Final = ("a", "b")
CLIENTS: Final = ("c1", "c2", "c3")
MESSAGE_GROUPS: Final = ("", "", "m1", "m2", "m3", "m4")
SPANS_MS: Final = (100, 1_000, 5_000, 20_000, 3_600_000)
FILTERS: Final[dict[str, tuple[Filter, frozenset[str]]]] = {
    "all": (EVERYTHING, frozenset({"", "red", "blue"})),
    "some": (parse_tags("red || blue"), frozenset({"red", "blue"})),
    "push": (EVERYTHING, frozenset({"", "red", "blue"})),
}
"""Each group with its filter and the tags that it lets through."""
NOBODYS: Final = (
    "", "x", "1 2 3", "0 0 0 0 0 tidewheel 0 0 0 0", "0 1 1 0 0 tidewheel 7 99 0 1",
    "9 9 9 0 0 tidewheel 1 4000000000 5 6", "-1 0 0 0 0 tidewheel 0 0 0 0", "０ 0 0 0 0 tidewheel 0 0 0 0",
)  # fmt: skip


class World(Machine):
    """A broker, its machine, its clients and the oracle."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.count = 0
        self.receive_count = 0
        self.is_unfinished = False
        self.stale: list[tuple[str, str, str]] = []
        """Handles that are void: group, topic, handle."""
        self.policies: dict[str, list[tuple[int, GroupPolicy | None]]] = {}

    def step(self) -> None:
        usual = [
            self.send, self.send, self.send, self.send_many, self.receive, self.receive, self.receive,
            self.receive, self.acknowledge, self.acknowledge, self.acknowledge, self.change, self.release,
            self.forward, self.cheat, self.hear, self.pass_time, self.pass_time, self.flush, self.flush,
            self.take_flush, self.compare,
        ]  # fmt: skip
        rare = [
            self.crash, self.crash, self.crash, self.fail_to_flush, self.reopen, self.checkpoint, self.reset,
            self.set_policy, self.set_policy, self.create, self.delete, self.redrive, self.redrive,
            self.purge, self.lose_client, self.lose_client,
        ]  # fmt: skip
        self.chance.choice(rare if self.chance.random() < 0.12 else usual)()
        if self.broker.is_checkpoint_due and self.chance.random() < 0.3:
            self.checkpoint()

    def wants(self, group: str, stored: Stored) -> bool:
        return stored.tag in FILTERS[group][1] and stored.for_group in ("", group)

    def policy(self, group: str) -> GroupPolicy:
        """The policy that was set last."""
        said = self.policies.get(group)
        default = GroupPolicy(attempts_max=self.settings.attempts_max)
        return (said[-1][1] if said else None) or default

    # Producers.

    def send(self) -> None:
        self.count += 1
        message = Message(
            topic=self.chance.choice(TOPICS),
            body=self.chance.randbytes(self.chance.choice([1, 20, 200, 900])),
            message_id=f"M{self.count}",
            tag=self.chance.choice(["", "red", "blue"]),
            message_group=self.chance.choice(MESSAGE_GROUPS),
        )
        self.broker.send(message, self.now_ms)

    def send_many(self) -> None:
        for _ in range(self.chance.randrange(2, 9)):
            self.send()

    # Consumers.

    def receive(self) -> None:
        group, topic = self.chance.choice([*FILTERS]), self.chance.choice(TOPICS)
        self.receive_from(group, topic, self.chance.choice([1, 1, 2, 3, 6, 40]))

    def receive_from(self, group: str, topic: str, count: int) -> int:
        """Receives once; returns how many messages came."""
        client, is_push = self.chance.choice(CLIENTS), group == "push"
        if self.oracle.course(group, topic) is None:
            self._joined(group, topic)
        before = self.broker.end_offset
        span_ms = 0 if is_push else self.chance.choice(SPANS_MS)
        self.receive_count += 1
        try:
            got = self.broker.receive(
                group, topic, FILTERS[group][0], count, span_ms, client, is_push, self.now_ms
            )
        except TooManyRequests:
            got = None
        self.is_unfinished = got is not None and got.is_unfinished
        course = self._course(group, topic)
        if course.durable_at == FOREVER:
            [course.durable_at] = [one.physical_offset + 1 for one in self._appended(GROUP_TOPIC, before)]
        self._see_buried(course, before)
        if got is None:
            self._check_crowded(course)
            return 0
        assert not (got.deliveries and self.policy(group).is_paused), "paused, yet given out"
        assert len(got.deliveries) <= min(count, limits.RECEIVE_BATCH_MAX)
        for delivery in got.deliveries:
            self._check_given(course, delivery)
            self._given(course, delivery, client, is_push, span_ms, got)
        if not got.deliveries and not got.is_unfinished and not self.policy(group).is_paused:
            self._check_nothing_left(course)
        return len(got.deliveries)

    def _joined(self, group: str, topic: str) -> None:
        """A receive is about to make the group; its record's place is known behind it."""
        starts = {}
        if self.settings.group_start is From.LATEST and topic in self._topic_names():
            starts = {
                queue_id: self.broker.queue_range(topic, queue_id)[1]
                for queue_id in range(self.broker.topic(topic).queue_count)
            }
        self.oracle.begin(Course(group, topic, FOREVER, starts))

    def _given(
        self, course: Course, delivery: Delivery, client: str, is_push: bool, span_ms: int, got: Received
    ) -> None:
        place = delivery.queue_id, delivery.queue_offset
        visible_ms = self.now_ms + (self.settings.auto_renew_lease_ms if is_push else span_ms)
        assert delivery.visible_ms == visible_ms
        course.hold(
            Held(
                place=place,
                generation=_generation(delivery.receipt_handle),
                handle=delivery.receipt_handle,
                consumer=client,
                visible_ms=visible_ms,
                is_renewed=is_push,
                renewed_until_ms=visible_ms + limits.AUTO_RENEW_MS_MAX,
                message_group=delivery.message.message_group,
                granted_at=got.durable_at,
                receive_number=self.receive_count,
                failure_count=len(course.failures[place]),
            )
        )

    def _check_given(self, course: Course, delivery: Delivery) -> None:
        """A message that is given out is the right one at the right moment."""
        place = delivery.queue_id, delivery.queue_offset
        stored = self.oracle.messages[course.topic][place]
        assert delivery.message.message_id == stored.message_id
        assert delivery.message.body == stored.body
        assert self.wants(course.group, stored), f"{course.group} does not want {stored}"
        assert place not in course.done, f"{stored} is done, yet given out"
        assert course.is_open(place), f"{stored} lies before the start of {course.group}"
        assert place not in course.held, f"{stored} is leased already: {course.held[place]}"
        attempt, attempts_max = len(course.failures[place]) + 1, self.policy(course.group).attempts_max
        assert delivery.attempt == attempt, f"attempt {delivery.attempt} is told, it is {attempt}"
        assert attempt <= attempts_max, f"attempt {attempt} of {attempts_max}"
        if stored.message_group:
            self._check_order(course, stored)

    def _check_order(self, course: Course, stored: Stored) -> None:
        """Of a message group nothing else is in flight but this receive's run, and all before it is done."""
        standing = course.standing(stored.message_group)
        other = [one for one in standing if one.receive_number != self.receive_count]
        assert not other, f"{stored} is given out beside {other}"
        assert len(standing) < self.policy(course.group).fifo_run_max, f"{stored} is beyond the run"
        min_offset = self.broker.queue_range(stored.topic, stored.queue_id)[0]
        for one in self.oracle.fifo[stored.topic, stored.queue_id, stored.message_group]:
            if one.queue_offset >= stored.queue_offset:
                break
            is_there = one.queue_offset >= min_offset and self.wants(course.group, one)
            is_waiting = is_there and course.is_open(one.place) and one.place not in course.held
            assert not is_waiting, f"{stored} is given out before {one}"

    def _check_nothing_left(self, course: Course) -> None:
        """Whoever received nothing has nothing to receive."""
        taken = {one.message_group for one in course.held.values()} - {""}
        for place, stored in self.oracle.messages[course.topic].items():
            first, end = self.broker.queue_range(course.topic, place[0])
            is_there = first <= place[1] < end and self.wants(course.group, stored)
            is_free = place not in course.held and stored.message_group not in taken
            is_left = is_there and course.is_open(place) and is_free
            assert not is_left, f"{course.group} received nothing, yet there is {stored}"

    def _check_crowded(self, course: Course) -> None:
        """A receive was refused: there is as much in flight, or waiting, as may be."""
        queues = [
            progress_of(self.broker, course.group, course.topic, queue_id)
            for queue_id in range(self.broker.topic(course.topic).queue_count)
        ]
        assert any(one.is_crowded for one in queues), "refused for nothing"

    def _see_buried(self, course: Course, before: int) -> None:
        """A receive moves to the dead letters what has had all its attempts, and nothing else."""
        topic = DEAD_LETTER_PREFIX + course.group
        for record in self._appended(topic, before):
            letter = stored_of(record)
            assert letter.marks[properties.DEAD_REASON] == "attempts used up"
            stored = min(
                (
                    one
                    for place, one in self.oracle.messages[course.topic].items()
                    if one.message_id == letter.message_id
                    and self.wants(course.group, one)
                    and course.is_open(place)
                    and place not in course.held
                    and self._is_done(course, one)
                ),
                key=lambda one: (
                    str(len(course.failures[one.place])) != letter.marks[DEAD_ATTEMPTS],
                    one.place,
                ),
            )
            count = len(course.failures[stored.place])
            assert count >= self.policy(course.group).attempts_max, f"buried after {count}: {stored}"
            self._check_letter(course, stored, letter, count)
            course.done[stored.place] = before + 1

    def _appended(self, topic: str, first_offset: int) -> list[Record]:
        """The records of a topic that were appended from an offset on, and are not durable yet."""
        appended = [found.record for found in self.broker._store._appended if isinstance(found, Found)]
        return [one for one in appended if one.topic == topic and one.physical_offset >= first_offset]

    def _check_letter(self, course: Course, stored: Stored, letter: Stored, count: int) -> None:
        failures = [failure for _, failure in course.failures[stored.place]]
        errors = (str(failures[0]), str(failures[-1])) if failures else ("", "")
        marks = letter.marks
        assert marks[properties.DEAD_LETTER_TOPIC] == course.topic
        assert marks[properties.DEAD_LETTER_MESSAGE_ID] == stored.message_id
        assert marks[DEAD_ATTEMPTS] == str(count)
        assert (
            marks.get(properties.DEAD_FIRST_ERROR, ""),
            marks.get(properties.DEAD_LAST_ERROR, ""),
        ) == errors
        assert letter.body == stored.body

    def _is_done(self, course: Course, stored: Stored) -> bool:
        progress = progress_of(self.broker, course.group, course.topic, stored.queue_id)
        return is_done(progress, stored.queue_offset)

    def _any_held(self) -> tuple[Course, Held] | None:
        """A lease that its consumer has heard of."""
        durable = self.broker.durable_offset
        held = [
            (course, one)
            for course in self.oracle.now()
            for one in course.held.values()
            if one.granted_at <= durable
        ]
        return self.chance.choice(held) if held else None

    def acknowledge(self) -> None:
        for _ in range(self.chance.randrange(1, 4)):
            found = self._any_held()
            if found is not None:
                self._acknowledge(*found)

    def _acknowledge(self, course: Course, held: Held) -> None:
        durable_at = self.broker.ack(course.group, course.topic, held.handle, self.now_ms)
        course.end(held.place, durable_at)
        course.done[held.place] = durable_at
        self.stale.append((course.group, course.topic, held.handle))

    def change(self) -> None:
        found = self._any_held()
        if found is None:
            return
        course, held = found
        span_ms, suspend = self.chance.choice([0, 50, *SPANS_MS]), self.chance.random() < 0.3
        handle, durable_at = self.broker.change_invisible(
            course.group, course.topic, held.handle, span_ms, suspend, self.now_ms
        )
        self.stale.append((course.group, course.topic, held.handle))
        course.end(held.place, durable_at if held.message_group else 0).is_replaced = True
        course.hold(
            replace(
                held,
                generation=_generation(handle),
                handle=handle,
                visible_ms=self.now_ms + span_ms,
                is_renewed=False,
                granted_at=durable_at,
                is_gone=False,
                is_changed=True,
                is_suspended=suspend,
                ended_at=FOREVER,
                is_replaced=False,
            )
        )

    def release(self) -> None:
        """An answer was not heard, of which the shell knows."""
        held = [(course, one) for course in self.oracle.now() for one in course.held.values()]
        if held:
            course, one = self.chance.choice(held)
            ended_at = self.broker.end_offset + 1
            self.broker.release(course.group, course.topic, one.handle, self.now_ms)
            course.end(one.place, ended_at)
            self.stale.append((course.group, course.topic, one.handle))

    def forward(self) -> None:
        found = self._any_held()
        if found is None or self.chance.random() < 0.5:
            return
        course, held = found
        before, stored = self.broker.end_offset, self.oracle.messages[course.topic][held.place]
        durable_at = self.broker.forward_to_dead_letter(course.group, course.topic, held.handle, self.now_ms)
        letters = [stored_of(one) for one in self._appended(DEAD_LETTER_PREFIX + course.group, before)]
        assert letters or stored.physical_offset < self.broker._log.first_offset
        for letter in letters:
            assert letter.marks[properties.DEAD_REASON] == "its consumer gave it up"
            self._check_letter(course, stored, letter, len(course.failures[held.place]) + 1)
        course.end(held.place, durable_at)
        course.done[held.place] = durable_at
        self.stale.append((course.group, course.topic, held.handle))

    def hear(self) -> None:
        """A client is alive: its leases go on."""
        client = self.chance.choice(CLIENTS)
        self.broker.client_alive(client, self.now_ms)
        for held in self._renewed(client):
            held.is_gone = False
            held.visible_ms = min(self.now_ms + self.settings.auto_renew_lease_ms, held.renewed_until_ms)

    def lose_client(self) -> None:
        client = self.chance.choice(CLIENTS)
        self.broker.client_gone(client, self.now_ms)
        for held in self._renewed(client):
            held.is_gone = True
            held.visible_ms = min(self.now_ms, held.renewed_until_ms)

    def _renewed(self, client: str) -> list[Held]:
        held = [one for course in self.oracle.now() for one in course.held.values()]
        return [one for one in held if one.is_renewed and one.consumer == client]

    def cheat(self) -> None:
        """Handles that are stale, somebody else's, or made up are refused and change nothing."""
        handles = [(self.chance.choice([*FILTERS]), "a", self.chance.choice(NOBODYS))]
        handles += self.chance.sample(self.stale, min(3, len(self.stale)))
        found = self._any_held()
        if found is not None:
            course, held = found
            handles.append((self.chance.choice([one for one in FILTERS if one != course.group]), course.topic,
                            held.handle))  # fmt: skip
            other = TOPICS[course.topic == TOPICS[0]]
            handles.append((course.group, other, held.handle))
            handles.append(("nobody", course.topic, held.handle))
        for group, topic, handle in handles:
            before = self._everything()
            verb = self.chance.choice(["ack", "change", "release", "forward"])
            try:
                self._try(verb, group, topic, handle)
            except InvalidReceiptHandle:
                assert self._everything() == before, f"{verb} was refused, and has changed something"
            else:
                raise AssertionError(f"{verb} with {handle!r} of {group} on {topic} was accepted")

    def _try(self, verb: str, group: str, topic: str, handle: str) -> None:
        if verb == "ack":
            self.broker.ack(group, topic, handle, self.now_ms)
        elif verb == "change":
            self.broker.change_invisible(group, topic, handle, 1_000, False, self.now_ms)
        elif verb == "release":
            self.broker.release(group, topic, handle, self.now_ms)
        else:
            self.broker.forward_to_dead_letter(group, topic, handle, self.now_ms)

    def _everything(self) -> object:
        groups = self.broker._groups
        unwritten = [len(one) for one in (groups._unwritten, groups._unwritten_leases)]
        return groups.freeze(), groups.in_flight(), unwritten, self.broker.end_offset

    # Operators.

    def set_policy(self) -> None:
        group = self.chance.choice([*FILTERS])
        policy = GroupPolicy(
            attempts_max=self.chance.choice([1, 2, 3, 17]),
            fifo_run_max=self.chance.choice([1, 1, 2, 4]),
            is_paused=self.chance.random() < 0.15,
        )
        view = self.broker.set_group(group, policy, self.now_ms)
        assert view.policy == policy
        self.policies.setdefault(group, []).append((view.durable_at, policy))

    def create(self) -> None:
        group, topic = self.chance.choice([*FILTERS]), self.chance.choice(TOPICS)
        start = self._any_start()
        is_there = self.oracle.course(group, topic) is not None
        expected = self._starts(topic, start)
        try:
            view = self.broker.create_group(group, topic, start, self.now_ms)
        except GroupExists:
            assert is_there
            return
        assert not is_there
        self.oracle.begin(Course(group, topic, view.durable_at, expected))

    def reset(self) -> None:
        courses = list(self.oracle.now())
        if not courses:
            return
        course, start = self.chance.choice(courses), self._any_start()
        before = self._everything()
        dry = self.broker.reset_group(course.group, course.topic, start, True, self.now_ms)
        assert (dry.durable_at, self._everything()) == (0, before), "a dry run has changed something"
        expected = self._starts(course.topic, start)
        assert {move.queue_id: move.after for move in dry.moves} == expected
        lows = {one.queue_id: one.low_offset for one in self.broker.group(course.group, self.now_ms).queues
                if one.topic == course.topic}  # fmt: skip
        assert {move.queue_id: move.before for move in dry.moves} == lows
        done = self.broker.reset_group(course.group, course.topic, start, False, self.now_ms)
        assert done.moves == dry.moves
        self._void(course)
        self.oracle.begin(Course(course.group, course.topic, done.durable_at, expected))

    def delete(self) -> None:
        group, topic = self.chance.choice([*FILTERS]), self.chance.choice(["", *TOPICS])
        courses = [one for one in self.oracle.now() if one.group == group and topic in ("", one.topic)]
        has_policy = bool(self.policies.get(group) and self.policies[group][-1][1])
        try:
            durable_at = self.broker.delete_group(group, topic, self.now_ms)
        except GroupNotFound:
            assert not courses
            assert topic or not has_policy
            return
        assert courses or has_policy
        for course in courses:
            self._void(course)
            self.oracle.begin(Course(course.group, course.topic, durable_at, is_left=True))
        if not topic and has_policy:
            self.policies[group].append((durable_at, None))

    def _void(self, course: Course) -> None:
        self.stale += [(course.group, course.topic, one.handle) for one in course.held.values()]

    def _any_start(self) -> Start:
        kind = self.chance.choice(list(From))
        at = {From.TIME: self.now_ms - self.chance.choice([0, 10, 1_000, 60_000]), From.OFFSET: 5}
        return Start(kind, at.get(kind, 0) + (kind is From.OFFSET) * self.chance.randrange(-5, 60))

    def _starts(self, topic: str, start: Start) -> dict[int, int]:
        """Where that start is on each queue."""
        if topic not in self._topic_names():
            return dict.fromkeys(range(self.settings.queue_count), 0)
        starts = {}
        for queue_id in range(self.broker.topic(topic).queue_count):
            first, end = self.broker.queue_range(topic, queue_id)
            stored = [self.oracle.messages[topic][queue_id, at] for at in range(first, end)]
            at = {
                From.EARLIEST: first,
                From.LATEST: end,
                From.OFFSET: min(max(start.at, first), end),
                From.TIME: first + sum(one.store_ms < start.at for one in stored),
            }
            starts[queue_id] = at[start.kind]
        return starts

    def _topic_names(self) -> list[str]:
        return [topic.name for topic in self.broker.topics()]

    def redrive(self) -> None:
        self._close("redrive")

    def purge(self) -> None:
        self._close("purge")

    def _close(self, verb: str) -> None:
        group = self.chance.choice([*FILTERS])
        letters = self.oracle.letters[group]
        if not letters:
            return
        offset = self.chance.choice([*letters, max(letters) + 1, -1])
        letter = letters.get(offset)
        target = self.chance.choice(["", "", *TOPICS])
        is_open = letter is not None and letter.closed_at == FOREVER and self._is_kept(letter.stored)
        try:
            if verb == "redrive":
                closed_at = self.broker.redrive(group, offset, target, self.now_ms)
            else:
                closed_at = self.broker.purge(group, offset, self.now_ms)
        except MessageNotFound:
            assert not is_open
            return
        assert letter is not None
        assert is_open
        letter.closed_at = closed_at

    def _is_kept(self, stored: Stored) -> bool:
        return stored.physical_offset >= self.broker._log.first_offset

    # What must be true.

    def _reopen(self, trusted_offset: int | None) -> None:
        """Handles of leases that end with the broker are void; a policy that was told holds."""
        held = [(course, one) for course in self.oracle.now() for one in course.held.values()]
        told_offset = self.broker.durable_offset
        super()._reopen(trusted_offset)
        standing = {one.handle for course in self.oracle.now() for one in course.held.values()}
        self.stale = [one for one in self.stale if one[2] not in standing]
        gone = [(course.group, course.topic, one.handle) for course, one in held]
        self.stale += [one for one in gone if one[2] not in standing]
        for said in self.policies.values():
            while said and said[-1][0] > self.broker.end_offset:
                assert said.pop()[0] > told_offset
            said[:] = [(0, policy) for _, policy in said]
        for view in self.broker.groups(self.now_ms):
            assert view.policy == self.policy(view.name)

    def compare(self) -> None:
        """Everything that can be looked at is as the oracle has it."""
        views = {view.name: view for view in self.broker.groups(self.now_ms)}
        courses = {(course.group, course.topic): course for course in self.oracle.now()}
        with_policy = {group for group, said in self.policies.items() if said and said[-1][1]}
        assert set(views) == {group for group, _ in courses} | with_policy
        for group, view in views.items():
            assert view.policy == self.policy(group)
            assert {one.topic for one in view.queues} == {topic for name, topic in courses if name == group}
            for queue in view.queues:
                self._compare_queue(courses[group, queue.topic], queue.queue_id)
        lag = self.broker.gauges().lag
        for (group, topic), _ in courses.items():
            queues = [one for one in views[group].queues if one.topic == topic]
            assert lag.get((topic, group), 0) == sum(one.lag for one in queues)
        self._compare_letters()

    def _compare_queue(self, course: Course, queue_id: int) -> None:
        [view] = [one for one in self.broker.group(course.group, self.now_ms).queues
                  if (one.topic, one.queue_id) == (course.topic, queue_id)]  # fmt: skip
        progress = progress_of(self.broker, course.group, course.topic, queue_id)
        first, end = self.broker.queue_range(course.topic, queue_id)
        assert (view.min_offset, view.next_offset) == (first, end)
        held = {place[1] for place in course.held if place[0] == queue_id}
        done = {at for at in range(first, end) if is_done(progress, at)}
        for at in range(first, end):
            stored = self.oracle.messages[course.topic][queue_id, at]
            is_open = course.is_open(stored.place)
            assert is_open or at in done, f"{stored} is done, and {course.group} does not know it"
            is_unwanted = not self.wants(course.group, stored)
            assert at not in done or not is_open or is_unwanted, f"{course.group} has lost {stored}"
        low = next((at for at in range(first, end) if at not in done), max(end, view.low_offset))
        assert view.low_offset == low
        assert view.done_above == sum(at > low for at in done)
        assert view.lag == end - first - len(done)
        assert view.in_flight == len(held)
        waiting = set(range(low, min(view.fresh_offset, end))) - done - held
        assert view.waiting == len(waiting), f"{view}, yet {waiting} wait"
        limit = limits.IN_FLIGHT_PER_QUEUE_MAX + limits.PARKED_PER_QUEUE_MAX
        assert view.in_flight + view.waiting <= limit, f"{view} is beyond the limits"
        oldest = self.oracle.messages[course.topic].get((queue_id, low))
        assert view.oldest_ms == (oldest.store_ms if oldest and low < end else None)

    def _compare_letters(self) -> None:
        """What is listed are all dead letters, but those that an operator has seen to."""
        for group, letters in self.oracle.letters.items():
            listed = []
            after: int | None = None
            while True:
                page = self.broker.dead_letters(group, after, self.chance.choice([1, 3, 100]))
                listed += page.letters
                after = page.after
                if after is None:
                    break
            expected = [
                offset
                for offset, one in letters.items()
                if one.closed_at == FOREVER and self._is_kept(one.stored)
            ]
            assert [one.queue_offset for one in listed] == expected
            for one in listed:
                assert one.message.message_id == letters[one.queue_offset].stored.message_id

    # The end.

    def drain(self) -> None:
        """Every group receives and acknowledges all that is left for it."""
        for group in FILTERS:
            policy = replace(self.policy(group), is_paused=False)
            view = self.broker.set_group(group, policy, self.now_ms)
            self.policies.setdefault(group, []).append((view.durable_at, policy))
        for _ in range(3):
            self.quieten()
            self.broker.postpone_housekeeping(self.now_ms + 5 * 3_600_000)
            self._tick(self.now_ms + 5 * 3_600_000)
            for group in FILTERS:
                for topic in TOPICS:
                    self._drain(group, topic)
        self.quieten()
        self.compare()
        lag = self.broker.gauges().lag
        assert not any(lag.values()), f"never comes to an end: {lag}"

    def _drain(self, group: str, topic: str) -> None:
        for _ in range(1_000):
            count = self.receive_from(group, topic, 32)
            self.quieten()
            if not count and not self.is_unfinished:
                return
            for held in [*self._course(group, topic).held.values()]:
                self._acknowledge(self._course(group, topic), held)
        raise AssertionError(f"{group} receives {topic} without end")

    def _course(self, group: str, topic: str) -> Course:
        course = self.oracle.course(group, topic)
        assert course is not None
        return course


def _generation(handle: str) -> int:
    return int(handle.split()[-1])
