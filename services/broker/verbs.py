"""Every verb of the product, each in a line or two that lead to the part which does it.

This is the list to read first. `services.broker.broker` lets the parts live: it opens, ticks, flushes and
takes checkpoints. Calls run to completion; time comes as an argument in milliseconds since 1970.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

from commitlog import limits
from commitlog.disk import Disk
from commitlog.errors import DiskFull, TidewheelError, TopicNotFound
from commitlog.limits import DAMAGE_KEPT_MAX
from commitlog.log import CommitLog
from commitlog.message import Message, MessageType
from commitlog.recovery import Damage
from consumequeue.filter import Filter
from services.broker.access import Access
from services.broker.agenda import Agenda
from services.broker.burying import Burying
from services.broker.carrying import Carrying
from services.broker.dead_letters import DeadLetters
from services.broker.finding import Finding, Found, Wanted
from services.broker.group_values import (
    DeadLetterCount,
    DeadLetterPage,
    GroupPolicy,
    GroupView,
    Received,
    Reset,
    Start,
)
from services.broker.group_views import GroupViews
from services.broker.groups import Groups
from services.broker.half_views import HalfViews
from services.broker.housekeeping import Housekeeping
from services.broker.leases import Leases
from services.broker.lending import Lending
from services.broker.lite_receiving import LiteReceiving
from services.broker.lite_subscribing import LiteSubscribing
from services.broker.lite_subscriptions import LiteSubscriptions
from services.broker.lite_topics import LiteTopics
from services.broker.mending import Mending
from services.broker.reading import Reading
from services.broker.receiving import Receiving
from services.broker.schedule import Occurrence, Schedule, ScheduleView
from services.broker.schedules import Schedules, preview
from services.broker.sending import Sending
from services.broker.sending_timers import SendingTimers
from services.broker.settings import BrokerSettings
from services.broker.statistics import Gauges, Statistics
from services.broker.store import Store
from services.broker.timer_delivery import TimerDelivery
from services.broker.timer_views import TimerViews
from services.broker.timers import Timers
from services.broker.topics import Topics
from services.broker.transactions import Transactions
from services.broker.values import (
    CheckBack,
    Damaged,
    Delivery,
    EndReceipt,
    HalfFilter,
    HalfPage,
    HalfView,
    LostTimer,
    PendingTimer,
    Resolution,
    SendReceipt,
    TimerFilter,
    TimerName,
    TimerPage,
    TimerVerdict,
    Topic,
)
from txn.checkback import CheckBackPolicy


class Part(Protocol):
    """A state machine whose state a snapshot keeps."""

    def freeze(self) -> Any:
        """The state, as JSON can hold it."""

    def thaw(self, frozen: Any) -> None:
        """Takes a frozen state over."""


class Verbs:
    """The parts of a broker, and what can be asked of them."""

    def __init__(self, disk: Disk, log: CommitLog, settings: BrokerSettings, now_ms: int) -> None:
        self.statistics = Statistics()
        self.damaged: list[Damage] = []
        self.made_anew: list[str] = []
        self.unsound: list[str] = []
        """Small files of the store that were damaged, and what the start did about it."""
        self.lost: list[str] = []
        self.damage: deque[Damaged] = deque(maxlen=DAMAGE_KEPT_MAX)
        """What was found damaged since the start, the oldest first."""
        self.damage_count = 0
        self._disk = disk
        self._log = log
        self._ticked_ms = now_ms
        self._checkpoint_offset = log.first_offset
        self._agenda = Agenda(now_ms)
        self._store = Store(disk, log, settings.store_host)
        self.access = Access(self._store)
        """Users and their rights; its verbs are `add_user`, `remove_user`, `set_rules` and `remove_rules`."""
        self._topics = Topics(self._store, settings)
        self._timers = Timers(disk, self._store, settings, self.statistics, now_ms)
        self._mending = Mending(self._store, self._timers)
        self._delivery = TimerDelivery(disk, self._store, self._timers, now_ms)
        self._views = TimerViews(self._timers)
        self._carrying = Carrying(self._timers)
        self._transactions = Transactions(
            self._store, self._agenda, self._topics, self._timers, self._carrying, settings, self.statistics
        )
        self._half_views = HalfViews(self._store, self._transactions)
        self._groups = Groups(self._store, settings)
        self._lite_topics = LiteTopics(self._store, self._topics, self._groups, settings)
        self._sending = Sending(
            self._store,
            self._topics,
            self._lite_topics,
            self._timers,
            self._carrying,
            self._transactions,
            settings,
            self.statistics,
        )
        self._sending_timers = SendingTimers(self._store, self._topics, self._timers, self._sending)
        self._housekeeping = Housekeeping(
            disk,
            self._store,
            self._agenda,
            self._groups,
            self._transactions,
            settings,
            self.statistics,
        )
        self._housekeeping_ms = settings.housekeeping_ms
        self._schedules = Schedules(
            self._store,
            self._agenda,
            self._topics,
            self._sending,
            settings,
            lambda: self._housekeeping.is_full,
        )
        leases = Leases(self._agenda, now_ms)
        self._reading = Reading(self._store, self.statistics)
        self._dead_letters = DeadLetters(
            self._store, self._topics, self._groups, self._reading, self.statistics
        )
        lending = Lending(self._groups, leases, settings.broker_name)
        self._lite_subscriptions = LiteSubscriptions(settings)
        self._burying = Burying(
            self._store,
            self._groups,
            leases,
            self._reading,
            self._dead_letters,
            self._lite_subscriptions,
        )
        lite_receiving = LiteReceiving(
            self._store,
            self._groups,
            self._lite_topics,
            self._lite_subscriptions,
            lending,
            self._reading,
            self._dead_letters,
        )
        self._receiving = Receiving(
            self._store,
            self._topics,
            self._groups,
            leases,
            lending,
            lite_receiving,
            self._reading,
            self._dead_letters,
            self._burying,
            settings,
            self.statistics,
        )
        self.lite = LiteSubscribing(
            self._topics,
            self._groups,
            self._lite_topics,
            self._lite_subscriptions,
            self._receiving,
            self._reading,
        )
        """Subscriptions to lite topics; its verbs are `subscribe`, `unsubscribe`, `replace` and `forget`."""
        self._group_views = GroupViews(
            self._store, self._topics, self._groups, self._reading, self._receiving, self._burying
        )
        self._finding = Finding(self._store, self.statistics)
        self._parts: dict[str, Part] = {
            "store": self._store,
            "topics": self._topics,
            "timers": self._timers,
            "transactions": self._transactions,
            "sending": self._transactions.receipts,
            "groups": self._groups,
            "schedules": self._schedules,
            "access": self.access,
        }

    @property
    def segment_bytes(self) -> int:
        """The size of each file of the log, and of the reserve."""
        return self._log.segment_bytes

    def refusal(self) -> DiskFull | None:
        """What new messages are refused with; None while there is room for them."""
        return self._housekeeping.refusal()

    def topics(self) -> list[Topic]:
        """All topics, by name."""
        return self._topics.all()

    def topic(self, name: str) -> Topic:
        """One topic; raises `TopicNotFound`."""
        return self._topics.get(name)

    def create_topic(self, name: str, message_type: MessageType, queue_count: int, now_ms: int) -> Topic:
        """Creates a topic; raises `IllegalTopic`, or `TopicExists` if it exists with other settings."""
        return self._topics.create(name, message_type, queue_count, now_ms)

    def route(self, name: str, now_ms: int) -> Topic:
        """The topic, created on first use if the settings allow that; else raises `TopicNotFound`."""
        return self._topics.route(name, now_ms)

    def send(self, message: Message, now_ms: int) -> SendReceipt:
        """Stores a message: normal, FIFO, delayed or half, as its attributes say."""
        self._housekeeping.refuse_if_full()
        return self._sending.send(message, now_ms)

    def send_many(self, messages: list[Message], now_ms: int) -> list[SendReceipt | TidewheelError]:
        """Stores messages in order, as their attributes say; who is refused is answered with the error."""
        refusal = self._housekeeping.refusal()
        if refusal is not None:
            return [refusal] * len(messages)
        return self._sending_timers.send(messages, now_ms)

    def recall(self, topic: str, recall_handle: str, now_ms: int) -> TimerVerdict:
        """Cancels a delayed message, or says why it cannot be."""
        return self._timers.recall(topic, recall_handle, now_ms)

    def cancel_timer(self, name: TimerName, reason: str, now_ms: int) -> TimerVerdict:
        """Cancels a delayed message by its name, or says why it cannot be."""
        return self._timers.cancel(name, reason, now_ms)

    def move_timer(self, name: TimerName, due_ms: int, now_ms: int) -> TimerVerdict:
        """Gives a delayed message another time, or says why it cannot be; raises `IllegalDeliveryTime`."""
        return self._timers.move(name, due_ms, now_ms)

    def fire_timer(self, name: TimerName, now_ms: int) -> TimerVerdict:
        """Delivers a delayed message at once, or says why it cannot be."""
        return self._timers.fire(name, now_ms)

    def timer(self, name: TimerName, now_ms: int) -> PendingTimer | TimerVerdict:
        """Looks at one delayed message: waiting, or what became of it."""
        return self._timers.get(name, now_ms)

    def timers(self, wanted: TimerFilter, after: tuple[int, int] | None, count_max: int) -> TimerPage:
        """Looks at delayed messages that wait, by due time."""
        return self._views.page(wanted, after, count_max)

    def count_timers(self, wanted: TimerFilter) -> int:
        """How many delayed messages wait that match."""
        return self._views.count(wanted)

    def timer_histogram(self, wanted: TimerFilter, width_ms: int) -> list[tuple[int, int]]:
        """How many delayed messages wait in each window: (its start, count), empty ones left out."""
        return sorted(self._views.histogram(wanted, width_ms).items())

    def end_transaction(
        self, topic: str, transaction_id: str, message_id: str, resolution: Resolution, now_ms: int
    ) -> EndReceipt:
        """Ends a transaction; the first end wins."""
        return self._transactions.end(topic, transaction_id, message_id, resolution, now_ms)

    def resolve_transaction(
        self, transaction_id: str, resolution: Resolution, reason: str, now_ms: int
    ) -> EndReceipt:
        """An operator ends a transaction that is open or has expired, and says why."""
        return self._transactions.resolve(transaction_id, resolution, reason, now_ms)

    def check_now(self, transaction_id: str) -> CheckBack:
        """The question that a transaction's producer is to be asked at once; then report `check_asked`."""
        return self._transactions.check_now(transaction_id)

    def halves(self, wanted: HalfFilter, after: int | None, count_max: int) -> HalfPage:
        """Looks at half messages that are open or have expired, the oldest first."""
        return self._half_views.page(wanted, after, count_max)

    def half(self, transaction_id: str) -> HalfView:
        """Looks at one half message, however it ended; raises `InvalidTransactionId`."""
        return self._half_views.one(transaction_id)

    def halves_of(self, topic: str, key: str, count_max: int) -> list[HalfView]:
        """Looks at the half messages of a key or message id, the newest first."""
        return self._half_views.of_key(topic, key, count_max)

    def set_check_back(self, topic: str, policy: CheckBackPolicy | None, now_ms: int) -> Topic:
        """Says how a topic's halves are asked about; None: as the settings say. Raises `TopicNotFound`."""
        changed = self._topics.set_check_back(topic, policy, now_ms)
        self._transactions.policy_changed(topic, now_ms)
        return changed

    def check_asked(self, transaction_id: str, asked: bool, now_ms: int) -> None:
        """The answer to a `CheckBack`: whether a producer could be asked."""
        self._transactions.check_asked(transaction_id, asked, now_ms)

    def half_message(self, half_offset: int) -> Message | None:
        """The message that a `CheckBack` is about; None if damage has taken it."""
        return self._transactions.message(half_offset)

    def producer_came(self, topic: str, now_ms: int) -> None:
        """A producer of a topic can be asked, perhaps again: halves that wait for one are due now."""
        self._transactions.producer_came(topic, now_ms)

    def unasked_topics(self) -> list[str]:
        """Topics with halves that are due and wait for a producer to be asked."""
        return self._transactions.unasked.topics()

    def receive(
        self,
        group: str,
        topic: str,
        wanted: Filter,
        batch_size: int,
        invisible_ms: int,
        client_id: str,
        auto_renew: bool,
        now_ms: int,
        attempt_id: str = "",
    ) -> Received:
        """Leases up to `batch_size` messages of a topic to a client of a group."""
        return self._receiving.receive(
            group, topic, wanted, batch_size, invisible_ms, client_id, auto_renew, now_ms, attempt_id
        )

    def ack(self, group: str, topic: str, receipt_handle: str, now_ms: int) -> int:
        """Acknowledges a leased message; returns what must be durable before the consumer is told."""
        return self._receiving.ack(group, topic, receipt_handle, now_ms)

    def ack_many(
        self, group: str, topic: str, receipt_handles: list[str], now_ms: int
    ) -> list[int | TidewheelError]:
        """Acknowledges leased messages; of each what must be durable before anyone is told, or why not."""
        answers: list[int | TidewheelError] = []
        for handle in receipt_handles:
            try:
                answers.append(self.ack(group, topic, handle, now_ms))
            except TidewheelError as error:
                answers.append(error)
        return answers

    def change_invisible(
        self, group: str, topic: str, receipt_handle: str, invisible_ms: int, suspend: bool, now_ms: int
    ) -> tuple[str, int]:
        """Ends a lease `invisible_ms` from now; returns its new handle, and what must be durable first."""
        return self._receiving.change_invisible(group, topic, receipt_handle, invisible_ms, suspend, now_ms)

    def release(self, group: str, topic: str, receipt_handle: str, now_ms: int) -> None:
        """Takes a lease back that its consumer never heard of."""
        self._receiving.release(group, topic, receipt_handle, now_ms)

    def forward_to_dead_letter(self, group: str, topic: str, receipt_handle: str, now_ms: int) -> int:
        """Moves a leased message to the group's dead letters; returns what must be durable first."""
        return self._receiving.forward_to_dead_letter(group, topic, receipt_handle, now_ms)

    def client_alive(self, client_id: str, now_ms: int) -> None:
        """A client was heard from: the leases kept for it go on."""
        self._receiving.client_alive(client_id, now_ms)

    def client_gone(self, client_id: str, now_ms: int) -> None:
        """A client has left: the leases kept for it end with the next tick."""
        self._receiving.client_gone(client_id, now_ms)

    def groups(self, now_ms: int) -> list[GroupView]:
        """Looks at all consumer groups, by name."""
        return self._group_views.all()

    def receives(self, group: str, topic: str) -> bool:
        """Whether a group receives a topic."""
        return self._groups.receives(group, topic)

    def group(self, name: str, now_ms: int) -> GroupView:
        """Looks at one consumer group; raises `GroupNotFound`."""
        return self._group_views.one(name)

    def has_group(self, name: str) -> bool:
        """Whether there is a consumer group of that name."""
        return name in self._groups.names()

    def group_policy(self, name: str) -> GroupPolicy:
        """How a group's messages are given out, or would be if it existed."""
        return self._groups.policy(name)

    def leased(self, group: str) -> dict[str, int]:
        """How many messages each client of a group holds, by client id."""
        return self._group_views.leased(group)

    def create_group(
        self, name: str, topic: str, start: Start, now_ms: int, policy: GroupPolicy | None = None
    ) -> GroupView:
        """Lets a group receive a topic from a place on, or (empty) exist before; raises `GroupExists`."""
        return self._group_views.create(name, topic, start, now_ms, policy)

    def set_group(self, name: str, policy: GroupPolicy, now_ms: int) -> GroupView:
        """Says how a group's messages are given out."""
        view = self._group_views.set_policy(name, policy, now_ms)
        self._lite_subscriptions.stir_all(name)
        return view

    def delete_group(self, name: str, topic: str, now_ms: int) -> int:
        """Lets a group leave a topic, or all; returns what must be durable. Raises `GroupNotFound`."""
        return self._group_views.delete(name, topic, now_ms)

    def reset_group(self, name: str, topic: str, start: Start, dry_run: bool, now_ms: int) -> Reset:
        """Lets a group go on from another place; raises `GroupNotFound`."""
        return self._group_views.reset(name, topic, start, dry_run, now_ms)

    def dead_letters(self, group: str, after: int | None, count_max: int) -> DeadLetterPage:
        """Looks at what a group gave up, the oldest first."""
        return self._dead_letters.page(group, after, count_max)

    def dead_letter_counts(self) -> list[DeadLetterCount]:
        """How many messages each group gave up that nobody has seen to."""
        return self._dead_letters.counts()

    def dead_letter_count(self, group: str) -> DeadLetterCount:
        """The same of one group."""
        return self._dead_letters.count(group)

    def redrive(self, group: str, queue_offset: int, target: str, now_ms: int) -> int:
        """Sends a dead letter again; returns what must be durable. Raises `MessageNotFound`."""
        self._housekeeping.refuse_if_full()
        return self._dead_letters.redrive(group, queue_offset, target, now_ms)

    def purge(self, group: str, queue_offset: int, now_ms: int) -> int:
        """Forgets a dead letter; returns what must be durable. Raises `MessageNotFound`."""
        return self._dead_letters.purge(group, queue_offset, now_ms)

    def read(self, topic: str, queue_id: int, queue_offset: int, count: int) -> list[Delivery]:
        """Looks at messages without leasing them."""
        self._check_queue(topic, queue_id)
        return self._reading.read(topic, queue_id, queue_offset, count)

    def read_after(self, topic: str, places: Mapping[int, int], count: int) -> list[Delivery]:
        """Looks at messages of several queues, each from a place on, in the order of the log."""
        for queue_id in places:
            self._check_queue(topic, queue_id)
        return self._reading.read_after(topic, places, count)

    def find(self, topic: str, key: str, count_max: int) -> list[Delivery]:
        """Looks up to `count_max` messages up by key or message id, newest first, without leasing them."""
        return self._finding.find(topic, key, count_max).messages

    def find_wanted(self, topic: str, key: str, count_max: int, wanted: Wanted) -> Found:
        """The same of those that are wanted, and whether older ones were too large for one answer."""
        return self._finding.find(topic, key, count_max, wanted)

    def pending_timers(self, topic_prefix: str, count_max: int) -> list[PendingTimer]:
        """Looks at delayed messages that wait for topics with that prefix, the first due first."""
        return self._views.page(TimerFilter(topic_prefix=topic_prefix), None, count_max).timers

    def set_schedule(self, schedule: Schedule, now_ms: int) -> ScheduleView:
        """Keeps a recurring message; raises `IllegalSchedule`, or what its message would be refused with."""
        self._housekeeping.refuse_if_full()
        return self._schedules.set(schedule, now_ms)

    def delete_schedule(self, name: str, now_ms: int) -> ScheduleView:
        """Ends a schedule; raises `ScheduleNotFound`."""
        return self._schedules.delete(name, now_ms)

    def pause_schedule(self, name: str, now_ms: int) -> ScheduleView:
        """Lets a schedule rest; raises `ScheduleNotFound`."""
        return self._schedules.pause(name, now_ms)

    def resume_schedule(self, name: str, now_ms: int) -> ScheduleView:
        """Lets a schedule go on, from now on; raises `ScheduleNotFound`."""
        return self._schedules.resume(name, now_ms)

    def schedule(self, name: str, count: int) -> ScheduleView:
        """One schedule with its next `count` occurrences; raises `ScheduleNotFound`."""
        return self._schedules.get(name, count)

    def schedules(self, after: str = "", count_max: int = limits.SCHEDULE_COUNT_MAX) -> list[ScheduleView]:
        """Schedules with their next occurrence: by name, from behind a name on."""
        return self._schedules.page(after, count_max)

    def preview_schedule(self, schedule: Schedule, count: int, now_ms: int) -> tuple[Occurrence, ...]:
        """When a schedule would occur from now on; raises `IllegalSchedule` for what cannot be read."""
        return preview(schedule, now_ms, count)

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(first, next) queue offset of a queue."""
        self._check_queue(topic, queue_id)
        queue = self._store.dispatch.queue(topic, queue_id)
        return queue.min_offset, queue.next_offset

    def offset_at(self, topic: str, queue_id: int, store_ms: int) -> int:
        """The first queue offset stored at or after a time (ms since 1970); the queue's end if none was."""
        self._check_queue(topic, queue_id)
        return self._reading.offset_at(topic, queue_id, store_ms)

    def note_damage(self, found: Damaged) -> Damaged:
        """Something was found damaged: it is shown until the next start."""
        if found not in self.damage:
            self.damage.append(found)
            self.damage_count += 1
        return found

    def lost_timers(self) -> list[LostTimer]:
        """The last timers that ended as UNREADABLE, the newest first."""
        return list(reversed(self._timers.lost))

    def gauges(self) -> Gauges:
        """What is so at this moment, for metrics."""
        outcomes = self._transactions.outcomes
        return Gauges(
            pending_timers=self._timers.pending_count,
            pending_by_topic=dict(+self._timers.pending_by_topic),
            timers_bytes=self._timers.partitions.disk_bytes,
            open_halves=len(outcomes.open),
            expired_halves=len(outcomes.expired),
            oldest_half_ms=outcomes.oldest_ms(),
            in_flight=self._groups.leased_counts(),
            lag=self._groups.lag(),
            topic_count=len(self._topics.all()),
            log_first_offset=self._log.first_offset,
            log_end_offset=self._log.end_offset,
            durable_offset=self._log.durable_offset,
            disk_used=self._housekeeping.disk_used,
            disk_free_bytes=self._housekeeping.free_bytes,
            is_full=self._housekeeping.is_full,
            damage_count=self.damage_count,
            unreadable_timers=len(self._timers.lost),
        )

    def _check_queue(self, topic: str, queue_id: int) -> None:
        queue_count = self._topics.get(topic).queue_count
        if not 0 <= queue_id < queue_count:
            raise TopicNotFound(f"{topic!r} has queues 0 to {queue_count - 1}, there is no {queue_id}.")
