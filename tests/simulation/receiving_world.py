"""The clients of `receiving_machine`: producers, and consumers that answer, fail to answer, cheat or die.

A consumer uses only leases that were answered, which happens when they are durable. Stale, foreign and forged
handles are refused and change nothing. `drain` lets all groups receive all remaining messages.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Final

from commitlog import limits
from commitlog.records.message import Message
from consumequeue.groups import receipts
from consumequeue.groups.attempts import Cause, Failure
from services.broker.groups.group_values import ReceivedMessages
from services.broker.spine.errors import TooManyFilters, TooManyRequests
from services.broker.spine.topics import DEAD_LETTER_PREFIX
from services.broker.spine.values import Delivery
from tests.lease_places import check_leases
from tests.simulation.receiving_checks import (
    FILTERS,
    LITE,
    LITE_TOPICS,
    ORDERED,
    PRIORITIES,
    TOPICS,
    Wanted,
)
from tests.simulation.receiving_lite import CLIENTS, Subscribers
from tests.simulation.receiving_oracle import (
    FOREVER,
    Course,
    Held,
    stored_of,
)
from tidewheel import property_names
from tidewheel.errors import InvalidReceiptHandle

MESSAGE_GROUPS: Final = ("", "", "m1", "m2", "m3", "m4")
SPANS_MS: Final = (100, 1_000, 5_000, 20_000, 3_600_000)
NOBODYS: Final = (
    "", "x", "1 2 3", "0 0 0 0 0 tidewheel 0 0 0 0", "0 1 1 0 0 tidewheel 7 99 0 1",
    "9 9 9 0 0 tidewheel 1 4000000000 5 6", "-1 0 0 0 0 tidewheel 0 0 0 0", "０ 0 0 0 0 tidewheel 0 0 0 0",
)  # fmt: skip


class World(Subscribers):
    """A broker, its machine, its clients and the oracle."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.count = 0
        self.is_unfinished = False

    def step(self) -> None:
        usual = [
            self.send, self.send, self.send, self.send_many, self.receive, self.receive, self.receive,
            self.receive, self.acknowledge, self.acknowledge, self.acknowledge, self.change, self.release,
            self.subscribe, self.subscribe,
            self.forward, self.cheat, self.hear, self.pass_time, self.pass_time, self.flush, self.flush,
            self.take_flush, self.compare,
        ]  # fmt: skip
        rare = [
            self.crash, self.crash, self.crash, self.fail_to_flush, self.reopen, self.checkpoint, self.reset,
            self.set_policy, self.set_policy, self.create, self.delete, self.redrive, self.redrive,
            self.purge, self.lose_client, self.lose_client, self.go_elsewhere, self.say_goodbye,
            self.set_clock, self.set_clock,
        ]  # fmt: skip
        self.endure(self.chance.choice(rare if self.chance.random() < 0.12 else usual))
        if self.broker.is_checkpoint_due and self.chance.random() < 0.3:
            self.endure(self.checkpoint)
        check_leases(self.broker)

    def send(self) -> None:
        self.count += 1
        topic = self.chance.choice([*ORDERED, *ORDERED, PRIORITIES, LITE, LITE])
        is_ordered = topic in ORDERED
        message = Message(
            topic=topic,
            body=self.chance.randbytes(self.chance.choice([1, 20, 200, 900])),
            message_id=f"M{self.count}",
            tag=self.chance.choice(["", "red", "blue"]),
            message_group=self.chance.choice(MESSAGE_GROUPS) if is_ordered else "",
            priority=self.chance.randrange(5) if topic == PRIORITIES else None,
            lite_topic=self.chance.choice(LITE_TOPICS) if topic == LITE else "",
        )
        self.broker.sending.send(message, self.now_ms)

    def send_many(self) -> None:
        for _ in range(self.chance.randrange(2, 9)):
            self.send()

    def receive(self) -> None:
        group, topic = self.chance.choice([*FILTERS]), self.chance.choice(TOPICS)
        self.receive_from(group, topic, self.chance.choice([1, 1, 2, 3, 6, 40]))

    def receive_from(self, group: str, topic: str, count: int, given: Wanted | None = None) -> int:
        """Receive once, and verify the result; return the number of messages."""
        client, is_push = self.chance.choice(CLIENTS), group == "push"
        wanted, tags = given or self.chance.choice(FILTERS[group])
        if self.oracle.course(group, topic) is None:
            self._joined(group, topic)
        before, subscribed = self.broker.end_offset, self.subscribed(group, client)
        span_ms = 0 if is_push else self.chance.choice(SPANS_MS)
        self.receive_count += 1
        try:
            got = self.broker.receiving.receive(
                group, topic, wanted, count, span_ms, client, is_push, self.now_ms
            )
        except TooManyRequests:
            got = None
        except TooManyFilters:
            self.is_unfinished = False
            course = self._course(group, topic)
            self._see_joined(course, before)
            self._see_filters(course, None, client, before)
            return 0
        self.is_unfinished = got is not None and got.is_unfinished
        course = self._course(group, topic)
        self._see_joined(course, before)
        self._see_filters(course, wanted, client, before)
        self._see_buried(course, before)
        if got is None:
            self._check_crowded(course)
            return 0
        assert not (got.deliveries and self.policy(group).is_paused), "paused, yet given out"
        assert len(got.deliveries) <= min(count, limits.RECEIVE_BATCH_MAX)
        for delivery in got.deliveries:
            self._check_given(course, delivery, tags)
            assert topic != LITE or delivery.message.lite_topic in subscribed, "nobody subscribed to that"
            self._given(course, delivery, client, is_push, span_ms, got)
        if got.deliveries and topic == PRIORITIES:
            self._check_priority(course, min(got.deliveries, key=lambda one: one.queue_id), tags)
        if not got.deliveries and not got.is_unfinished and not self.policy(group).is_paused:
            self._check_nothing_left(course, subscribed, tags)
        return len(got.deliveries)

    def _given(
        self,
        course: Course,
        delivery: Delivery,
        client: str,
        is_push: bool,
        span_ms: int,
        got: ReceivedMessages,
    ) -> None:
        place = delivery.queue_id, delivery.queue_offset
        visible_ms = self.now_ms + (self.settings.auto_renew_lease_ms if is_push else span_ms)
        assert delivery.visible_ms == visible_ms
        course.given[place] += 1
        course.ever_given.add(place)
        course.hold(
            Held(
                place=place,
                generation=_generation(delivery.receipt_handle),
                handle=delivery.receipt_handle,
                consumer=client,
                visible_ms=visible_ms,
                leased_ms=self.now_ms,
                span_ms=visible_ms - self.now_ms,
                is_renewed=is_push,
                renewed_until_ms=visible_ms + limits.AUTO_RENEW_MS_MAX,
                message_group=delivery.message.message_group or delivery.message.lite_topic,
                granted_at=got.durable_at,
                receive_number=self.receive_count,
                failure_count=len(course.failures[place]),
            )
        )

    def _any_held(self) -> tuple[Course, Held] | None:
        """Return a random lease that was answered to its consumer, or None."""
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
        durable_at = self.broker.receiving.ack(course.group, course.topic, held.handle, self.now_ms)
        course.end(held.place, durable_at)
        course.done[held.place] = durable_at
        self.stale.append((course.group, course.topic, held.handle))

    def change(self) -> None:
        found = self._any_held()
        if found is None:
            return
        course, held = found
        span_ms, suspend = self.chance.choice([0, 50, *SPANS_MS]), self.chance.random() < 0.3
        is_failed = not suspend and (held.is_failed or held.is_renewed)
        handle, durable_at = self.broker.receiving.change_invisible(
            course.group, course.topic, held.handle, span_ms, suspend, self.now_ms
        )
        self.stale.append((course.group, course.topic, held.handle))
        if is_failed and self.was_last(course, held):
            span_ms = 0  # there is no further attempt to pause for
        course.end(held.place, durable_at if held.message_group else 0).is_replaced = True
        course.hold(
            replace(
                held,
                generation=_generation(handle),
                handle=handle,
                visible_ms=self.now_ms + span_ms,
                leased_ms=self.now_ms,
                span_ms=span_ms,
                is_renewed=False,
                granted_at=durable_at,
                is_gone=False,
                is_changed=True,
                is_suspended=suspend,
                is_failed=is_failed,
                ended_at=FOREVER,
                is_replaced=False,
            )
        )

    def release(self) -> None:
        """Release a lease whose answer could not be delivered to its client."""
        held = [(course, one) for course in self.oracle.now() for one in course.held.values()]
        if held:
            course, one = self.chance.choice(held)
            ended_at = self.broker.end_offset + 1
            self.broker.receiving.release(course.group, course.topic, one.handle, self.now_ms)
            course.end(one.place, ended_at)
            self.stale.append((course.group, course.topic, one.handle))

    def forward(self) -> None:
        found = self._any_held()
        if found is None or self.chance.random() < 0.5:
            return
        course, held = found
        before, stored = self.broker.end_offset, self.oracle.messages[course.topic][held.place]
        durable_at = self.broker.receiving.forward_to_dead_letter(
            course.group, course.topic, held.handle, self.now_ms
        )
        dead_letters = [stored_of(one) for one in self._appended(DEAD_LETTER_PREFIX + course.group, before)]
        assert dead_letters or stored.physical_offset < self.broker._log.first_offset
        for dead_letter in dead_letters:
            assert dead_letter.marks[property_names.DEAD_REASON] == "its consumer gave it up"
            failures = [failure for _, failure in course.failures[held.place]]
            given_up = Failure(self.now_ms, Cause.GIVEN_UP, held.consumer)
            self._check_dead_letter(course, stored, dead_letter, [*failures, given_up])
        course.end(held.place, durable_at)
        course.done[held.place] = durable_at
        self.stale.append((course.group, course.topic, held.handle))

    def hear(self) -> None:
        """Renew the leases of a live client, which may also have just connected and send its filters."""
        client = self.chance.choice(CLIENTS)
        self.broker.receiving.renew_client(client, self.now_ms)
        self.alive_ms[client] = self.now_ms
        if self.chance.random() < 0.3:
            for topic in TOPICS:
                wanted, _ = self.chance.choice(FILTERS["mixed"])
                self.broker.receiving.record_subscription(client, "mixed", topic, wanted, self.now_ms)
                self.filters["mixed", topic].hold(wanted.text, client)
        for held in self._renewed(client):
            held.is_gone = False
            held.visible_ms = min(self.now_ms + self.settings.auto_renew_lease_ms, held.renewed_until_ms)

    def lose_client(self) -> None:
        client = self.chance.choice(CLIENTS)
        self.broker.receiving.expire_client(client, self.now_ms)
        self.alive_ms.pop(client, None)
        for held in self._renewed(client):
            held.is_gone = True
            held.visible_ms = min(self.now_ms, held.renewed_until_ms)

    def _renewed(self, client: str) -> list[Held]:
        held = [one for course in self.oracle.now() for one in course.held.values()]
        return [one for one in held if one.is_renewed and one.consumer == client]

    def _is_of_before(self, handle: str) -> bool:
        """Return whether a handle is of an earlier epoch: then it may acknowledge a plain message."""
        with suppress(InvalidReceiptHandle):
            return receipts.decode(handle).epoch < self.broker.epoch.number
        return False

    def cheat(self) -> None:
        """Verify that stale, foreign and forged handles are refused and change nothing."""
        handles = [(self.chance.choice([*FILTERS]), "a", self.chance.choice(NOBODYS))]
        handles += self.chance.sample(self.stale, min(3, len(self.stale)))
        found = self._any_held()
        if found is not None:
            course, held = found
            handles.append((self.chance.choice([one for one in FILTERS if one != course.group]), course.topic,
                            held.handle))  # fmt: skip
            other = TOPICS[(TOPICS.index(course.topic) + 1) % len(TOPICS)]
            handles.append((course.group, other, held.handle))
            handles.append(("nobody", course.topic, held.handle))
        before = self._everything()
        for group, topic, handle in handles:
            verb = self.chance.choice(["ack", "change", "release", "forward"][self._is_of_before(handle) :])
            try:
                self._try(verb, group, topic, handle)
            except InvalidReceiptHandle:
                assert self._everything() == before, f"{verb} was refused, and has changed something"
            else:
                raise AssertionError(f"{verb} with {handle!r} of {group} on {topic} was accepted")

    def _try(self, verb: str, group: str, topic: str, handle: str) -> None:
        if verb == "ack":
            self.broker.receiving.ack(group, topic, handle, self.now_ms)
        elif verb == "change":
            self.broker.receiving.change_invisible(group, topic, handle, 1_000, False, self.now_ms)
        elif verb == "release":
            self.broker.receiving.release(group, topic, handle, self.now_ms)
        else:
            self.broker.receiving.forward_to_dead_letter(group, topic, handle, self.now_ms)

    def _reopen(self, acknowledged_offset: int | None) -> None:
        """Reopen the broker: handles of leases that end with it are void; answered policies hold."""
        held = [(course, one) for course in self.oracle.now() for one in course.held.values()]
        told_offset = self.broker.durable_offset
        super()._reopen(acknowledged_offset)
        self.alive_ms.clear()
        for (group, topic), filters in self.filters.items():
            filters.crash(self.broker.end_offset, told_offset)
            assert set(self.broker.groups.filters.texts(group, topic)) == filters.known
        standing = {one.handle for course in self.oracle.now() for one in course.held.values()}
        self.stale = [one for one in self.stale if one[2] not in standing]
        gone = [(course.group, course.topic, one.handle) for course, one in held]
        self.stale += [one for one in gone if one[2] not in standing]
        for said in self.policies.values():
            while said and said[-1][0] > self.broker.end_offset:
                assert said.pop()[0] > told_offset
            said[:] = [(0, policy) for _, policy in said]
        for view in self.broker.group_views.view_all():
            assert view.policy == self.policy(view.name)

    def drain(self) -> None:
        """Receive and acknowledge all remaining messages of every group."""
        for group in FILTERS:
            policy = replace(self.policy(group), is_paused=False)
            durable_at = self.broker.group_views.set_policy(group, policy, self.now_ms)
            self.policies.setdefault(group, []).append((durable_at, policy))
        for _ in range(3):
            self.quieten()
            self.broker.postpone_housekeeping(self.now_ms + 5 * 3_600_000)
            self._tick(self.now_ms + 5 * 3_600_000)
            self.obey_alarm()
            for group in FILTERS:
                for topic in TOPICS:
                    self._drain(group, topic)
        self.quieten()
        self.compare()
        lag = self.broker.groups.lag()
        assert not any(lag.values()), f"never comes to an end: {lag}"

    def _drain(self, group: str, topic: str) -> None:
        if topic == LITE:
            self.subscribe_to_all(group)
        empty_count = 0
        for number in range(1_000):
            given = FILTERS[group][number % len(FILTERS[group])]
            count = self.receive_from(group, topic, 32, given)
            self.quieten()
            empty_count = 0 if count or self.is_unfinished else empty_count + 1
            if empty_count > len(FILTERS[group]) * len(CLIENTS) * 2:
                return
            for held in [*self._course(group, topic).held.values()]:
                self._acknowledge(self._course(group, topic), held)
        raise AssertionError(f"{group} receives {topic} without end")


def _generation(handle: str) -> int:
    return int(handle.split()[-1])
