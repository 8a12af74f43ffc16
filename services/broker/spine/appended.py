"""The arguments of `Store.append`, which are called drafts, and its result, `Appended`.

    draft          contents                               encoder
    Record         any record; `facts_of` reads its facts `commitlog.record.encode`
    AppliedRecord  a record with facts already applied    the same
    NewMessage     a message, a timer or a half, with     `encode_fields`, from the message itself: no part
                   the facts that its sender passes       of it is parsed again to apply or index it
    EncodedBatch   encoded records, as columns            `commitlog.bulk.stamp`; one fact: `TimersDelivered`

`Store.append` converts each draft to an `Appended`, which contains the offset and store time of the record,
its facts, and its index keys. Recovery and followers create an `Appended` from each record that they read
(`appended_of`).

Cost: each send creates a draft and an `Appended`, both of which are tuples, in 0.4 us.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from commitlog import properties
from commitlog.facts.facts import Fact
from commitlog.message import Message
from commitlog.record import Record
from consumequeue.dispatch import entries_of, is_indexed
from consumequeue.keyindex import names_of
from consumequeue.name_hash import digest_of
from services.broker.spine.copies import EncodedBatch, TimersDelivered
from services.broker.spine.same_message import is_sent
from tidewheel import property_names


class NewMessage(NamedTuple):
    """A message to be stored in the topic `topic`, with its encoded properties `stored` and its facts.

    If `half_offset` is not None, the message commits the half message at that log offset. `id_digest` is the
    digest of the message id, or an empty string if the digest has not been computed yet.
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
    """An appended record, or all records of a batch of copies.

    offset, end_offset   its log offset, and the log offset after it (bytes)
    queue_offset         its offset in its queue, or 0 without a queue
    store_ms             its store time, in ms since 1970
    facts                its facts, for the parts
    stored               the record, or its bytes, or b"" for a run
    queue                (topic, queue id), or None without a queue and for a run
    entries              its queue entries, one except for inner batches
    is_sent              whether a client's send wrote the record
    id_digest            the digest of its message id, or b""
    names, topic         its keys for look-ups, and its real topic
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
        """Yield the topics in which the appended records contain messages."""
        if self.queue is not None:
            yield self.queue[0]
        for fact in self.facts:
            if isinstance(fact, TimersDelivered):
                yield from (topic for topic, _ in fact.copies.list_used_queues())


def appended_of(record: Record, record_bytes: int, facts: Sequence[Fact]) -> Appended:
    """Return the `Appended` for a record that is already in the log."""
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
