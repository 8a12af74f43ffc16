"""Encodes and decodes CommitLog records in the format of Apache RocketMQ.

All integers are big-endian. The offsets are for IPv4 hosts. An IPv6 host occupies 20 bytes instead of 8 and
shifts all subsequent fields. Fields are not padded or aligned. (See `MessageExtEncoder` and `MessageDecoder`
in RocketMQ.)

    offset width  field
    0      4      record_bytes         the whole record, including these 4 bytes
    4      4      magic                DAA320A7 (v1), DAA320AB (v2: topic of more than 127 characters)
    8      4      body CRC             CRC-32 of the body & 0x7FFFFFFF; 0 for an empty body
    12     4      queue_id
    16     4      flag                 the user's, opaque
    20     8      queue_offset
    28     8      physical_offset      equals the log offset of the record
    36     4      sys_flag             see below
    40     8      born_ms
    48     8/20   born host            address 4/16, port 4
    56     8      store_ms
    64     8/20   store host
    72     4      reconsume_times
    76     8      half_offset          of the committed half message, else 0
    84     4 + b  body length, body
    88+b   1/2+t  topic length, topic  1 byte in v1, 2 in v2
           2 + p  properties length, properties

Bits of sys_flag: 0x1 marks a compressed body, and 0x700 is the compression type (see
`commitlog.records.compression`). 0x80 marks a record with several messages (`commitlog.records.inner_batch`).
0xC is the transaction type: 0 none, 4 half message (old stores only), 8 commit, 12 rollback. RocketMQ neither
queues nor indexes records of type 12. 0x10 marks an IPv6 born host, and 0x20 marks an IPv6 store host.

The last property of each Tidewheel record is RocketMQ's optional `__CRC32#`. Its value is the CRC-32 of all
preceding bytes, masked with 0x7FFFFFFF, as ten decimal digits in reverse order. It detects any single-bit
error in the record. Limitation: a CRC-32 protects only against accidental damage. Any process with write
access to the segment files can forge records.
"""

from __future__ import annotations

import ipaddress
import struct
import zlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np

from commitlog.errors import StoreDamaged
from commitlog.records.message import Host
from tidewheel.errors import PropertiesTooLarge

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194
BLANK_BYTES: Final = 8
RECORD_BYTES_MIN: Final = 91

COMPRESSED: Final = 0x1
INNER_BATCH: Final = 0x80
COMPRESSION_TYPE: Final = 0x700
COMPRESSION: Final = COMPRESSED | COMPRESSION_TYPE
TYPE_MASK: Final = 0xC
TYPE_NORMAL: Final = 0x0
TYPE_COMMIT: Final = 0x8
TYPE_SYSTEM: Final = 0xC
BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
_HOSTS_V6: Final = BORN_HOST_V6 | STORE_HOST_V6

CRC_NAME: Final = b"__CRC32#\x01"
CRC_BYTES: Final = 20
CRC_MASK: Final = 0x7FFFFFFF
TOPIC_V1_CHARACTERS_MAX: Final = 127

_FIXED_V4 = struct.Struct(">IIIiiqqiq4sIq4sIiqi")
_BLANK = struct.Struct(">II")

HEAD_V4: Final = np.dtype(
    [("record_bytes", ">u4"), ("magic", ">u4"), ("body_crc", ">u4"), ("queue_id", ">i4"), ("flag", ">i4"),
     ("queue_offset", ">i8"), ("physical_offset", ">i8"), ("sys_flag", ">i4"), ("born_ms", ">i8"),
     ("born_address", "V4"), ("born_port", ">u4"), ("store_ms", ">i8"), ("store_address", "V4"),
     ("store_port", ">u4"), ("reconsume_times", ">i4"), ("half_offset", ">i8"), ("body_bytes", ">i4")]
)  # fmt: skip
"""Layout of the fields before the body, for two IPv4 hosts, to process many records as an array."""


@dataclass(slots=True)
class Record:
    """A record in the CommitLog.

    `properties` are encoded (see `commitlog.records.properties`) and do not include the CRC property.
    """

    topic: str
    body: bytes
    properties: bytes = b""
    queue_id: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_ms: int = 0
    born_host: Host = ("127.0.0.1", 0)
    store_ms: int = 0
    store_host: Host = ("127.0.0.1", 0)
    reconsume_times: int = 0
    half_offset: int = 0
    parsed: tuple[bytes, dict[str, str]] | None = field(default=None, init=False, repr=False, compare=False)
    """Bytes and parsed pairs of `properties`, once parsed (`commitlog.records.properties.of_record`)."""

    @property
    def type(self) -> int:
        """Transaction type bits of `sys_flag`."""
        return self.sys_flag & TYPE_MASK


def encode(record: Record, *, with_crc: bool = True) -> bytes:
    """Encode a record.

    The host addresses determine the IPv6 bits of `sys_flag`. If `with_crc` is false, the bytes match those
    that Apache RocketMQ writes with default settings. Raise `PropertiesTooLarge` if the properties are too
    long for their length field.
    """
    properties = record.properties
    if with_crc and properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    one = record
    return encode_fields(
        one.topic, one.body, properties, one.queue_id, one.queue_offset, one.physical_offset, one.sys_flag,
        one.born_ms, one.born_host, one.store_ms, one.store_host, one.flag, one.reconsume_times,
        one.half_offset, with_crc,
    )  # fmt: skip


def encode_fields(
    topic_name: str,
    body: bytes,
    properties: bytes,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_ms: int,
    born_host: Host,
    store_ms: int,
    store_host: Host,
    flag: int = 0,
    reconsume_times: int = 0,
    half_offset: int = 0,
    with_crc: bool = True,
) -> bytes:
    """Encode a record from its fields.

    `properties` must be empty or end with 0x02. Raise `PropertiesTooLarge` if they are too long for their
    length field.
    """
    # Without the 0x02, a reader would treat the CRC property as part of the preceding property.
    assert not with_crc or not properties or properties[-1] == 0x02, "the last property is not closed"
    topic, version_2 = topic_field(topic_name)
    properties_bytes = len(properties) + (CRC_BYTES if with_crc else 0)
    born, born_v6 = _addresses.get(born_host[0]) or pack_address(born_host)
    store, store_v6 = _addresses.get(store_host[0]) or pack_address(store_host)
    sys_flag &= ~_HOSTS_V6
    layout = _FIXED_V4
    if born_v6 or store_v6:
        sys_flag |= (BORN_HOST_V6 if born_v6 else 0) | (STORE_HOST_V6 if store_v6 else 0)
        layout = _fixed(sys_flag & _HOSTS_V6)
    body_bytes = len(body)
    head = layout.pack(
        layout.size + body_bytes + len(topic) + 2 + properties_bytes,
        MAGIC_V2 if version_2 else MAGIC_V1,
        zlib.crc32(body) & CRC_MASK,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_ms,
        born,
        born_host[1],
        store_ms,
        store,
        store_host[1],
        reconsume_times,
        half_offset,
        body_bytes,
    )
    try:
        length = properties_bytes.to_bytes(2, "big")
    except OverflowError:
        raise PropertiesTooLarge(
            f"With what the broker adds they have {properties_bytes} bytes, a record holds {0xFFFF}. "
            "Nothing was stored. Send fewer or shorter properties and keys."
        ) from None
    encoded = b"".join((head, body, topic, length, properties))
    return encoded + crc_text(zlib.crc32(encoded) & CRC_MASK) if with_crc else encoded


def crc_property(record_bytes: bytes | memoryview) -> bytes:
    """Return the final `__CRC32#` property for a record with these preceding bytes."""
    return crc_text(zlib.crc32(record_bytes) & CRC_MASK)


def crc_text(crc: int) -> bytes:
    """Return the final `__CRC32#` property for a CRC."""
    # The text is reversed, because the least significant digit comes first.
    return (b"\x02%010d\x01#23CRC__" % crc)[::-1]


def decode(buffer: bytes | memoryview, position: int = 0) -> Record:
    """Return the record at `position`. Raise `StoreDamaged` if its lengths are inconsistent.

    `properties` does not include the CRC property. The caller must first check the CRC with `crc_holds`.
    """
    try:
        return _decode(buffer, position)
    except (struct.error, UnicodeDecodeError, IndexError, ValueError) as error:
        raise StoreDamaged(f"No record at position {position} of the given bytes ({error}).") from error


def crc_holds(record_bytes: bytes | memoryview) -> bool:
    """Return whether an encoded record ends with a correct CRC property."""
    split = len(record_bytes) - CRC_BYTES
    return split >= RECORD_BYTES_MIN and record_bytes[split:] == crc_property(record_bytes[:split])


def is_sound(record_bytes: bytes | memoryview, *, may_lack_crc: bool) -> bool:
    """Return whether the CRC property of a complete record is correct.

    If `may_lack_crc` is true (see `commitlog.log.imported`), accept a record without a CRC property if its
    lengths are consistent and its body matches the body CRC.
    """
    if crc_holds(record_bytes):
        return True
    return may_lack_crc and not _has_crc(record_bytes) and _body_holds(record_bytes)


def _has_crc(record_bytes: bytes | memoryview) -> bool:
    return bytes(record_bytes[-CRC_BYTES : len(CRC_NAME) - CRC_BYTES]) == CRC_NAME


def _body_holds(record_bytes: bytes | memoryview) -> bool:
    try:
        body = _decode(record_bytes, 0).body
    except (struct.error, UnicodeDecodeError, IndexError, ValueError):
        return False
    return zlib.crc32(body) & CRC_MASK == int.from_bytes(record_bytes[8:12], "big")


def blank(left_bytes: int) -> bytes:
    """Return the 8-byte blank that closes a segment with `left_bytes` unused bytes."""
    return _BLANK.pack(left_bytes, MAGIC_BLANK)


def topic_field(name: str) -> tuple[bytes, bool]:
    """Return the topic field (length and topic), and whether the topic requires version 2."""
    topic = name.encode()
    if len(name) > TOPIC_V1_CHARACTERS_MAX:
        return struct.pack(">H", len(topic)) + topic, True
    return _ONE_BYTE[len(topic)] + topic, False


_ONE_BYTE: Final = [bytes((number,)) for number in range(256)]
_addresses: dict[str, tuple[bytes, bool]] = {}
_ADDRESSES_MAX: Final = 10_000


def pack_address(host: Host) -> tuple[bytes, bool]:
    """Return a host's packed address, and whether it uses IPv6.

    Results are cached.
    """
    known = _addresses.get(host[0])
    if known is None:
        packed = ipaddress.ip_address(host[0]).packed
        known = (packed, len(packed) == 16)
        if len(_addresses) < _ADDRESSES_MAX:
            _addresses[host[0]] = known
    return known


def _decode(buffer: bytes | memoryview, start: int) -> Record:
    layout = _FIXED_V4
    fields = layout.unpack_from(buffer, start)
    if hosts_v6 := fields[7] & _HOSTS_V6:
        layout = _fixed(hosts_v6)
        fields = layout.unpack_from(buffer, start)
    (
        record_bytes, magic, _, queue_id, flag, queue_offset, physical_offset, sys_flag,
        born_ms, born, born_port, store_ms, store, store_port, reconsume_times, half_offset, body_bytes,
    ) = fields  # fmt: skip
    body_at = start + layout.size
    body_end = body_at + body_bytes
    if magic == MAGIC_V1:
        topic_at = body_end + 1
        topic_end = topic_at + buffer[body_end]
    elif magic == MAGIC_V2:
        topic_at = body_end + 2
        topic_end = topic_at + (buffer[body_end] << 8 | buffer[body_end + 1])
    else:
        raise ValueError(f"magic {magic:08X}")
    properties_at = topic_end + 2
    end = properties_at + (buffer[topic_end] << 8 | buffer[topic_end + 1])
    if body_bytes < 0 or end != start + record_bytes or end > len(buffer):
        raise ValueError(f"lengths give {end - start} bytes, the record says {record_bytes}")
    # In an imported record without a CRC property, all remaining bytes are properties.
    properties_end = end - CRC_BYTES
    if properties_end < properties_at or buffer[properties_end : properties_end + len(CRC_NAME)] != CRC_NAME:
        properties_end = end
    return Record(
        str(buffer[topic_at:topic_end], "utf-8"),
        bytes(buffer[body_at:body_end]),
        bytes(buffer[properties_at:properties_end]),
        queue_id,
        queue_offset,
        physical_offset,
        flag,
        sys_flag,
        born_ms,
        (_address_text(born), born_port),
        store_ms,
        (_address_text(store), store_port),
        reconsume_times,
        half_offset,
    )


@lru_cache
def _fixed(hosts_v6: int) -> struct.Struct:
    """Return the layout of the fields before the body for the given IPv6 bits of `sys_flag`."""
    born, store = (16 if hosts_v6 & bit else 4 for bit in (BORN_HOST_V6, STORE_HOST_V6))
    return struct.Struct(f">IIIiiqqiq{born}sIq{store}sIiqi")


@lru_cache(maxsize=4096)
def _address_text(packed: bytes) -> str:
    return str(ipaddress.ip_address(packed))
