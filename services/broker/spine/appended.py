"""Define the draft types that `Store.append` accepts, and the type `AppendResult` that it returns.

    draft          contents                               encoder
    Record         any record; `facts_of` parses its      `commitlog.records.record.encode`
                   facts
    AppliedRecord  a record with facts already applied    `commitlog.records.record.encode`
    NewMessage     a message, timer, or half message,     `encode_fields`; the message is not parsed again
                   with the facts given by the caller     for the index or the state
    EncodedBatch   encoded records, as columns            `commitlog.records.bulk.stamp`; the batch has a
                                                          single fact, `TimersDelivered`

`Store.append` converts a draft to an `AppendResult`, which contains the offset, store time, facts, and index
keys of the record. Recovery and followers create an `AppendResult` for each record that they read
(`to_append_result`).

Cost: 0.4 us per send to create the draft and the `AppendResult`, which are both tuples.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from commitlog.facts.facts import Fact
from commitlog.records import properties
from commitlog.records.message import Message
from commitlog.records.record import Record
from consumequeue.dispatch import entries_of, is_indexed
from consumequeue.indexes.keyindex import names_of
from consumequeue.indexes.name_hash import digest_of
from services.broker.spine.encoded_batch import EncodedBatch, TimersDelivered
from services.broker.spine.same_message import is_sent
from tidewheel import property_names


class NewMessage(NamedTuple):
    """A message for `topic`, with its encoded properties (`stored`) and its facts.

    If `half_offset` is not None, the message commits the half message at log offset `half_offset`.
    `id_digest` is the digest of the message id, or empty if the digest has not been computed yet.
    """

    message: Message
    stored: bytes
    topic: str
    queue_id: int
    facts: tuple[Fact, ...] = ()
    half_offset: int | None = None
    id_digest: bytes = b""


class AppliedRecord(NamedTuple):
    """A record whose facts have already been applied (`services.broker.groups.open_records`)."""

    record: Record


Draft = Record | AppliedRecord | NewMessage | EncodedBatch


class AppendResult(NamedTuple):
    """An appended record, or an appended batch of timer deliveries.

    offset, end_offset   the log offsets of the start and the end of the record, in bytes
    queue_offset         the offset of the record in its queue, or 0 if the record has no queue
    store_ms             the store time of the record, in milliseconds since 1970
    facts                the facts that are applied to the parts of the broker
    stored               the record or its encoded bytes, or b"" for a batch
    queue                (topic, queue id), or None for a batch or for a record without a queue
    entries              the encoded queue entries: one, or several for an inner batch
    is_sent              whether a client sent the record
    id_digest            the digest of the message id, or b""
    names, topic         the lookup keys and the real topic of the record
    """

    offset: int
    end_offset: int
    queue_offset: int
    store_ms: int
    facts: Sequence[Fact | TimersDelivered] = ()
    stored: Record | bytes = b""
    queue: tuple[str, int] | None = None
    entries: bytes = b""
    is_sent: bool = False
    id_digest: bytes = b""
    topic: str = ""
    names: Collection[str] = ()

    def topics(self) -> Iterator[str]:
        """Yield the topics of the appended messages."""
        if self.queue is not None:
            yield self.queue[0]
        for fact in self.facts:
            if isinstance(fact, TimersDelivered):
                yield from (topic for topic, _ in fact.copies.list_used_queues())


def to_append_result(record: Record, record_bytes: int, facts: Sequence[Fact]) -> AppendResult:
    """Return an `AppendResult` for a record that was read from the log."""
    offset = record.physical_offset
    place = offset, offset + record_bytes, record.queue_offset, record.store_ms
    if not is_indexed(record):
        return AppendResult(*place, facts, record)
    topic, names = names_of(record)
    message_id = properties.value_of(record.properties, property_names.MESSAGE_ID)
    names.pop(message_id, None)
    return AppendResult(
        *place,
        facts,
        record,
        (record.topic, record.queue_id),
        entries_of(record, record_bytes),
        is_sent(record),
        digest_of(topic, message_id) if message_id else b"",
        topic,
        names,
    )
