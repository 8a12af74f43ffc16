"""The operators of `receiving_world`: they set policies, create, reset and delete groups, end dead letters.

The effects of a verb are recorded in the oracle; invalid calls are refused, and a dry run has no effect.
"""

from __future__ import annotations

from services.broker.groups.group_values import GroupPolicy, GroupStart
from services.broker.spine.errors import GroupExists, GroupNotFound, MessageNotFound, MessageTypeConflict
from services.broker.spine.values import StartPosition
from tests.simulation.receiving_checks import FILTERS, LITE, TOPICS, Checks
from tests.simulation.receiving_oracle import (
    FOREVER,
    Course,
)
from tidewheel import property_names


class Operators(Checks):
    """A machine with operators of its groups."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.stale: list[tuple[str, str, str]] = []
        """Void receipt handles: group, topic, handle."""

    def set_policy(self) -> None:
        group = self.chance.choice([*FILTERS])
        policy = GroupPolicy(
            attempts_max=self.chance.choice([1, 2, 3, 17]),
            fifo_run_max=self.chance.choice([1, 1, 2, 4]),
            is_paused=self.chance.random() < 0.15,
        )
        durable_at = self.broker.group_views.set_policy(group, policy, self.now_ms)
        assert self.broker.group_views.view_group(group).policy == policy
        self.policies.setdefault(group, []).append((durable_at, policy))
        for course in [one for one in self.oracle.now() if one.group == group]:
            for held in course.held.values():
                if held.is_failed and self.was_last(course, held):
                    held.visible_ms = min(held.visible_ms, self.now_ms)

    def create(self) -> None:
        group, topic = self.chance.choice([*FILTERS]), self.chance.choice(TOPICS)
        start = self._any_start()
        is_there = self.oracle.course(group, topic) is not None
        expected = self._starts(topic, start)
        try:
            durable_at = self.broker.group_views.create(group, topic, start, self.now_ms)
        except GroupExists:
            assert is_there
            return
        assert not is_there
        self.oracle.begin(Course(group, topic, durable_at, expected))

    def reset(self) -> None:
        courses = list(self.oracle.now())
        if not courses:
            return
        course, start = self.chance.choice(courses), self._any_start()
        before = self._everything()
        dry = self.broker.group_views.reset(course.group, course.topic, start, True, self.now_ms)
        assert (dry.durable_at, self._everything()) == (0, before), "a dry run has changed something"
        expected = self._starts(course.topic, start)
        assert {move.queue_id: move.after for move in dry.moves} == expected
        queues = self.broker.group_views.view_group(course.group).queues
        lows = {one.queue_id: one.committed_offset for one in queues if one.topic == course.topic}
        assert {move.queue_id: move.before for move in dry.moves} == lows
        done = self.broker.group_views.reset(course.group, course.topic, start, False, self.now_ms)
        assert done.moves == dry.moves
        self._void(course)
        self.oracle.begin(Course(course.group, course.topic, done.durable_at, expected))

    def delete(self) -> None:
        group, topic = self.chance.choice([*FILTERS]), self.chance.choice(["", *TOPICS])
        courses = [one for one in self.oracle.now() if one.group == group and topic in ("", one.topic)]
        has_policy = bool(self.policies.get(group) and self.policies[group][-1][1])
        try:
            durable_at = self.broker.group_views.delete(group, topic, self.now_ms)
        except GroupNotFound:
            assert not courses
            assert topic or not has_policy
            return
        assert courses or has_policy
        for course in courses:
            self._void(course)
            self.oracle.begin(Course(course.group, course.topic, durable_at, is_left=True))
            self.filters[course.group, course.topic].leave(durable_at)
        if not topic and has_policy:
            self.policies[group].append((durable_at, None))

    def _void(self, course: Course) -> None:
        self.stale += [(course.group, course.topic, one.handle) for one in course.held.values()]

    def _any_start(self) -> GroupStart:
        kind = self.chance.choice(list(StartPosition))
        at = {
            StartPosition.TIME: self.now_ms - self.chance.choice([0, 10, 1_000, 60_000]),
            StartPosition.OFFSET: 5,
        }
        return GroupStart(
            kind, at.get(kind, 0) + (kind is StartPosition.OFFSET) * self.chance.randrange(-5, 60)
        )

    def _starts(self, topic: str, start: GroupStart) -> dict[int, int]:
        """Return the queue offset of a start position by queue id."""
        if topic not in self._topic_names():
            return dict.fromkeys(range(self.settings.queue_count), 0)
        starts = {}
        for queue_id in range(self.broker.topics.get(topic).queue_count):
            first, end = self.broker.finding.queue_range(topic, queue_id)
            stored = [self.oracle.messages[topic][queue_id, at] for at in range(first, end)]
            older = [one.store_ms < start.at for one in stored if self._is_kept(one)]
            gap_count = len(stored) - len(older) if older and older[0] else 0
            at = {
                StartPosition.EARLIEST: first,
                StartPosition.LATEST: end,
                StartPosition.OFFSET: min(max(start.at, first), end),
                StartPosition.TIME: first + gap_count + sum(older),
            }
            starts[queue_id] = at[start.kind]
        return starts

    def redrive(self) -> None:
        self._close("redrive")

    def purge(self) -> None:
        self._close("purge")

    def _close(self, verb: str) -> None:
        group = self.chance.choice([*FILTERS])
        dead_letters = self.oracle.dead_letters[group]
        if not dead_letters:
            return
        offset = self.chance.choice([*dead_letters, max(dead_letters) + 1, -1])
        dead_letter = dead_letters.get(offset)
        target = self.chance.choice(["", "", *TOPICS])
        is_open = (
            dead_letter is not None and dead_letter.closed_at == FOREVER and self._is_kept(dead_letter.stored)
        )
        try:
            if verb == "redrive":
                closed_at = self.broker.dead_letters.redrive(group, offset, target, self.now_ms)
            else:
                closed_at = self.broker.dead_letters.purge(group, offset, self.now_ms)
        except MessageNotFound:
            assert not is_open
            return
        except MessageTypeConflict:
            assert dead_letter is not None
            assert (property_names.LITE_TOPIC in dead_letter.stored.marks) != (target == LITE)
            return
        assert dead_letter is not None
        assert is_open
        dead_letter.closed_at = closed_at
