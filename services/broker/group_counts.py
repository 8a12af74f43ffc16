"""Counts that operators ask of groups: who holds what, and how many dead letters are open."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from consumequeue.offsets import Progress
from services.broker.dead_letters import OPERATORS
from services.broker.groups import GroupQueue
from services.broker.topics import DEAD_LETTER_PREFIX
from services.broker.verbs import Verbs


@dataclass(slots=True, frozen=True)
class DeadLetterCount:
    """How many dead letters of a group are open; those of its topic end before `next_offset`."""

    group: str
    count: int
    next_offset: int


def leased(core: Verbs, group: str) -> Counter[str]:
    """How many messages each client of a group holds, by client id."""
    return Counter(lease.consumer for key, lease in core._groups.leases() if key.group == group)


def dead_letters(core: Verbs) -> list[DeadLetterCount]:
    """Every group that ever gave a message up, by name."""
    topics = sorted(one.name for one in core.topics() if one.name.startswith(DEAD_LETTER_PREFIX))
    return [_counted(core, topic) for topic in topics]


def dead_letters_of(core: Verbs, group: str) -> DeadLetterCount:
    """One group; all zero if it never gave a message up."""
    topic = DEAD_LETTER_PREFIX + group
    is_there = any(one.name == topic for one in core.topics())
    return _counted(core, topic) if is_there else DeadLetterCount(group, 0, 0)


def _counted(core: Verbs, topic: str) -> DeadLetterCount:
    min_offset, next_offset = core.queue_range(topic, 0)
    progress = core._groups.look(GroupQueue(OPERATORS, topic, 0))
    count = open_count(progress, min_offset, next_offset)
    return DeadLetterCount(topic.removeprefix(DEAD_LETTER_PREFIX), count, next_offset)


def open_count(progress: Progress, min_offset: int, next_offset: int) -> int:
    """How many offsets of a queue are not done; what lies below `min_offset` is gone, done or not."""
    if min_offset <= progress.low_offset:
        return next_offset - progress.low_offset - progress.done_above_count
    done = (max(0, first + count - max(first, min_offset)) for first, count in progress.freeze()["done"])
    return next_offset - min_offset - int(sum(done))
