"""Which groups there are, how far each is on each queue, and the records that say so.

A group is known from its first receive of a topic on. The body of a `TW_SYS_GROUP` record is JSON:

    {"group", "topic"}                the group receives the topic, from its earliest message on
    {"group", "topic", "positions"}   and from now on from these offsets ({queue id: offset}); leases end
    {"group", "topic", "left"}        it no longer does; with an empty topic nothing is known of the group
    {"group", "topic", "reopened"}    these messages of lite topics are not done after all, which
                                      ({queue id: [the first offset, how far on the next one is, ...]})
    {"group", "policy"}               how its messages are given out (`services.broker.group_values`)

What is acknowledged in one turn of the loop is written as one record (`consumequeue.acks`) when the next
flush is taken, and what became of leases as another (`consumequeue.lease_records`) before it; so
`log.end_offset + 1`, read when something is finished, is durable exactly when that is.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from commitlog import limits
from commitlog.errors import TooManyGroups
from commitlog.kinds import ACK_TOPIC, GROUP_TOPIC, LEASE_TOPIC
from commitlog.record import TYPE_SYSTEM, Record
from commitlog.retention import SegmentAge
from consumequeue import acks, lease_records
from consumequeue.acks import Acknowledged
from consumequeue.attempts import Failure
from consumequeue.lease_records import Kind, LeaseEntry
from consumequeue.offsets import Lease, Progress
from consumequeue.queue import ConsumeQueue
from services.broker.group_values import GroupPolicy
from services.broker.settings import BrokerSettings
from services.broker.store import Store


class GroupQueue(NamedTuple):
    """One queue as one group sees it."""

    group: str
    topic: str
    queue_id: int


class Groups:
    """The progress of all groups."""

    def __init__(self, store: Store, settings: BrokerSettings) -> None:
        self._store = store
        self._default = GroupPolicy(attempts_max=settings.attempts_max)
        self._members: dict[str, dict[str, None]] = {}
        self._policies: dict[str, GroupPolicy] = {}
        self._progress: dict[GroupQueue, Progress] = {}
        self.woken: dict[str, None] = {}
        """Topics where an acknowledgement gave a message its turn; emptied by whoever wakes receivers."""
        self._unwritten: defaultdict[GroupQueue, list[int]] = defaultdict(list)
        self._unwritten_leases: defaultdict[GroupQueue, list[LeaseEntry]] = defaultdict(list)

    def names(self) -> list[str]:
        """All groups, by name: those that receive a topic, and those that have a policy."""
        receiving = {group for groups in self._members.values() for group in groups}
        return sorted(receiving | set(self._policies))

    def topics_of(self, group: str) -> list[str]:
        """The topics that a group receives, by name."""
        return sorted(topic for topic, groups in self._members.items() if group in groups)

    def receives(self, group: str, topic: str) -> bool:
        """Whether a group receives a topic."""
        return group in self._members.get(topic, ())

    def policy(self, group: str) -> GroupPolicy:
        """How a group's messages are given out."""
        return self._policies.get(group, self._default)

    def join(self, group: str, topic: str, positions: Mapping[int, int], now_ms: int) -> int:
        """A group receives a topic, from these offsets on or else the earliest; what must be durable.

        Raises `TooManyGroups`.
        """
        self._check_room(sum(map(len, self._members.values())), "subscriptions of groups to topics")
        return self._write({"group": group, "topic": topic, "positions": _text_keys(positions)}, now_ms)

    def used_up(self, group: str = "") -> Iterator[tuple[GroupQueue, int]]:
        """What had all its attempts and is not leased, of one group or all."""
        for key, progress in self._progress.items():
            if group in ("", key.group):
                for offset in progress.used_up(self.policy(key.group).attempts_max):
                    yield key, offset

    def set_policy(self, group: str, policy: GroupPolicy, now_ms: int) -> int:
        """A group's messages are given out in this way from now on; returns what must be durable.

        Raises `TooManyGroups`.
        """
        if group not in self._policies:
            self._check_room(len(self._policies), "groups with a policy")
        return self._write({"group": group, "policy": asdict(policy)}, now_ms)

    def move(self, group: str, topic: str, positions: Mapping[int, int], now_ms: int) -> int:
        """A group goes on at these offsets, leases void; returns what must be durable."""
        self.write_pending()
        return self._write({"group": group, "topic": topic, "positions": _text_keys(positions)}, now_ms)

    def reopen(self, key: GroupQueue, offsets: list[int], now_ms: int) -> int:
        """Messages of a queue, ascending, are to come again; returns what must be durable."""
        self.write_pending()
        steps = [offset - before for before, offset in pairwise([0, *offsets])]
        reopened = {str(key.queue_id): steps}
        return self._write({"group": key.group, "topic": key.topic, "reopened": reopened}, now_ms)

    def lowest_open(self, topic: str, queue_id: int) -> int | None:
        """The lowest offset of a queue that some group has not done; None if no group receives it."""
        keys = (GroupQueue(group, topic, queue_id) for group in self._members.get(topic, ()))
        return min((self.look(key).low_offset for key in keys), default=None)

    def leave(self, group: str, topic: str, now_ms: int) -> int:
        """A group no longer receives a topic, or (empty) is forgotten whole; returns what must be durable."""
        self.write_pending()
        return self._write({"group": group, "topic": topic, "left": True}, now_ms)

    def held(self, key: GroupQueue, queue_offset: int, generation: int) -> Lease | None:
        """The lease of that generation if it still stands; whatever a forged handle asks, nothing is made."""
        progress = self._progress.get(key)
        return None if progress is None else progress.held(queue_offset, generation)

    def recovered_group(self, record: Record) -> None:
        """Takes over what a record says of a group."""
        self._take(json.loads(record.body))

    def progress(self, key: GroupQueue) -> Progress:
        """The group's progress on a queue; a group that is new to it starts at the earliest message."""
        progress = self._progress.get(key)
        if progress is None:
            progress = self._progress[key] = Progress()
        return progress

    def look(self, key: GroupQueue) -> Progress:
        """The group's progress on a queue, to be looked at: nothing is made of it."""
        return self._progress.get(key) or Progress()

    def finish(self, key: GroupQueue, queue_offset: int) -> int:
        """The group is done with a message; returns what must be durable before anyone is told."""
        progress = self.progress(key)
        progress.finish(queue_offset)
        self._unwritten[key].append(queue_offset)
        if progress.has_ready:
            self.woken[key.topic] = None
        return self._store.log.end_offset + 1

    def keep_lease(self, key: GroupQueue, lease: Lease) -> int:
        """A lease is to outlive a restart; returns what must be durable before anyone is told."""
        attempts = self.progress(key).attempts(lease.queue_offset).count
        is_renewed = bool(lease.client_id)
        self._unwritten_leases[key].append(
            LeaseEntry(
                Kind.LEASED,
                0,
                attempts,
                lease.queue_offset,
                lease.generation,
                lease.visible_ms,
                lease.leased_ms,
                lease.consumer,
                is_renewed,
                lease.message_group,
                lease.is_changed,
                lease.is_suspended,
                lease.attempt_id,
            )
        )
        return self._store.log.end_offset + 1

    def give_back(self, key: GroupQueue, lease: Lease, failure: Failure | None, now_ms: int) -> None:
        """A lease ended without acknowledgement: recorded if the attempt counts, or if the lease was kept."""
        offset, progress = lease.queue_offset, self.progress(key)
        progress.give_back(offset, failure)
        if failure is None and not lease.message_group:
            return
        cause = 0 if failure is None else failure.cause
        attempts = progress.attempts(offset).count
        entry = LeaseEntry(Kind.ENDED, cause, attempts, offset, 0, now_ms, 0, lease.consumer, False, "")
        self._unwritten_leases[key].append(entry)

    def write_pending(self) -> None:
        """Appends what became of leases, and what was finished, since the last call."""
        if self._unwritten_leases:
            body = lease_records.encode(self._unwritten_leases.items())
            self._unwritten_leases.clear()
            self._append(LEASE_TOPIC, body, self._store.last_store_ms)
        if self._unwritten:
            done = [Acknowledged(*key, acks.ranges_of(offsets)) for key, offsets in self._unwritten.items()]
            self._unwritten.clear()
            self._append(ACK_TOPIC, acks.encode(done), self._store.last_store_ms)

    def recovered_acks(self, record: Record) -> None:
        """Takes over acknowledgements from their record."""
        for group, topic, queue_id, ranges in acks.decode(record.body):
            progress = self.progress(GroupQueue(group, topic, queue_id))
            for first, count in ranges:
                for queue_offset in range(first, first + count):
                    progress.finish(queue_offset)
                self._store.used(topic, queue_id, first + count - 1)

    def recovered_leases(self, record: Record) -> None:
        """Takes over what became of leases from their record."""
        for key, entry in lease_records.decode(record.body):
            progress = self.progress(GroupQueue(*key))
            if entry.kind is Kind.ENDED:
                failure = Failure(entry.at_ms, entry.cause, entry.client_id) if entry.cause else None
                progress.restore_end(entry.queue_offset, entry.attempts, failure)
            else:
                progress.restore_lease(_lease(entry), entry.attempts)

    def leases(self) -> Iterator[tuple[GroupQueue, Lease]]:
        """Everything that is leased."""
        for key, progress in self._progress.items():
            for lease in progress.leases():
                yield key, lease

    def missed(self, minimums: Iterable[tuple[str, int, int]]) -> list[list[Any]]:
        """What groups still want of queues below these offsets: [group, topic, queue, count] each."""
        counts = (
            [*key, self.look(key).open_count_below(min_offset)] for key, min_offset in self._begun(minimums)
        )
        return [row for row in counts if row[-1]]

    def skip(self, minimums: Iterable[tuple[str, int, int]]) -> None:
        """Moves every group up to these offsets, at which its queues begin."""
        for key, min_offset in self._begun(minimums):
            self.progress(key).skip_to(min_offset)

    def _begun(self, minimums: Iterable[tuple[str, int, int]]) -> Iterator[tuple[GroupQueue, int]]:
        for topic, queue_id, min_offset in minimums:
            for group in self._members.get(topic, ()):
                yield GroupQueue(group, topic, queue_id), min_offset

    def lowest_wanted_offset(self, young_from_ms: int, ages: list[SegmentAge]) -> int | None:
        """The lowest log offset that a lagging group waits for, of those in segments young enough."""
        young_offset = next((one.first_offset for one in ages if one.last_store_ms >= young_from_ms), None)
        if young_offset is None:
            return None
        wanted = (self._wanted_offset(queue, low_offset) for _, queue, low_offset in self.standings())
        pinning = [offset for offset in wanted if offset is not None and offset >= young_offset]
        return min(pinning, default=None)

    def standings(self) -> Iterator[tuple[GroupQueue, ConsumeQueue, int]]:
        """Every queue of every topic that a group receives, with the group's low offset there."""
        for topic, queue_id, queue in self._store.dispatch.queues():
            for group in self._members.get(topic, ()):
                key = GroupQueue(group, topic, queue_id)
                progress = self._progress.get(key)
                yield key, queue, max(progress.low_offset if progress else 0, queue.min_offset)

    def freeze(self) -> Any:
        """What a snapshot keeps: the groups of each topic, their policies, and the progress on each queue."""
        progress = [[*key, progress.freeze()] for key, progress in self._progress.items()]
        return {
            "members": {topic: list(groups) for topic, groups in self._members.items()},
            "policies": {group: asdict(policy) for group, policy in self._policies.items()},
            "progress": progress,
        }

    def thaw(self, frozen: Any) -> None:
        """Takes a snapshot's part over."""
        for topic, groups in frozen["members"].items():
            for group in groups:
                self._add(group, topic)
        for group, policy in frozen.get("policies", {}).items():
            self._policies[group] = _policy(policy)
        for group, topic, queue_id, progress in frozen["progress"]:
            self._progress[GroupQueue(group, topic, queue_id)] = Progress.thaw(progress)

    def in_flight(self) -> dict[tuple[str, str], int]:
        """How many messages are leased, by topic and group."""
        return self._sums(lambda key, progress: progress.in_flight_count)

    def lag(self) -> dict[tuple[str, str], int]:
        """How many messages are not done, by topic and group, untouched queues included."""
        lag: Counter[tuple[str, str]] = Counter()
        for key, queue, low_offset in self.standings():
            lag[(key.topic, key.group)] += (
                queue.next_offset - low_offset - self.progress(key).done_above_count
            )
        return dict(lag)

    def _check_room(self, count: int, what: str) -> None:
        if count >= limits.SUBSCRIPTIONS_MAX:
            raise TooManyGroups(
                f"There are {count} {what}. Delete those that nobody uses: tidewheel group ls, then "
                "tidewheel group delete NAME --yes."
            )

    def _wanted_offset(self, queue: ConsumeQueue, low_offset: int) -> int | None:
        return queue.entry(low_offset).physical_offset if low_offset < queue.next_offset else None

    def _write(self, body: dict[str, Any], now_ms: int) -> int:
        self._take(body)
        return self._append(GROUP_TOPIC, json.dumps(body).encode(), now_ms)

    def _append(self, topic: str, body: bytes, now_ms: int) -> int:
        return self._store.append(Record(topic=topic, body=body, sys_flag=TYPE_SYSTEM), now_ms)

    def _take(self, said: dict[str, Any]) -> None:
        group = said["group"]
        if "policy" in said:
            self._policies[group] = _policy(said["policy"])
        elif "left" in said:
            self._drop(group, said["topic"])
        else:
            self._add(group, said["topic"])
            for queue_id, steps in said.get("reopened", {}).items():
                self.progress(GroupQueue(group, said["topic"], int(queue_id))).reopen(list(accumulate(steps)))
            for queue_id, offset in said.get("positions", {}).items():
                self._progress[GroupQueue(group, said["topic"], int(queue_id))] = Progress(offset)

    def _add(self, group: str, topic: str) -> None:
        self._members.setdefault(topic, {})[group] = None

    def _drop(self, group: str, topic: str) -> None:
        """Forgets a group on a topic, or (empty) everything of it."""
        for members in [self._members.get(topic, {})] if topic else self._members.values():
            members.pop(group, None)
        for key in [key for key in self._progress if key.group == group and topic in ("", key.topic)]:
            del self._progress[key]
        if not topic:
            self._policies.pop(group, None)

    def _sums(self, count: Callable[[GroupQueue, Progress], int]) -> dict[tuple[str, str], int]:
        sums: Counter[tuple[str, str]] = Counter()
        for key, progress in self._progress.items():
            sums[(key.topic, key.group)] += count(key, progress)
        return dict(sums)


def _text_keys(positions: Mapping[int, int]) -> dict[str, int]:
    return {str(queue_id): offset for queue_id, offset in positions.items()}


def _policy(stored: dict[str, Any]) -> GroupPolicy:
    return GroupPolicy(**{**stored, "retry_after_ms": tuple(stored["retry_after_ms"])})


def _lease(entry: LeaseEntry) -> Lease:
    return Lease(
        entry.generation,
        entry.queue_offset,
        entry.at_ms,
        client_id=entry.client_id if entry.is_renewed else "",
        consumer=entry.client_id,
        message_group=entry.message_group,
        is_changed=entry.is_changed,
        is_suspended=entry.is_suspended,
        attempt_id=entry.attempt_id,
        leased_ms=entry.leased_ms,
    )
