"""Drafts, which are passed to `Store.append`, and `Appended`, the object that it returns.

    draft          contents                               encoder
    Record         any record; `facts_of` reads its facts `commitlog.records.record.encode`
    AppliedRecord  a record with facts already applied    the same
    NewMessage     a message, a timer or a half, with     `encode_fields`, from the message itself: no part
                   the facts that its sender passes       of it is parsed again to apply or index it
    EncodedBatch   encoded records, as columns            `commitlog.records.bulk.stamp`; a single fact,
                                                          `TimersDelivered`

`Store.append` converts a draft to an `Appended` with the record's offset, store time, facts, and index keys.
Recovery and followers create an `Appended` for each record they read (`appended_of`).

Cost: creating the draft and the `Appended`, both tuples, takes 0.4 us per send.
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

    If `half_offset` is not None, the message commits the half message at that log offset. `id_digest` is the
    message id's digest, or empty if it has not been computed yet.
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


class Appended(NamedTuple):
    """An appended record, or a batch of copies.

    offset, end_offset   the log offsets of the start and the end of the record, in bytes
    queue_offset         the offset of the record in its queue, or 0 if it does not belong to a queue
    store_ms             the store time of the record, in milliseconds since 1970
    facts                the facts that are applied to the parts
    stored               the record or its encoded bytes, or b"" for a batch of copies
    queue                (topic, queue id), or None for a batch of copies or a record without a queue
    entries              the encoded queue entries, of which there is only one except for inner batches
    is_sent              whether the record was written by a client's send
    id_digest            the digest of the message id, or b""
    names, topic         the lookup keys of the record, and its real topic
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


def appended_of(record: Record, record_bytes: int, facts: Sequence[Fact]) -> Appended:
    """Return an `Appended` for a record in the log."""
    offset = record.physical_offset
    place = offset, offset + record_bytes, record.queue_offset, record.store_ms
    if not is_indexed(record):
        return Appended(*place, facts, record)
    topic, names = names_of(record)
    message_id = properties.value_of(record.properties, property_names.MESSAGE_ID)
    names.pop(message_id, None)
    return Appended(
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
