"""Records of half messages, their outcomes, and their check-backs.

A half message contains the user's message, with the real topic and queue as properties. It is stored in queue
0 of the half topic and is never delivered. A commit is a single record: the message with its real topic, the
transaction type "commit", and the offset of the half message in `half_offset`. If a delivery time is set, the
commit is a timer record in the same format. The commit is also the outcome record, so a crash cannot separate
a message from its outcome. A rollback or an expiry has its own outcome record. A check-back record contains
the number of check-backs, and a late-end record contains the outcome that the producer requested. Half
message and check-back records hold the time of the next check-back in `TW_CHECK_MS`, because the check-back
settings are not in the log.

A transaction ID contains the log offset of the half message and a checksum of the message ID:

    16 hex digits  physical offset of the half message
     8 hex digits  CRC-32 of the message ID

Finding the half message for a transaction ID thus requires no table. (The topics, transaction types, and
properties are those of RocketMQ's `TransactionalMessageBridge`. RocketMQ, however, writes separate records
for the commit and its outcome, the "op" message.)

Limitation: the CRC detects accidental errors, but a client that knows the message ID can forge the
transaction ID.
"""

from __future__ import annotations

import re
import zlib
from functools import lru_cache
from typing import Final

from commitlog.facts.facts import CheckBackSent, HalfEnded, HalfStored
from commitlog.records import properties
from commitlog.records.kinds import CHECK_TOPIC, HALF_TOPIC, LATE_TOPIC, OUTCOME_TOPIC
from commitlog.records.message import Message
from commitlog.records.record import COMPRESSED, COMPRESSION, TYPE_COMMIT, TYPE_SYSTEM, Record
from tidewheel import property_names
from txn.checkback import CheckBackPolicy
from txn.errors import InvalidTransactionId
from txn.states import State

_CHECK: Final = f"{property_names.CHECK_MS}\x01"
_OFFSET_DIGITS: Final = 16
_ID_DIGITS: Final = 24
_ID: Final = re.compile(r"[0-9A-F]+")
_OUTCOME_NAMES: Final = {State.ROLLED_BACK: "ROLLBACK", State.EXPIRED: "EXPIRED"}
_STATES: Final = {"COMMIT": State.COMMITTED} | {name: state for state, name in _OUTCOME_NAMES.items()}
_DEFAULT: Final = CheckBackPolicy(
    immunity_ms=6_000, interval_ms=10_000, interval_ms_max=300_000, count_max=15
)
"""Policy for records without `TW_CHECK_MS`. It is part of the record format and must not change."""


def transaction_id(physical_offset: int, message_id: str) -> str:
    """Return the ID of the transaction whose half message is at `physical_offset`."""
    return transaction_id_of(physical_offset, id_crc(message_id))


def id_crc(message_id: str) -> int:
    """Return the CRC-32 of a message ID, which is part of the transaction ID."""
    return zlib.crc32(message_id.encode())


def transaction_id_of(physical_offset: int, crc: int) -> str:
    """Return the transaction ID for a half message's offset and the CRC of its message ID."""
    return f"{physical_offset:016X}{crc:08X}"


def unverified_offset(transaction: str) -> int:
    """Return the unverified offset in a transaction ID, or -1 for any other string."""
    if len(transaction) != _ID_DIGITS or not _ID.fullmatch(transaction):
        return -1
    return int(transaction[:_OFFSET_DIGITS], 16)


def half_offset(transaction: str, message_id: str) -> int:
    """Return the half message offset contained in a transaction ID.

    Raise `InvalidTransactionId` if the transaction ID does not match the message ID.
    """
    offset = unverified_offset(transaction)
    if offset < 0 or transaction != transaction_id(offset, message_id):
        raise InvalidTransactionId(
            f"{transaction!r} with message id {message_id!r} was not given out by this store. "
            "End a transaction with the two ids of its own send receipt."
        )
    return offset


def half_record(message: Message, queue_id: int, check_ms: int) -> Record:
    """Return the half message record for a message to queue `queue_id`.

    The first check-back is due at `check_ms`.
    """
    return Record(
        topic=HALF_TOPIC,
        body=message.body,
        properties=half_properties(message, queue_id, check_ms),
        sys_flag=COMPRESSED if message.gzip else 0,
        born_ms=message.born_ms,
        born_host=message.born_host,
    )


def half_of(message: Message, queue_id: int, check_ms: int) -> tuple[bytes, HalfStored]:
    """Return the encoded properties for a half message record, and its `HalfStored` fact."""
    immunity_ms = message.check_immunity_ms
    immunity_s = None if immunity_ms is None else -(-immunity_ms // 1000)
    fact = HalfStored(message.topic, message.message_id, message.delivery_ms, check_ms, immunity_s)
    return half_properties(message, queue_id, check_ms), fact


def half_properties(message: Message, queue_id: int, check_ms: int) -> bytes:
    """Encode the properties for a half message record."""
    marks = f"{_target(message.topic, queue_id)}{_marks(message)}{_CHECK}{check_ms}\x02"
    return properties.encode_message(message, marks)


def commit_properties(message: Message) -> bytes:
    """Encode the properties for a commit record, as in `committed_record`."""
    return properties.encode_message(message, _marks(message))


def committed_record(half: Record, reason: str = "") -> Record:
    """Return the commit record for a half message, with its real topic and queue.

    `reason` is set if the commit was made by an operator.
    """
    stored = properties.of_record(half) | {property_names.REASON: reason}
    topic = stored.pop(property_names.REAL_TOPIC)
    queue_id = int(stored.pop(property_names.REAL_QUEUE_ID))
    return _commit(half, topic, queue_id, stored)


def committed_timer_record(half: Record, timer_topic: str, reason: str = "") -> Record:
    """Return the commit record for a half message with a delivery time.

    This is a timer record.
    """
    stored = properties.of_record(half) | {property_names.REASON: reason}
    return _commit(half, timer_topic, 0, stored)


def outcome_record(half: Record, state: State, reason: str = "") -> Record:
    """Return the outcome record for a half message that was rolled back or has expired."""
    stored = properties.of_record(half) | {property_names.REASON: reason}
    kept = {name: stored[name] for name in _KEPT_BY_OUTCOMES if name in stored}
    return Record(
        topic=OUTCOME_TOPIC,
        body=b"",
        properties=properties.encode(kept | {property_names.OUTCOME: _OUTCOME_NAMES[state]}),
        sys_flag=TYPE_SYSTEM,
        half_offset=half.physical_offset,
    )


def state_after(end: HalfEnded) -> State:
    """Return the state of a half message that has ended."""
    return _STATES[end.how]


def check_record(half: int, check_count: int, check_ms: int | None = None) -> Record:
    """Return a check-back record.

    If given, `check_ms` is the time of the next check-back.
    """
    return Record(
        topic=CHECK_TOPIC,
        body=b"",
        properties=properties.encode({property_names.CHECK_MS: "" if check_ms is None else str(check_ms)}),
        sys_flag=TYPE_SYSTEM,
        half_offset=half,
        reconsume_times=check_count,
    )


def check_ms_of(fact: HalfStored | CheckBackSent, stored_ms: int) -> int:
    """Return the next check-back time in a fact, or a default if it contains none."""
    if fact.check_ms is not None:
        return fact.check_ms
    if isinstance(fact, CheckBackSent):
        return _DEFAULT.next_check_ms(stored_ms, fact.asked_count)
    return _DEFAULT.first_check_ms(stored_ms, None if fact.immunity_s is None else fact.immunity_s * 1000)


def late_record(half: int, asked_for: str) -> Record:
    """Return the record for a producer's attempt to end an expired half message."""
    return Record(topic=LATE_TOPIC, body=asked_for.encode(), sys_flag=TYPE_SYSTEM, half_offset=half)


_KEPT_BY_OUTCOMES: Final = (
    property_names.MESSAGE_ID,
    property_names.KEYS,
    property_names.KEY_LENGTHS,
    property_names.REAL_TOPIC,
    property_names.REASON,
)


def _commit(half: Record, topic: str, queue_id: int, stored: dict[str, str]) -> Record:
    stored.pop(property_names.CHECK_MS, None)  # Only half messages have check-backs.
    return Record(
        topic=topic,
        queue_id=queue_id,
        body=half.body,
        properties=properties.encode(stored),
        flag=half.flag,
        sys_flag=(half.sys_flag & COMPRESSION) | TYPE_COMMIT,
        born_ms=half.born_ms,
        born_host=half.born_host,
        reconsume_times=half.reconsume_times,
        half_offset=half.physical_offset,
    )


def _marks(message: Message) -> str:
    """Encode the transaction properties that a half message and its commit share.

    The immunity time is rounded up to whole seconds, because RocketMQ's property is in seconds and a
    check-back must not be early.
    """
    marks = f"{_transaction(message.topic)}{message.message_id}\x02"
    if message.delivery_ms is not None:
        marks += f"{property_names.DUE_MS}\x01{message.delivery_ms}\x02"
    if message.check_immunity_ms is not None:
        marks += f"{property_names.CHECK_IMMUNITY_SECONDS}\x01{-(-message.check_immunity_ms // 1000)}\x02"
    return marks


@lru_cache(maxsize=4096)
def _target(topic: str, queue_id: int) -> str:
    return f"{property_names.REAL_TOPIC}\x01{topic}\x02{property_names.REAL_QUEUE_ID}\x01{queue_id}\x02"


@lru_cache(maxsize=4096)
def _transaction(topic: str) -> str:
    """Encode the properties that precede the transaction ID. They depend only on the topic."""
    fixed = f"{property_names.TRANSACTIONAL}\x01true\x02{property_names.PRODUCER_GROUP}\x01{topic}\x02"
    return f"{fixed}{property_names.TRANSACTION_ID}\x01"
