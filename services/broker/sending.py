"""Send operations, which check a message, choose its queue, and store it according to its type.

If a message has the same id and content as a stored message, it is not stored again, and the sender receives
the original receipt (`broker.deduplication`). The ids of timers and half messages are kept much longer, for
`dedupe_ms`, in `broker.timers.timer_ends` and `broker.halves.half_receipts`. A message with the same id but
different content is treated as a new message.

A client may send a message several times, and only the last response matters. An error response must
therefore guarantee that no earlier attempt has stored the message. If the cause of an error can change
between attempts (disk space, clock, settings, or topics), the error is returned only if no earlier attempt
has stored the message. An illegal message is rejected immediately, because no earlier attempt can have stored
it.
"""

from __future__ import annotations

from collections.abc import Iterable

from commitlog.errors import StoreDamaged
from commitlog.records import properties
from commitlog.records.kinds import HALF_TOPIC, TIMER_TOPIC
from commitlog.records.message import Message, MessageType
from commitlog.records.record import COMPRESSED, Record
from consumequeue.entry import tags_code
from consumequeue.indexes.name_hash import digest_of
from consumequeue.indexes.timerindex import hashes_of
from services.broker.deduplication import Deduplicator
from services.broker.groups.lite_topics import LiteTopics
from services.broker.halves.transactions import Transactions
from services.broker.housekeeping import Housekeeping
from services.broker.spine.appended import Draft, NewMessage
from services.broker.spine.errors import KeyPending
from services.broker.spine.same_message import is_same
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.statistics import Statistics
from services.broker.spine.store import Store
from services.broker.spine.topics import Topics
from services.broker.spine.validation import check_delivery, check_message, check_type
from services.broker.spine.values import SendReceipt, Topic
from services.broker.spine.verb_properties import CarriedTimerVerb, parse_verb
from services.broker.timers import recall
from services.broker.timers.timer_ends import NamedTimer, NameWords, timer_key_hash
from services.broker.timers.timer_records import ReplacedTimer, new_timer, replaced_offset_of, timer_record
from services.broker.timers.timers import Timers
from services.broker.timers.verb_executor import VerbExecutor
from tidewheel import property_names
from tidewheel.durations import away
from tidewheel.errors import TidewheelError


class MessageSender:
    """The send operations of a broker."""

    def __init__(
        self,
        store: Store,
        topics: Topics,
        lite_topics: LiteTopics,
        timers: Timers,
        verb_executor: VerbExecutor,
        transactions: Transactions,
        housekeeping: Housekeeping,
        settings: BrokerSettings,
        statistics: Statistics,
    ) -> None:
        self._store = store
        self._topics = topics
        self._lite_topics = lite_topics
        self._timers = timers
        self._verb_executor = verb_executor
        self._transactions = transactions
        self._housekeeping = housekeeping
        self._settings = settings
        self._statistics = statistics
        self.deduplicator = Deduplicator(store, statistics)

    def send_many(self, messages: Iterable[Message], now_ms: int) -> list[SendReceipt | TidewheelError]:
        """Store each message independently of the others. Return one receipt or error per message."""
        answers: list[SendReceipt | TidewheelError] = []
        for message in messages:
            try:
                answers.append(self.send(message, now_ms))
            except TidewheelError as error:
                answers.append(error)
        return answers

    def send(self, message: Message, now_ms: int) -> SendReceipt:
        """Store a normal, FIFO, delayed, or half message, depending on its attributes.

        Raise a `ClientMistake` if the message is illegal, `TopicNotFound` if its topic does not exist, or
        `DiskFull` if the disk is almost full. If an error is raised, neither this call nor an earlier attempt
        has stored the message.
        """
        message_type = message.message_type
        check_message(message, message_type)
        try:
            return self._send(message, message_type, now_ms)
        except TidewheelError:
            first = self._find_first_receipt(message, message_type, now_ms)
            if first is None:
                raise
            return first

    def _send(self, message: Message, message_type: MessageType, now_ms: int) -> SendReceipt:
        self._housekeeping.refuse_new()
        if message_type is MessageType.TRANSACTION:
            self._transactions.check_room()
        if message.delivery_ms is not None:
            check_delivery(message.delivery_ms, self._settings.delay_ms_max, now_ms)
        carried = parse_verb(message, now_ms, self._settings.delay_ms_max) if message.properties else None
        if carried is not None:  # This check must precede the creation of a topic for the message.
            self._verb_executor.refuse_unknown(carried, now_ms)
        topic = self._topics.get_or_create(message.topic, now_ms)
        check_type(message_type, topic)
        queue_id = self._choose_queue(message, topic)
        assert 0 <= queue_id < topic.queue_count, "a message for a queue that its topic does not have"
        if message_type is MessageType.TRANSACTION:
            return self._send_half(message, queue_id, now_ms)
        if message_type is MessageType.DELAY:
            return self._send_timer(message, queue_id, carried, now_ms)
        if carried is None and not message.lite_topic:
            # A `NewMessage` draft is not applied to the parts of the core, because it does not change their
            # state.
            stored = properties.encode_message(message)
            id_digest = digest_of(message.topic, message.message_id)
            if self.deduplicator.ids.may_hold(id_digest):
                first = self._find_stored_receipt(message, stored)
                if first is not None:
                    return first
            new = NewMessage(message, stored, topic.name, queue_id, (), None, id_digest)
            appended = self._store.append(new, now_ms)
            return self._count_stored_message(message, appended.queue_offset, appended.offset)
        record = message_record(message, queue_id)
        first = self._find_plain_receipt(message, record.properties)
        if first is not None:
            return first
        if carried is not None:
            self._verb_executor.execute(carried, record, now_ms)
        self._store.append(record, now_ms)
        return self._count_stored_message(message, record.queue_offset, record.physical_offset)

    def _send_half(self, message: Message, queue_id: int, now_ms: int) -> SendReceipt:
        first = self._find_half_receipt(message, now_ms)
        if first is not None:
            return first
        if message.delivery_ms is not None:
            self._find_replaced_timer(
                message, timer_key_hash(message), now_ms
            )  # Errors must be raised here, because the commit of a half message cannot be refused.
        self._count(message)
        return self._transactions.send(message, queue_id, now_ms)

    def _send_timer(
        self, message: Message, queue_id: int, carried: CarriedTimerVerb | None, now_ms: int
    ) -> SendReceipt:
        named = hashes_of(message.topic, message.message_id)
        first = self._find_timer_receipt(message, named, now_ms)
        if first is not None:
            return first
        assert message.delivery_ms is not None, "a delayed message says when it is due"
        keyed = timer_key_hash(message)
        replaced = self._find_replaced_timer(message, keyed, now_ms)
        if carried is None and replaced is None:
            new: Draft = new_timer(message, queue_id)
            replaced_offset = -1
        else:
            new = timer_record(message, queue_id, replaced)
            if carried:
                self._verb_executor.execute(carried, new, now_ms)
                self._timers.mark_replaced(new, now_ms)
            replaced_offset = replaced_offset_of(new.properties)
        appended = self._store.append(new, now_ms)
        handle = self._recall_handle(message.topic, message.delivery_ms, message.message_id)
        self._count(message)
        offset, queue_offset = appended.offset, appended.queue_offset
        return SendReceipt(message.message_id, queue_offset, offset, "", handle, offset + 1, replaced_offset)

    # The `_find_*_receipt` methods below detect repeated sends.

    def _find_first_receipt(
        self, message: Message, message_type: MessageType, now_ms: int
    ) -> SendReceipt | None:
        """Return the receipt of the first attempt to send a message, or None if the message is new."""
        if message_type is MessageType.TRANSACTION:
            return self._find_half_receipt(message, now_ms)
        if message_type is MessageType.DELAY:
            return self._find_timer_receipt(message, hashes_of(message.topic, message.message_id), now_ms)
        return self._find_plain_receipt(message, properties.encode_message(message))

    def _find_plain_receipt(self, message: Message, stored: bytes) -> SendReceipt | None:
        """Return the receipt of the first attempt to send a plain message, or None if the message is new.

        A plain message is neither a timer nor a half message. `stored` contains the encoded properties of the
        message.
        """
        if not self.deduplicator.ids.may_hold(digest_of(message.topic, message.message_id)):
            return None
        return self._find_stored_receipt(message, stored)

    def _find_stored_receipt(self, message: Message, stored: bytes) -> SendReceipt | None:
        found = self.deduplicator.find_first(message, stored, message.topic)
        return None if found is None else receipt_of(found, message)

    def _find_timer_receipt(self, message: Message, named: NameWords, now_ms: int) -> SendReceipt | None:
        found = self._timers.ends.find_by_hash(named)
        if found is not None and found.stored_ms <= now_ms - self._settings.dedupe_ms:
            found = None
        if found is not None:
            record = self._record_of(found)
            if record is None or is_same(record, message, properties.encode_message(message)):
                return self._repeat_receipt(message, found, record)
        elif not self.deduplicator.may_have_expired_early(now_ms):
            return None
        same = self.deduplicator.find_first(message, properties.encode_message(message), TIMER_TOPIC)
        if same is None:
            return None
        due_ms = int(properties.value_of(same.properties, property_names.DUE_MS))
        handle = self._recall_handle(message.topic, due_ms, message.message_id)
        replaced_offset = replaced_offset_of(same.properties)
        return receipt_of(same, message)._replace(recall_handle=handle, replaced_offset=replaced_offset)

    def _find_half_receipt(self, message: Message, now_ms: int) -> SendReceipt | None:
        known = self._transactions.receipts.find_receipt(message.topic, message.message_id, now_ms)
        if known is None and not self.deduplicator.may_have_expired_early(now_ms):
            return None
        stored = properties.encode_message(message)
        try:
            if known and is_same(self._store.read_appended(known.physical_offset), message, stored):
                return known
        except StoreDamaged:
            return known
        found = self.deduplicator.find_first(message, stored, HALF_TOPIC)
        return None if found is None else self._transactions.receipts.receipt_of(found)

    def _record_of(self, found: NamedTimer) -> Record | None:
        """Return the record of a timer, or None if the record was deleted or is damaged."""
        store, offset = self._store, found.timer_offset
        try:
            is_durable = offset < store.log.durable_offset
            return self._timers.read_at(found.due_ms, offset) if is_durable else store.read_appended(offset)
        except StoreDamaged:
            return None

    def send_scheduled(self, message: Message, now_ms: int) -> SendReceipt:
        """Store a scheduled message without a check.

        The template of the message was checked when the schedule was set.
        """
        topic = self._topics.get_or_create(message.topic, now_ms)
        record = message_record(message, self._choose_queue(message, topic))
        self._store.append(record, now_ms)
        return self._count_stored_message(message, record.queue_offset, record.physical_offset)

    def _choose_queue(self, message: Message, topic: Topic) -> int:
        """Choose a queue by priority, message group, lite topic, or round-robin.

        Raise `IllegalLiteTopic` if the lite topic is illegal, or `TooManyLiteTopics` if the limit is reached.
        """
        if message.priority is not None:
            return min(message.priority, topic.queue_count - 1)
        if message.message_group:
            return tags_code(message.message_group) % topic.queue_count
        if message.lite_topic:
            return self._lite_topics.assign_queue(message, topic)
        stored = self._statistics.stored[topic.name]
        stored.turn += 1
        return stored.turn % topic.queue_count

    def _repeat_receipt(self, message: Message, found: NamedTimer, record: Record | None) -> SendReceipt:
        return SendReceipt(
            message_id=message.message_id,
            queue_offset=self._timers.queue_offset(found),
            physical_offset=found.timer_offset,
            transaction_id="",
            recall_handle=self._recall_handle(message.topic, found.due_ms, message.message_id),
            durable_at=found.timer_offset + 1,
            replaced_offset=-1 if record is None else replaced_offset_of(record.properties),
        )

    def _find_replaced_timer(
        self, message: Message, keyed: NameWords | None, now_ms: int
    ) -> ReplacedTimer | None:
        """Return the pending timer that a message with the key `keyed` replaces, or None.

        Raise `KeyPending` if the pending timer must not be replaced, or `TooManyTimers` if too many timers
        are pending.
        """
        self._timers.check_room(message.topic)
        found = None if keyed is None else self._timers.ends.find_by_hash(keyed)
        if found is None or not self._timers.is_pending(found, now_ms):
            return None
        if message.properties.get(property_names.TIMER_UNIQUE, "").lower() == "true":
            key = message.properties[property_names.TIMER_KEY]
            raise KeyPending(
                f"A timer with the key {key!r} is pending in topic {message.topic!r}, due "
                f"{away(found.due_ms - now_ms)}. Move or cancel it, or "
                f"replace it without {property_names.TIMER_UNIQUE} (over HTTP: unique).",
                durable_at=found.timer_offset + 1,
            )
        return ReplacedTimer(found.timer_offset, found.due_ms)

    def _count_stored_message(self, message: Message, queue_offset: int, offset: int) -> SendReceipt:
        """Count a stored message, and return its receipt."""
        self._count(message)
        return SendReceipt(message.message_id, queue_offset, offset, "", "", offset + 1)

    def _count(self, message: Message) -> None:
        stored = self._statistics.stored[message.topic]
        stored.messages += 1
        stored.body_bytes += len(message.body)

    def _recall_handle(self, topic: str, due_ms: int, message_id: str) -> str:
        return recall.encode(topic, due_ms, message_id, self._settings.broker_name)


def receipt_of(found: Record, message: Message) -> SendReceipt:
    """Return the receipt for a message stored as the record `found`."""
    offset = found.physical_offset
    return SendReceipt(message.message_id, found.queue_offset, offset, "", "", offset + 1)


def message_record(message: Message, queue_id: int) -> Record:
    """Return the record that stores a message in its topic."""
    return Record(
        topic=message.topic,
        queue_id=queue_id,
        body=message.body,
        properties=properties.encode_message(message),
        sys_flag=COMPRESSED if message.gzip else 0,
        born_ms=message.born_ms,
        born_host=message.born_host,
    )
