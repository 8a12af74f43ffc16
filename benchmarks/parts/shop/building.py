"""Write a generated shop (`audit_shop.py` lists its files): log and books, each by one process.

The log is written a chunk of orders at a time: records up to the first time of the next chunk are written,
the rest is kept, so memory does not grow with the shop. The two processes draw the same stories
(`chunks.py`). The snapshot contains only the queues.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import numpy as np

from commitlog import limits
from parts.columns import Array
from parts.shop.books import Books
from parts.shop.chunks import LAST_PUSH_MS, Chunk, Stories
from parts.shop.log import EVENT, RING, Fields, LogWriter
from parts.shop.templates import lift

ORDER_BYTES: Final = 3_600
SPARE_BYTES: Final = 1 << 30
_DRAIN_MS: Final = 600_000


@dataclass(frozen=True)
class Truth:
    """The shop built: numbers of orders and records, bytes of log, and the findings of each case."""

    folder: Path
    orders: int
    records: int
    log_bytes: int
    cases: dict[str, int]


class Ring:
    """The values for the records of open orders, by the order's number modulo `RING`."""

    def __init__(self) -> None:
        self.variants = np.zeros(RING, np.int64)
        self.queues = np.zeros(RING, np.int64)
        self.fields: Fields = {}

    def take(self, chunk: Chunk) -> None:
        """Replace old orders by the orders of a chunk."""
        ring = chunk.numbers % RING
        self.variants[ring], self.queues[ring] = chunk.variants, chunk.queues
        for name, digits in chunk.fields().items():
            kept = self.fields.setdefault(name, np.full((RING, digits.shape[1]), ord("0"), np.uint8))
            kept[ring] = digits


def build(
    folder: Path,
    orders: int,
    plants_per_case: int = 0,
    seed: int = 1,
    segment_bytes: int = limits.SEGMENT_BYTES_DEFAULT,
) -> Truth:
    """Build everything below `folder`; exit with a message if the disk has no room."""
    folder.mkdir(parents=True, exist_ok=True)
    check_room(folder, orders)
    stories = Stories(orders, plants_per_case, seed)
    with ProcessPoolExecutor(1, get_context("spawn")) as other:
        cases = other.submit(write_books, folder, orders, plants_per_case, seed)
        writer = write_log(folder, stories, segment_bytes)
        return Truth(folder, orders, writer.record_count, writer.end_offset, cases.result())


def write_books(folder: Path, orders: int, plants_per_case: int, seed: int) -> dict[str, int]:
    """Write the databases, the carts and the truth; return the number of findings of each case."""
    books = Books(folder)
    for chunk in Stories(orders, plants_per_case, seed).chunks():
        books.add(chunk)
    books.add_strangers(plants_per_case)
    return books.close()


def write_log(folder: Path, stories: Stories, segment_bytes: int) -> LogWriter:
    """Write the store."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        writer = LogWriter(folder / "store", lift(Path(scratch)), segment_bytes)
    ring, pending, until_ms = Ring(), np.zeros(0, EVENT), 0
    for chunk in stories.chunks():
        ring.take(chunk)
        until_ms = int(stories.placed_ms(chunk.numbers[-1] + 1))
        pending = write_until(writer, ring, np.concatenate((pending, chunk.events())), until_ms)
    until_ms += _DRAIN_MS
    while len(pending):
        pending = write_until(writer, ring, pending, until_ms)
        until_ms += LAST_PUSH_MS
    writer.close()
    return writer


def write_until(writer: LogWriter, ring: Ring, events: Array, until_ms: int) -> Array:
    """Write the events stored before a time; return the remaining events, with new acknowledgements."""
    events = events[np.argsort(events["ms"], kind="stable")]
    count = int(np.searchsorted(events["ms"], until_ms))
    acks = writer.write(events[:count], ring.variants, ring.queues, ring.fields)
    acks["ms"] = until_ms + np.arange(len(acks)) % 10_000
    return np.concatenate((events[count:], acks))


def check_room(folder: Path, orders: int) -> None:
    """Exit with an error if the disk has no room for the orders."""
    needed, free = orders * ORDER_BYTES + SPARE_BYTES, shutil.disk_usage(folder).free
    if free < needed:
        sys.exit(
            f"{folder} has {free >> 30} GiB free; {orders:,} orders need {(needed >> 30) + 1} GiB. "
            "Give another folder, or fewer --orders."
        )
