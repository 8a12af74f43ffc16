"""Queues of topics that hold inner batches, in RocketMQ's form for them (topic attribute queue.type=BatchCQ).

`batchconsumequeue/<topic>/<queue>/<20 digits>`, files of 300,000 entries, one for each record in log order:

    offset width  field
    0      8      physical offset
    8      4      record length
    12     8      tags code of the record, not of its messages
    20     8      store time
    28     8      queue offset of the record's first message
    36     2      how many messages it holds
    38     4      -1 (offset in a compacted log)
    42     4      0

Here a record has an ordinary entry for each of its messages; entries of one record become one of these.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

from commitlog.layout import CONSUMEQUEUE, OFFSET_DIGITS
from commitlog.limits import QUEUE_FILE_ENTRIES
from commitlog.records import properties
from commitlog.records.record import Record
from consumequeue import entry
from consumequeue.entry import ENTRY_BYTES, Entry, tags_code
from services.rocketmq.queues import BEFORE_FIRST
from tidewheel import property_names

_FOLDER: Final = "batchconsumequeue"
_LAYOUT: Final = struct.Struct(">qiqqqhii")
_FILE_BYTES: Final = QUEUE_FILE_ENTRIES * _LAYOUT.size


def convert(root: Path, topic: str, read: Callable[[int], Record | None]) -> None:
    """Put batch queues in the place of a topic's ordinary ones; `read` gives a record, None if damaged."""
    for folder in (root / CONSUMEQUEUE / topic).iterdir():
        target = root / _FOLDER / topic / folder.name
        target.mkdir(parents=True)
        _write(target, _packed(_entries(folder), read))
    shutil.rmtree(root / CONSUMEQUEUE / topic)


def _entries(folder: Path) -> Iterator[tuple[int, Entry]]:
    """(queue offset, entry) of every entry that names a record."""
    for path in sorted(folder.iterdir()):
        first = int(path.name) // ENTRY_BYTES
        for at, found in enumerate(entry.decode_all(path.read_bytes())):
            if found.record_bytes == 0:
                return
            if found != BEFORE_FIRST:
                yield first + at, found


def _packed(entries: Iterable[tuple[int, Entry]], read: Callable[[int], Record | None]) -> Iterator[bytes]:
    last_store_ms = 0
    for physical_offset, group in groupby(entries, key=lambda one: one[1].physical_offset):
        several = list(group)
        queue_offset, first = several[0]
        found = read(physical_offset)
        tag = properties.value_of(found.properties, property_names.TAG) if found else ""
        store_ms = found.store_ms if found else last_store_ms
        last_store_ms = store_ms
        yield _LAYOUT.pack(
            physical_offset, first.record_bytes, tags_code(tag), store_ms, queue_offset, len(several), -1, 0
        )


def _write(folder: Path, packed: Iterator[bytes]) -> None:
    data = b"".join(packed)
    for first in range(0, max(1, len(data)), _FILE_BYTES):
        with (folder / f"{first:0{OFFSET_DIGITS}d}").open("wb") as file:
            file.write(data[first : first + _FILE_BYTES])
            file.truncate(_FILE_BYTES)
