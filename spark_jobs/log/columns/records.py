"""Decodes many records of a segment: fixed fields, positions of body, topic, and properties, and CRCs.

The first 88 bytes of the records are copied in one step and read as one structured type, with the layout of
`commitlog.records.record`. An IPv6 host shifts all fields after it by 12 bytes, so a batch with such a record
reads each field after a host at its own position. Lengths are not trusted: reads are clipped to the available
bytes, and `adds_up` indicates the records whose lengths are consistent.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from commitlog.records import record
from spark_jobs.log.columns.crcs import Tails, crcs
from spark_jobs.log.columns.ragged import Bytes, Flags, Integers, items, numbers_at

HEAD_BYTES: Final = 88


@dataclass(frozen=True, slots=True)
class Fixed:
    """A number at a fixed position in a record, after `hosts_before` host fields."""

    offset: int
    numpy_type: str
    hosts_before: int = 0


FIXED: Final = {
    "queue_id": Fixed(12, ">i4"),
    "flag": Fixed(16, ">i4"),
    "queue_offset": Fixed(20, ">i8"),
    "sys_flag": Fixed(36, ">i4"),
    "born_ms": Fixed(40, ">i8"),
    "store_ms": Fixed(56, ">i8", 1),
    "reconsume_times": Fixed(72, ">i4", 2),
    "half_offset": Fixed(76, ">i8", 2),
}
_FIELDS: Final = FIXED | {
    "record_bytes": Fixed(0, ">u4"),
    "magic": Fixed(4, ">u4"),
    "body_crc": Fixed(8, ">u4"),
    "physical_offset": Fixed(28, ">i8"),
    "born_v4": Fixed(48, "<u8"),
    "store_v4": Fixed(64, "<u8", 1),
    "body_bytes": Fixed(84, ">i4", 2),
}
_HEAD: Final = np.dtype({
    "names": list(_FIELDS),
    "formats": [one.numpy_type for one in _FIELDS.values()],
    "offsets": [one.offset for one in _FIELDS.values()],
})  # fmt: skip
_V6: Final = record.BORN_HOST_V6 | record.STORE_HOST_V6


@dataclass(frozen=True, slots=True)
class Records:
    """Records of a segment at ascending positions, with the positions and lengths of their parts in bytes."""

    data: Bytes
    positions: Integers
    lengths: Integers
    heads: Any
    shifts: Integers | None
    body_starts: Integers
    body_bytes: Integers
    topic_starts: Integers
    topic_bytes: Integers
    properties_starts: Integers
    properties_bytes: Integers
    adds_up: Flags

    def __len__(self) -> int:
        return len(self.positions)

    @classmethod
    def at(cls, data: Bytes, positions: Integers) -> Records:
        """Return the records at `positions`. Each needs `RECORD_BYTES_MIN` readable bytes."""
        heads = items(data, f"V{HEAD_BYTES}")[positions].view(_HEAD)
        sys_flags = heads["sys_flag"].astype(np.int32)
        shifts = _shifts(sys_flags) if (sys_flags & _V6).any() else None
        after_hosts = 0 if shifts is None else shifts[2]
        if shifts is None:
            body_bytes = heads["body_bytes"].astype(np.int64)
        else:
            body_bytes = numbers_at(data, positions + 84 + after_hosts, ">i4").astype(np.int64)
        body_starts = positions + HEAD_BYTES + after_hosts
        topic_at = body_starts + body_bytes
        topic_width = 1 + (heads["magic"] == record.MAGIC_V2)
        topic_bytes = numbers_at(data, topic_at, "u1").astype(np.int64)
        if (topic_width == 2).any():
            topic_bytes = np.where(topic_width == 2, numbers_at(data, topic_at, ">u2"), topic_bytes)
        topic_starts = topic_at + topic_width
        properties_at = topic_starts + topic_bytes
        properties_bytes = numbers_at(data, properties_at, ">u2").astype(np.int64)
        lengths = heads["record_bytes"].astype(np.int64)
        ends = properties_at + 2 + properties_bytes
        adds_up: Flags = (body_bytes >= 0) & (ends == positions + lengths)
        return cls(
            data, positions, lengths, heads, shifts,
            body_starts, body_bytes, topic_starts, topic_bytes, properties_at + 2, properties_bytes, adds_up,
        )  # fmt: skip

    def chosen(self, kept: Flags | Integers | slice) -> Records:
        """Return the selected records."""
        parts: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in _PER_RECORD:
            parts[name] = parts[name][kept]
        if self.shifts is not None:
            parts["shifts"] = self.shifts[:, kept]
        return Records(**parts)

    def numbers(self, name: str) -> Integers:
        """Return a fixed field of each record in native byte order."""
        field = _FIELDS[name]
        if self.shifts is not None and field.hosts_before:
            places = self.positions + field.offset + self.shifts[field.hosts_before]
            return numbers_at(self.data, places, field.numpy_type)
        native: Integers = self.heads[name].astype(np.dtype(field.numpy_type).newbyteorder("="))
        return native

    def body_crcs_hold(self) -> Flags:
        """Return which bodies match their CRC. The lengths of the records must be consistent."""
        found = crcs(self.data, self.body_starts, self.body_starts + self.body_bytes)
        flags: Flags = found == self.heads["body_crc"]
        return flags

    def has_crc(self) -> Flags:
        """Return which records end with a CRC property, correct or not. They must have at least 20 bytes."""
        return Tails(self.data, self.positions + self.lengths).are_crcs()

    def crcs_hold(self) -> Flags:
        """Return which records match their CRC property (see `commitlog.records.record.crc_holds`)."""
        ends = self.positions + self.lengths
        found = crcs(self.data, self.positions, ends - record.CRC_BYTES)
        return Tails(self.data, ends).say(found)


_PER_RECORD: Final = tuple(field.name for field in fields(Records) if field.name not in ("data", "shifts"))


def _shifts(sys_flags: Integers) -> Integers:
    """Return the shift in bytes of fields after 0, 1, and 2 hosts, as an array of shape (3, records)."""
    born = 12 * (sys_flags & record.BORN_HOST_V6 > 0).astype(np.int64)
    store = 12 * (sys_flags & record.STORE_HOST_V6 > 0).astype(np.int64)
    return np.array([np.zeros(len(sys_flags), np.int64), born, born + store])
