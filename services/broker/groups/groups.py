"""Consumer groups with their subscriptions, policies, and queue offsets, and the records that change them.

A group is created by its first receive or by its first policy. The body of a `TW_SYS_GROUP` record is a JSON
object in one of these forms:

    {"group", "topic"}                subscribes the group to the topic, from the earliest message
    {"group", "topic", "positions"}   moves the group to the offsets ({queue id: offset}), and ends leases
    {"group", "topic", "left"}        removes the group from the topic, or entirely if the topic is empty
    {"group", "topic", "reopened"}    marks messages of lite topics as unfinished
                                      ({queue id: [first offset, distance to the next offset, ...]})
    {"group", "topic", "filter"}      adds a filter of the group on the topic: [type, expression]
    {"group", "topic", "forgotten"}   removes filters of the group: [[type, expression], ...]
    {"group", "policy"}               sets the delivery policy (`services.broker.groups.group_values`)

If the first log offset is greater than 0 when a group joins a topic, the record also contains the member
"log_offset", the first log offset. Messages below "log_offset" are not counted as missed, even in a queue
whose first offset is unknown because of a damaged file. Limitation: if more of the log is deleted before such
a queue is rebuilt, all deleted messages of the queue are counted as missed.

The log records every change to the offsets of a group on a queue (`consumequeue.groups.offsets`). The
in-flight messages (`consumequeue.groups.in_flight`) are derived from these offsets on first use. Changes to
messages and leases take effect immediately and are collected in open records until the next flush
(`open_records.py`).

Invariants for a group on a queue: all messages below the committed offset are finished, the committed offset
does not exceed the next offset, and leased, ready, and parked messages are unfinished.

A lease is stored in `InFlight`, in `Leases` (with its expiry timer), and, if recorded, in `GroupOffsets`.
Only methods of `Groups` create, replace, and end leases, and these methods update all three structures. When
a message is finished or removed, its lease is also ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import accumulate, pairwise, repeat
from typing import Any

from commitlog import limits
from commitlog.errors import StoreDamaged
from commitlog.facts import acks
from commitlog.facts.facts import (
    FiltersRemoved,
    GroupJoined,
    GroupLeft,
    LeaseChanged,
    MessagesFinished,
    OfGroup,
    PolicySet,
    Skipped,
    Stamp,
    record_of,
)
from commitlog.facts.lease_records import Kind, LeaseEntry
from commitlog.snapshots.deferred_rows import NOTHING, DeferredRows
from commitlog.snapshots.snapshot import RowsByName
from consumequeue.filters.filter import Filter, FilterText
from consumequeue.groups.attempts import Failure
from consumequeue.groups.in_flight import InFlight, Lease
from consumequeue.groups.offsets import GroupOffsets, kept
from consumequeue.queue import ConsumeQueue
from services.broker.groups.group_filters import FilterSet, GroupFilters, KnownFilter, format_filter
from services.broker.groups.group_values import GroupPolicy, GroupQueue
from services.broker.groups.leases import Leases
from services.broker.groups.missed_messages import MissedMessages
from services.broker.groups.open_records import OpenRecords
from services.broker.spine.errors import TooManyGroups
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.store import Store


class Groups:
    """All consumer groups with their finished and in-flight messages."""

    def __init__(self, store: Store, settings: BrokerSettings, leases: Leases) -> None:
        self._store, self.leases = store, leases
        self._default = GroupPolicy(attempts_max=settings.attempts_max)
        self._members: dict[str, dict[str, int]] = {}
        """The groups of each topic, with the first log offset at the time the group joined (0 if unknown)."""
        self._frozen_members: dict[str, list[str]] = {}
        self._frozen_joined: dict[str, dict[str, int]] = {}
        self._changed_members: dict[str, None] = {}
        """The topics whose groups have changed since the last checkpoint."""
        self._topics_of: dict[str, dict[str, None]] = {}
        """The topics of each group, which is the inverse mapping of `_members`."""
        self._subscription_count = 0
        self._policies: dict[str, GroupPolicy] = {}
        self._offsets: dict[GroupQueue, GroupOffsets] = {}
        self._frozen: DeferredRows[GroupQueue, GroupOffsets] = NOTHING
        self._in_flight: dict[GroupQueue, InFlight] = {}
        self._leasing: list[tuple[GroupQueue, Lease]] | None = None
        """The leases of the current receive, or None if no receive is running."""
        self.filters = GroupFilters()
        self.missed_messages = MissedMessages()
        self.open_records = OpenRecords(store)
        self.woken: dict[str, None] = {}
        """The topics with newly available messages.

        This table is cleared when waiting receives are notified.
        """
        self.forgotten: list[str] = []
        """Notices for the server log about removed filters."""

    def names(self) -> list[str]:
        """Return the names of all groups in alphabetical order."""
        return sorted(self.unsorted_group_names())

    def unsorted_group_names(self) -> Set[str]:
        """Return the names of all groups in any order."""
        return self._topics_of.keys() | self._policies.keys()

    def is_known(self, group: str) -> bool:
        """Return whether a group receives a topic or has a policy."""
        return group in self._topics_of or group in self._policies

    def topics_of(self, group: str) -> list[str]:
        """Return the topics of a group in alphabetical order."""
        return sorted(self._topics_of.get(group, ()))

    def is_subscribed(self, group: str, topic: str) -> bool:
        """Return whether a group is subscribed to a topic."""
        return group in self._members.get(topic, ())

    def policy(self, group: str) -> GroupPolicy:
        """Return the delivery policy of a group."""
        return self._policies.get(group, self._default)

    def join(self, group: str, topic: str, positions: Mapping[int, int], now_ms: int) -> int:
        """Subscribe a group to a topic, starting at `positions` ({queue id: offset}).

        In all other queues, the group starts at the earliest message. Return the offset up to which the log
        must be durable before a response is sent. Raise `TooManyGroups` if the subscription limit is reached.
        """
        self._check_room(self._subscription_count, "subscriptions of groups to topics")
        log_offset = self._store.log.first_offset
        return self._write(GroupJoined(group, topic, log_offset, positions=positions), now_ms)

    def use_filter(
        self, group: str, topic: str, wanted: Filter, client_id: str, now_ms: int
    ) -> tuple[FilterSet, KnownFilter, int, bool]:
        """Record that a client of a group uses a filter on a topic.

        Return the filters of the group, the filter in use, the log offset that must be durable before the
        response is sent, and whether the filters of the client or the group have changed. Raise
        `TooManyFilters` if a new filter would exceed a limit.
        """
        filters, durable_at = self.filters.filter_set(group, topic), 0
        filters.advance_clock(now_ms)
        known = filters.find(wanted)
        is_new = known is None or filters.record_use(known, client_id)
        if known is not None and not known.others:
            return filters, known, 0, is_new
        # Idle filters are removed before the limit is checked, so that clients of a group at the limit can
        # switch to new filters.
        if idle := self.filters.idle_filters(group, topic, now_ms):
            self._forget_filters(group, topic, idle, now_ms)
            is_new = True
        if known is None:
            self.filters.check_room(group, topic, wanted)
            durable_at = self._write(GroupJoined(group, topic, filter=wanted.text), now_ms)
        filters = self.filters.filter_set(group, topic)
        known = filters.find(wanted)
        assert known is not None, "the filter in use is not known"
        filters.record_use(known, client_id)
        return filters, known, durable_at, is_new

    def _forget_filters(self, group: str, topic: str, idle: list[FilterText], now_ms: int) -> None:
        aside = self.aside_counts(group, topic)
        self._write(FiltersRemoved(group, topic, idle), now_ms)
        for text in idle:
            self.forgotten.append(
                f"{group} has forgotten its filter {format_filter(text)} on {topic}, which was not used for "
                f"{limits.FILTER_IDLE_MS // 60_000} minutes; messages that were set aside for it, now judged "
                f"by the remaining filters: {aside[text]}"
            )

    def aside_counts(self, group: str, topic: str) -> Counter[FilterText]:
        """Count the messages that are set aside for each filter of a group on a topic."""
        filters, counts = self.filters.peek(group, topic), Counter[FilterText]()
        for queue_id in filters.queue_ids:
            flight = self._in_flight.get(GroupQueue(group, topic, queue_id))
            by_bit = flight.aside_counts() if flight else {}
            for text, known in filters.known.items():
                counts[text] += by_bit.get(known.bit, 0)
        return counts

    def set_aside(
        self, key: GroupQueue, filters: FilterSet, offset: int, wanted_by: int, message_group: str
    ) -> None:
        """Set the candidate message aside for the filters of the group in the bit mask `wanted_by`."""
        filters.queue_ids.add(key.queue_id)
        self.in_flight(key).set_aside(offset, wanted_by, message_group)

    def exhausted_messages(self, group: str = "") -> Iterator[tuple[GroupQueue, int]]:
        """Yield unleased messages with no attempts left, in `group` or, if it is empty, in all groups."""
        for key, offsets in self._offsets.items():
            attempts_max = self.policy(key.group).attempts_max
            for offset in offsets.find_exhausted(attempts_max) if group in ("", key.group) else ():
                if self.peek_in_flight(key).is_exhausted(offset, attempts_max):
                    yield key, offset

    def set_policy(self, group: str, policy: GroupPolicy, now_ms: int) -> int:
        """Set the delivery policy of a group. Raise `TooManyGroups` if too many groups have a policy.

        Return the offset up to which the log must be durable before a response is sent.
        """
        if group not in self._policies:
            self._check_room(len(self._policies), "groups with a policy")
        return self._write(PolicySet(group, asdict(policy)), now_ms)

    def move_group(self, group: str, topic: str, positions: Mapping[int, int], now_ms: int) -> int:
        """Move a group to new offsets in a topic, and end its leases there.

        Return the offset up to which the log must be durable before a response is sent.
        """
        return self._write(GroupJoined(group, topic, positions=positions), now_ms)

    def reopen_messages(self, key: GroupQueue, offsets: list[int], now_ms: int) -> int:
        """Mark the messages at `offsets` as unfinished. The offsets must be in ascending order.

        Return the offset up to which the log must be durable before a response is sent.
        """
        steps = [offset - before for before, offset in pairwise([0, *offsets])]
        assert min(steps[1:], default=1) > 0, "offsets that come again ascend"
        reopened = {key.queue_id: steps}
        durable_at = self._write(GroupJoined(key.group, key.topic, reopened=reopened), now_ms)
        self.in_flight(key).reopened()
        return durable_at

    def committed_offset(self, key: GroupQueue) -> int:
        """Return the queue offset below which a group has finished all messages."""
        offsets = self._offsets.get(key)
        return 0 if offsets is None else offsets.committed_offset

    def lowest_open_offset(self, topic: str, queue_id: int) -> int | None:
        """Return the lowest committed offset on a queue, or None if the topic has no groups."""
        keys = (GroupQueue(group, topic, queue_id) for group in self._members.get(topic, ()))
        return min(map(self.committed_offset, keys), default=None)

    def leave(self, group: str, topic: str, now_ms: int) -> int:
        """Remove a group from `topic`. If `topic` is empty, remove the group and its policy.

        Return the offset up to which the log must be durable before a response is sent.
        """
        return self._write(GroupLeft(group, topic), now_ms)

    def in_flight(self, key: GroupQueue) -> InFlight:
        """Return the in-flight state of a group on a queue, creating it on first use."""
        flight = self._in_flight.get(key)
        if flight is None:
            flight = self._in_flight[key] = InFlight(self._offsets_to_change(key))
        return flight

    def peek_in_flight(self, key: GroupQueue) -> InFlight:
        """Return the in-flight state of a group on a queue for reading only."""
        return self._in_flight.get(key) or InFlight(self._offsets.get(key) or GroupOffsets())

    def finish(self, key: GroupQueue, queue_offsets: list[int], now_ms: int) -> int:
        """Finish acknowledged or dead-lettered messages, and end their leases.

        Return the offset up to which the log must be durable before a response is sent.
        """
        flight, ranges = self.in_flight(key), acks.ranges_of(queue_offsets)
        if self._frozen.is_open:
            self._frozen.before_change(key)
        for first, count in ranges:
            flight.offsets.finish(first, first + count)
        self.leases.end(flight.finished(queue_offsets))
        assert flight.next_offset >= flight.offsets.committed_offset, "what is done comes next"
        self.open_records.add_finished(key, ranges, now_ms)
        if flight.has_ready:
            self.woken[key.topic] = None
        return self.open_records.durable_at

    def skip_messages(self, key: GroupQueue, first: int, end: int, now_ms: int) -> None:
        """Finish fresh messages without delivery, from the candidate `first` up to but not including `end`.

        The range must not include a gap, because gaps are reported only by `skip_gap`.
        """
        assert first < end, "nothing is passed over"
        flight = self.in_flight(key)
        self._frozen.before_change(key)
        flight.offsets.finish(first, end)
        self.leases.end(flight.finished([first]))
        assert flight.next_offset >= flight.offsets.committed_offset, "what is done comes next"
        self.open_records.add_skipped(key, first, end, now_ms)

    def skip_gap(self, key: GroupQueue, queue: ConsumeQueue, offset: int, now_ms: int) -> None:
        """Report the gap at the candidate offset, and finish the fresh offsets in the gap.

        Gaps are skipped only by this method, which ensures that every skipped gap is reported. Raise
        `StoreDamaged` if the queue is damaged.
        """
        flight, end = self.in_flight(key), offset + 1
        if offset >= flight.next_offset:
            end = max(end, flight.unleased_until(offset, queue.gap_end(offset)))
        self._store.report_gap(queue, offset, queue.entry(offset))
        self.skip_messages(key, offset, end, now_ms)

    @contextmanager
    def leasing(self) -> Iterator[None]:
        """Begin the leases of a receive at the end of the block.

        A single call then sets the timers of all these leases.
        """
        assert self._leasing is None, "two receives at a time"
        begun = self._leasing = list[tuple[GroupQueue, Lease]]()
        try:
            yield
        finally:  # The scan may have leased messages before an exception.
            self._leasing = None
            if begun:
                self.leases.begin(begun)

    def lease(
        self, key: GroupQueue, flight: InFlight, lease: Lease, attempt: int, now_ms: int, *, is_found: bool
    ) -> int:
        """Lease the candidate or, if `is_found` is set, a message that was found through its lite topic.

        Return the offset up to which the log must be durable before a response is sent, or 0 if the lease is
        not recorded. Call this method within a `leasing` block.
        """
        assert self._leasing is not None, "a lease that would have no timer"
        flight.lease_found(lease) if is_found else flight.lease(lease)
        self._leasing.append((key, lease))
        return self.record_lease(key, lease, attempt, now_ms) if lease.message_group else 0

    def lease_run(self, key: GroupQueue, flight: InFlight, leases: Sequence[Lease]) -> None:
        """Lease a contiguous run of fresh messages that begins at the candidate.

        None of the messages may belong to a message group. Call this method within a `leasing` block.
        """
        assert self._leasing is not None, "leases that would have no timers"
        flight.lease_run(leases)
        self._leasing += zip(repeat(key), leases, strict=False)

    def replace_lease(self, key: GroupQueue, lease: Lease, now_ms: int) -> int:
        """Replace the lease on a message.

        Return the offset up to which the log must be durable before a response is sent.
        """
        flight = self.in_flight(key)
        self.leases.replace(flight.replace(lease), lease)
        attempts = flight.attempts(lease.queue_offset).made
        return self.record_lease(key, lease, attempts, now_ms) if lease.message_group else 0

    def record_lease(self, key: GroupQueue, lease: Lease, attempts: int, now_ms: int) -> int:
        """Record a valid lease in the log, from which it is restored after a restart.

        Return the offset up to which the log must be durable before a response is sent.
        """
        entry = LeaseEntry(
            Kind.LEASED,
            0,
            attempts,
            lease.queue_offset,
            lease.generation,
            self.leases.clock.to_broker_time(lease.visible_ms),
            lease.leased_ms,
            acks.clip(lease.consumer),
            bool(lease.client_id),
            lease.message_group,
            lease.is_changed,
            lease.is_suspended,
            acks.clip(lease.attempt_id),
            lease.is_lengthened,
        )
        self._apply_lease(key, entry, now_ms)
        return self.open_records.durable_at

    def end_unanswered_lease(
        self, key: GroupQueue, lease: Lease, failure: Failure | None, now_ms: int
    ) -> None:
        """End the lease on an unacknowledged message.

        The end of the lease is recorded if the attempt is counted or if the lease was recorded.
        """
        offset, flight = lease.queue_offset, self.in_flight(key)
        if failure is not None or lease.message_group:
            attempts = flight.attempts(offset).made - (failure is None)
            cause = 0 if failure is None else failure.cause
            consumer = acks.clip(lease.consumer)
            entry = LeaseEntry(Kind.ENDED, cause, attempts, offset, 0, now_ms, 0, consumer, False, "")
            self._apply_lease(key, entry, now_ms)
        self.leases.end([flight.return_message(offset)])

    def apply(self, fact: OfGroup, stamp: Stamp) -> None:
        """Apply a change to the finished messages, leases, topics, filters, or policy of a group."""
        match fact:
            case MessagesFinished(group, topic, queue_id, ranges):
                offsets = self._offsets_to_change(GroupQueue(group, topic, queue_id))
                for first, count in ranges:
                    offsets.finish(first, first + count)
                    self._store.reserve_offset(topic, queue_id, first + count - 1)
            case LeaseChanged(key, entry):
                self._offsets_to_change(GroupQueue(*key)).take(entry)
            case PolicySet(group, policy):
                self._policies[group] = _policy(policy)
            case GroupLeft(group, topic):
                self._drop(group, topic)
            case FiltersRemoved(group, topic, filters):
                texts = [FilterText(*text) for text in filters]
                self._reevaluate_filters(group, topic, self.filters.forget(group, topic, texts))
            case GroupJoined():
                self._join(fact)

    def _join(self, fact: GroupJoined) -> None:
        group, topic = fact.group, fact.topic
        self._add(group, topic, fact.log_offset)
        if fact.filter is not None:
            self._reevaluate_filters(group, topic, self.filters.add(group, topic, FilterText(*fact.filter)))
        for queue_id, steps in fact.reopened.items():
            self._offsets_to_change(GroupQueue(group, topic, queue_id)).reopen(list(accumulate(steps)))
        for queue_id, offset in fact.positions.items():
            key = GroupQueue(group, topic, queue_id)
            self._frozen.before_change(key)
            self._forget_in_flight(key)
            self._offsets[key] = GroupOffsets(offset)

    def resume(self, now_ms: int, renewed_until_ms: int, until_ms: int) -> None:
        """Restore the recorded leases at startup (`Leases.restore`).

        The in-flight messages of groups with recorded leases are derived first.
        """
        assert not self._in_flight, "something is out before the start has come to leases"
        self.leases.set_first_generation(self._store.last_store_ms, now_ms)
        for key, offsets in self._offsets.items():
            for lease in self.in_flight(key).leases() if offsets.leases else ():
                self.leases.restore(key, lease, now_ms, renewed_until_ms, until_ms)

    def all_in_flight_states(self) -> list[InFlight]:
        """Return all in-flight states, one per group and queue."""
        return list(self._in_flight.values())

    def count_missed_messages(
        self, rises: Iterable[tuple[str, int, int, int]], log_offset: int
    ) -> list[Skipped]:
        """Count the messages that each group misses when the first offsets of queues advance.

        `rises` contains (topic, queue id, first offset, new first offset) for each queue. A group misses no
        messages if the first log offset was `log_offset` or higher when the group joined.
        """
        keys = (
            (GroupQueue(group, topic, queue_id), first, end)
            for topic, queue_id, first, end in rises
            for group, joined_at in self._members.get(topic, {}).items()
            if not joined_at or joined_at < log_offset
        )
        counts = (
            Skipped(*key, (self._offsets.get(key) or GroupOffsets()).open_count(first, end))
            for key, first, end in keys
        )
        return [row for row in counts if row.message_count]

    def skip_deleted_messages(self, minimums: Iterable[tuple[str, int, int]]) -> None:
        """Advance the offsets of all groups to the new first offsets of queues.

        `minimums` contains (topic, queue id, new first offset) for each queue.
        """
        for key, min_offset in self._new_first_offsets(minimums):
            self._offsets_to_change(key).skip_to(min_offset)
            if (flight := self._in_flight.get(key)) is not None:
                flight.skipped_to(min_offset)
                committed_offset = flight.offsets.committed_offset
                assert flight.next_offset >= committed_offset >= min_offset, "what is gone comes next"

    def _new_first_offsets(
        self, minimums: Iterable[tuple[str, int, int]]
    ) -> Iterator[tuple[GroupQueue, int]]:
        for topic, queue_id, min_offset in minimums:
            for group in self._members.get(topic, ()):
                yield GroupQueue(group, topic, queue_id), min_offset

    def receiving_keys(self, topic: str, queue_id: int) -> list[GroupQueue]:
        """Return the keys of all groups that consume a queue."""
        return [GroupQueue(group, topic, queue_id) for group in self._members.get(topic, ())]

    def groups_of(self, topic: str) -> list[str]:
        """Return the names of the groups of a topic in any order."""
        return [*self._members.get(topic, ())]

    def unfinished_count(self, key: GroupQueue, first: int, end: int) -> int:
        """Return the number of unfinished messages of a group from `first` up to but not including `end`."""
        offsets = self._offsets.get(key)
        return end - first if offsets is None else offsets.open_count(first, end)

    def receiver_count(self, topic: str) -> int:
        """Return the number of consumer groups subscribed to a topic."""
        return len(self._members.get(topic, ()))

    def next_log_offset(self, key: GroupQueue, queue: ConsumeQueue, unknown_offset: int) -> int:
        """Return the log offset of the first unfinished message of a group, or -1 if there is none.

        Return `unknown_offset` if the queue file is damaged.
        """
        committed_offset = max(self.committed_offset(key), queue.min_offset)
        if committed_offset >= queue.end_offset:
            return -1
        with suppress(StoreDamaged):
            return queue.entry(committed_offset).physical_offset
        return unknown_offset

    def committed_offsets(self) -> Iterator[tuple[GroupQueue, ConsumeQueue, int]]:
        """Yield (key, queue, committed offset) for each queue of each group."""
        for topic, queue_id, queue in self._store.dispatch.queues():
            for key in self.receiving_keys(topic, queue_id):
                yield key, queue, max(self.committed_offset(key), queue.min_offset)

    def freeze(self) -> Any:
        """Return the subscriptions, policies, filters, missed messages, and offsets for a snapshot."""
        self._frozen.take_all()
        self._frozen = DeferredRows(self._offsets, _snapshot_row, lambda key, taken: (*key, kept(taken)))
        self._freeze_members()
        return {
            "members": self._frozen_members.copy(),
            "joined": self._frozen_joined.copy(),
            "policies": RowsByName(self._policies.copy(), asdict),
            "filters": self.filters.freeze(),
            "missed": self.missed_messages.freeze(),
            "progress": self._frozen,
        }

    def thaw(self, frozen: Any) -> None:
        """Restore the state from a snapshot."""
        joined = frozen["joined"]
        for topic, groups in frozen["members"].items():
            joined_at = joined.get(topic, {})
            for group in groups:
                self._add(group, topic, joined_at.get(group, 0))
        for group, policy in frozen["policies"].items():
            self._policies[group] = _policy(policy)
        self.filters.thaw(frozen["filters"])
        self.missed_messages.thaw(frozen["missed"])
        for group, topic, queue_id, progress in frozen["progress"]:
            self._offsets[GroupQueue(group, topic, queue_id)] = GroupOffsets.thaw(progress)

    def leased_counts(self) -> dict[tuple[str, str], int]:
        """Return the number of leased messages for each (topic, group)."""
        counts: Counter[tuple[str, str]] = Counter()
        for key, flight in self._in_flight.items():
            counts[key.topic, key.group] += flight.leased_count
        return dict(counts)

    def lag(self) -> dict[tuple[str, str], int]:
        """Return the number of unfinished messages for each (topic, group)."""
        lag: Counter[tuple[str, str]] = Counter()
        for key, queue, committed_offset in self.committed_offsets():
            offsets = self._offsets.get(key)
            done_count = offsets.done_above_count if offsets else 0
            lag[key.topic, key.group] += queue.end_offset - committed_offset - done_count
        return dict(lag)

    def _check_room(self, count: int, what: str) -> None:
        if count >= limits.SUBSCRIPTIONS_MAX:
            raise TooManyGroups(
                f"There are {count} {what}. Delete those that nobody uses: tidewheel group ls, then "
                "tidewheel group delete NAME --yes."
            )

    def _offsets_to_change(self, key: GroupQueue) -> GroupOffsets:
        """Return the modifiable offsets of a group on a queue, creating them on first use."""
        self._frozen.before_change(key)
        offsets = self._offsets.get(key)
        if offsets is None:
            offsets = self._offsets[key] = GroupOffsets()
        return offsets

    def _apply_lease(self, key: GroupQueue, entry: LeaseEntry, now_ms: int) -> None:
        self._offsets_to_change(key).take(entry)
        self.open_records.add_lease(key, entry, now_ms)

    def _write(self, fact: OfGroup, now_ms: int) -> int:
        """Append a group record.

        Return the offset up to which the log must be durable before a response is sent.
        """
        return self._store.append(record_of(fact), now_ms).end_offset

    def _freeze_members(self) -> None:
        """Update the snapshot copies of the group lists of topics whose groups have changed."""
        for topic in self._changed_members:
            self._frozen_members.pop(topic, None)
            self._frozen_joined.pop(topic, None)
            if members := self._members[topic]:
                self._frozen_members[topic] = [*members]
            if joined := {group: joined_at for group, joined_at in members.items() if joined_at}:
                self._frozen_joined[topic] = joined
        self._changed_members.clear()

    def _add(self, group: str, topic: str, joined_at: int = 0) -> None:
        self._changed_members[topic] = None
        members = self._members.setdefault(topic, {})
        self._subscription_count += group not in members
        members.setdefault(group, joined_at)
        self._topics_of.setdefault(group, {})[topic] = None

    def _reevaluate_filters(self, group: str, topic: str, queue_ids: Iterable[int]) -> None:
        """Reevaluate set-aside messages with the current filters."""
        for queue_id in queue_ids:
            flight = self._in_flight.get(GroupQueue(group, topic, queue_id))
            if flight is not None and flight.aside_count:
                flight.reevaluate_filters()
                self.woken[topic] = None

    def _drop(self, group: str, topic: str) -> None:
        """Remove a group from a topic, or entirely if `topic` is empty."""
        self.filters.remove_group(group, topic)
        topics = self._topics_of.get(group, {})
        for left in [topic] if topic else list(topics):
            if left in topics:
                self.missed_messages.forget(group, left)
                del topics[left], self._members[left][group]
                self._changed_members[left] = None
                self._subscription_count -= 1
        if not topics:
            self._topics_of.pop(group, None)
        for key in [key for key in self._offsets if key.group == group and topic in ("", key.topic)]:
            self._frozen.before_change(key)
            del self._offsets[key]
            self._forget_in_flight(key)
        if not topic:
            self._policies.pop(group, None)

    def _forget_in_flight(self, key: GroupQueue) -> None:
        """Remove the in-flight state of a group on a queue, and end its leases."""
        if (flight := self._in_flight.pop(key, None)) is not None:
            self.leases.end([*flight.leases()])


def _snapshot_row(offsets: GroupOffsets) -> int | dict[str, Any] | None:
    """Return the offsets as a snapshot value, or None if they have never changed."""
    return offsets.taken() or None


def _policy(stored: Mapping[str, Any]) -> GroupPolicy:
    return GroupPolicy(**{**stored, "retry_after_ms": tuple(stored["retry_after_ms"])})
