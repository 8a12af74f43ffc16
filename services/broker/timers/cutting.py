"""Convert timer records to ready records in bulk by copying byte ranges.

    timer record   header | body | topic, length      | kept properties | REAL_TOPIC, REAL_QID | CRC
    ready record   header | body | real topic, length | kept properties | TW_TIMER_OFFSET      | CRC

The header is the fixed-size part of a record (`commitlog.records.record.HEAD_V4`). Each property consists of
a name, \\x01, a value, and \\x02. This module converts only records of the most common form. Such a record
has IPv4 hosts and a message id, and ends with the two properties of its target. `timer_source` decodes all
other records, such as those of moved timers and those with a verdict. NumPy writes the headers and CRCs of
all records in one operation.

The loop over the records is a single function, because checkpoints spend most of their time in this loop.

Limitation: the conversion depends on the property order of `timer_records.timer_properties`. If the order
changed, every record would be decoded, which is slower but correct.
"""

from __future__ import annotations

from functools import lru_cache
from sys import intern
from typing import Any, Final, NamedTuple

import numpy as np

from commitlog import limits
from commitlog.records import bulk, record
from commitlog.records.bulk import Integers
from commitlog.records.kinds import TIMER_TOPIC
from commitlog.records.record import topic_field
from consumequeue.indexes.name_hash import digest_of_name
from services.broker.spine.encoded_batch import Hashes
from tidewheel import property_names

_FIXED_BYTES: Final = record.HEAD_V4.itemsize
_TOPIC_FIELD: Final = bytes((len(TIMER_TOPIC),)) + TIMER_TOPIC.encode()
_TARGET: Final = b"\x02" + property_names.REAL_TOPIC.encode() + b"\x01"
_QUEUE: Final = b"\x02" + property_names.REAL_QUEUE_ID.encode()
_ID: Final = b"\x02" + property_names.MESSAGE_ID.encode() + b"\x01"
_KEYS: Final = property_names.KEYS.encode() + b"\x01"
_TAG: Final = property_names.TAG.encode() + b"\x01"
_MARK: Final = property_names.TIMER_OFFSET.encode() + b"\x01%d\x02"


class RealTopic(NamedTuple):
    """The real topic of a timer: the name, the encoded topic field, and the prefix of hashed names."""

    name: str
    field: bytes
    before_names: bytes


class CutRecords:
    """The ready records converted from `stored`, the undamaged records of the timers at `timer_offsets`."""

    def __init__(self, stored: list[bytes], timer_offsets: list[int]) -> None:
        headers = np.frombuffer(b"".join([one[:_FIXED_BYTES] for one in stored]), record.HEAD_V4)
        is_plain = (headers["magic"] == record.MAGIC_V1) & (headers["flag"] == 0)
        is_plain &= (headers["sys_flag"] & ~record.COMPRESSION) == 0
        self.places: list[int] = []
        """The indexes in `stored` of the converted records, in ascending order."""
        self.queues: list[tuple[str, int]] = []
        """The target (topic, queue id) of each converted record."""
        self.named: list[tuple[int, bytes]] = []
        """The index and the properties of each converted record that may have a tag or keys."""
        self._parts: list[bytes] = []
        self._digests: list[bytes] = []
        self._cut_records(stored, timer_offsets, headers["body_bytes"].tolist(), is_plain.tolist())
        assert len(self.places) == len(self.queues) == len(self._parts) == len(self._digests)
        self._headers = headers[self.places]
        self._timer_offsets = np.array(timer_offsets, np.int64)[self.places]

    def id_hashes(self) -> Hashes:
        """Return the message id hash (`consumequeue.indexes.keyindex`) of each record, as a u64 array.

        The hashes are in the order of `places`.
        """
        return np.frombuffer(b"".join(self._digests), np.uint64)

    def records(self) -> list[bytes]:
        """Return the ready records in the order of `places`."""
        content = bytearray(b"".join(self._parts))
        lengths = np.array(list(map(len, self._parts)), np.int64)
        ends = np.cumsum(lengths)
        starts = ends - lengths
        _write_headers(content, starts, self._new_headers(lengths))
        bulk.seal(content, starts, ends)
        sealed = bytes(content)
        return [sealed[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def _cut_records(
        self, stored: list[bytes], timer_offsets: list[int], body_bytes: list[int], is_plain: list[bool]
    ) -> None:
        of_each = zip(stored, timer_offsets, body_bytes, is_plain, strict=True)
        for place, (one, timer_offset, size, plain) in enumerate(of_each):
            topic_at = _FIXED_BYTES + size
            properties_at = topic_at + len(_TOPIC_FIELD) + 2
            # The search starts from the right, because a producer may set properties that resemble a target.
            # The broker writes the target last, and `_target` does not accept any bytes after the target.
            target_at = one.rfind(_TARGET, properties_at)
            target = _target(one[target_at : -record.CRC_BYTES]) if plain and target_at > 0 else None
            id_at = _id_at(one, properties_at, target_at)
            if target is None or id_at < 0 or not one.startswith(_TOPIC_FIELD, topic_at):
                continue
            topic, queue_id = target
            kept = one[properties_at : target_at + 1]
            # The test also matches other properties whose names end with the same text. The caller must
            # therefore check the names.
            if _KEYS in kept or _TAG in kept:
                self.named.append((place, kept))
            kept += _MARK % timer_offset
            length = (len(kept) + record.CRC_BYTES).to_bytes(2, "big")
            self._parts.append(b"".join((one[:topic_at], topic.field, length, kept, bulk.NO_CRC)))
            message_id = one[id_at : one.index(b"\x02", id_at)]
            self._digests.append(digest_of_name(topic.before_names + message_id))
            self.queues.append((topic.name, queue_id))
            self.places.append(place)

    def _new_headers(self, lengths: Integers) -> np.ndarray[Any, np.dtype[np.void]]:
        headers = self._headers.copy()
        headers["record_bytes"], headers["physical_offset"] = lengths, self._timer_offsets
        headers["queue_id"] = [queue_id for _, queue_id in self.queues]
        for name in ("queue_offset", "reconsume_times", "half_offset"):
            headers[name] = 0
        return headers


def _id_at(stored: bytes, properties_at: int, until: int) -> int:
    """Return the byte position of the message id in the record, or -1 if the record has no message id."""
    if stored.startswith(_ID[1:], properties_at):
        return properties_at + len(_ID) - 1
    found = stored.rfind(_ID, properties_at, until)
    return found + len(_ID) if found >= 0 else -1


def _target(tail: bytes) -> tuple[RealTopic, int] | None:
    """Return the target (topic, queue id), or None if `tail` is not a target."""
    pairs, _, queue_id = tail[:-1].rpartition(b"\x01")
    topic = _real_topic(pairs)
    if topic is None or not queue_id.isdigit() or not tail.endswith(b"\x02"):
        return None
    return topic, int(queue_id)


@lru_cache(maxsize=limits.TOPICS_CACHED)
def _real_topic(pairs: bytes) -> RealTopic | None:
    """Return the topic in `pairs`, or None if it is malformed.

    `pairs` contains the bytes of a target up to the queue id.
    """
    topic = pairs[len(_TARGET) : -len(_QUEUE)]
    if pairs != _TARGET + topic + _QUEUE or not 0 < len(topic) <= record.TOPIC_V1_CHARACTERS_MAX:
        return None
    if not topic.isascii() or b"\x01" in topic or b"\x02" in topic:
        return None
    name = intern(topic.decode())
    return RealTopic(name, topic_field(name)[0], topic + b"#")


def _write_headers(content: bytearray, starts: Integers, headers: np.ndarray[Any, np.dtype[np.void]]) -> None:
    assert len(headers) == len(starts), "a record without a header"
    columns = starts[:, np.newaxis] + np.arange(_FIXED_BYTES)
    np.frombuffer(content, np.uint8)[columns] = headers.view(np.uint8).reshape(-1, _FIXED_BYTES)
