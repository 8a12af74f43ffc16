"""A shop's whole day at any size, with known faults: the stores that an audit takes, and what it must find.

    .venv/bin/python benchmarks/audit_shop.py FOLDER --orders 1000000 [--plants 20] [--seed 1]

    FOLDER/store                  the log, its queue files and a snapshot that names them
    FOLDER/orders.db, pushes.db   SQLite, with the shop's own tables
    FOLDER/carts/                 carts, ledger and differences.parquet, as the audit exports them
    FOLDER/truth.parquet          subject, subject_id, case: every finding there is

Every record is one that a real broker wrote (`audit_templates`), with other ids, times and places; what
happens to an order is a story (`audit_stories`), drawn by the seed. Orders come evenly, 100 per second or so
many that they fill three hours, and their stories overlap in the log as a shop's do. The last push is due
twenty minutes after everything else, so that nothing is in flight. Planted orders are either older than what
the audit calls long unacknowledged (an hour), or young.

It goes in chunks of orders: their records up to the next chunk's first moment are written, the rest waits.
So memory does not grow with the shop. The log and the books are written by two processes, each of which draws
the same stories. No broker opens this store: the snapshot has nothing but the queues.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np
from audit_books import Books
from audit_log import EVENT, RING, Array, Fields, LogWriter, digits_of
from audit_stories import KINDS, PLANTED, PLANTED_PUSHES, SOUND, SOUND_PUSHES, Step, Story
from audit_templates import (
    ID_DIGITS,
    LINES_MAX,
    PLACED_MS,
    QUEUE_COUNT,
    SKU_DIGITS,
    TIMEOUT_MS,
    lift,
)

from commitlog import limits

MS_PER_ORDER_MIN: Final = 10
DAY_MS_MIN: Final = 3 * 3_600_000
OLD_MS_MIN: Final = 45 * 60_000
YOUNG_MS_MAX: Final = 25 * 60_000
CHUNK: Final = 5_000
ORDERS_PER_PUSH: Final = 20
LAST_PUSH_MS: Final = 20 * 60_000
ORDER_BYTES: Final = 3_600
SPARE_BYTES: Final = 1 << 30
_DRAIN_MS: Final = 600_000
_LATENESS_MS: Final = 12
_MS_DIGITS: Final = 13
_KIND_NUMBERS: Final = {name: number for number, name in enumerate(KINDS)}


@dataclass(frozen=True)
class Truth:
    """What was built: how many orders and records, bytes of log, and the findings of each case."""

    folder: Path
    orders: int
    records: int
    log_bytes: int
    cases: dict[str, int]


class Stories:
    """Which order has which story, and which push."""

    def __init__(self, orders: int, plants_per_case: int, seed: int) -> None:
        self._orders, self._seed = orders, seed
        self.ms_per_order = max(MS_PER_ORDER_MIN, DAY_MS_MIN // orders)
        planted = [story for stories in PLANTED.values() for story in stories]
        partners = [story.partner for story in planted if story.partner]
        self.all: list[Story] = [*SOUND.values(), *planted, *partners]
        self._shares = np.array([story.share for story in SOUND.values()])
        self._planted: dict[int, int] = {}
        draw = np.random.default_rng(seed)
        self._plant(plants_per_case, draw)
        self._planted_numbers = np.array(sorted(self._planted), np.int64)
        pushed = np.arange(ORDERS_PER_PUSH // 2, orders - 1, ORDERS_PER_PUSH)
        chosen = draw.permutation(pushed)[:plants_per_case].tolist()
        count = len(PLANTED_PUSHES)
        self._planted_pushes = {order: len(SOUND_PUSHES) + n % count for n, order in enumerate(chosen)}

    def chunks(self) -> Iterator[Chunk]:
        """All orders, some neighbours at a time."""
        for first in range(0, self._orders, CHUNK):
            end = min(first + CHUNK, self._orders)
            yield Chunk(self, first, end, end == self._orders)

    def placed_ms(self, numbers: Any) -> Any:
        """When orders are placed."""
        return PLACED_MS + numbers * self.ms_per_order

    def _plant(self, plants_per_case: int, draw: np.random.Generator) -> None:
        """Gives planted stories to orders of even numbers, and their partners' to the next ones."""
        old_until = self._orders - OLD_MS_MIN // self.ms_per_order
        young_from = self._orders - YOUNG_MS_MAX // self.ms_per_order
        old = iter(draw.permutation(old_until // 2).tolist())
        young_count = (self._orders - young_from) // 2 - 2
        young = iter((young_from // 2 + 1 + draw.permutation(young_count)).tolist())
        for stories in PLANTED.values():
            for number in range(plants_per_case):
                story = stories[number % len(stories)]
                place = next(young if story.is_young else old, None)
                if place is None:
                    sys.exit(f"{self._orders:,} orders leave no room for planted ones. Give more --orders.")
                self._planted[2 * place] = self.all.index(story)
                if story.partner:
                    self._planted[2 * place + 1] = self.all.index(story.partner)

    def of(self, numbers: Array) -> Array:
        """The place in `all` of each order's story; `numbers` is one chunk."""
        draw = np.random.default_rng([self._seed, int(numbers[0])])
        chosen = draw.choice(len(self._shares), len(numbers), p=self._shares / self._shares.sum())
        for order in self._planted_in(numbers):
            chosen[order - int(numbers[0])] = self._planted[order]
        return chosen

    def _planted_in(self, numbers: Array) -> list[int]:
        first, end = np.searchsorted(self._planted_numbers, (numbers[0], numbers[-1] + 1))
        found: list[int] = self._planted_numbers[first:end].tolist()
        return found

    def pushes_of(self, numbers: Array) -> Array:
        """The place of each order's push in `SOUND_PUSHES + PLANTED_PUSHES`; -1 for none."""
        draw = np.random.default_rng([self._seed, int(numbers[0]), 1])
        chosen = draw.choice(len(SOUND_PUSHES), len(numbers), p=[push.share for push in SOUND_PUSHES])
        chosen[numbers % ORDERS_PER_PUSH != ORDERS_PER_PUSH // 2] = -1
        for order in numbers[chosen >= 0].tolist():
            chosen[order - int(numbers[0])] = self._planted_pushes.get(order, chosen[order - int(numbers[0])])
        if numbers[-1] == self._orders - 1:
            chosen[-1] = 0
        return chosen

    def customers(self, numbers: Array) -> Array:
        """Each order's customer: one in three orders' worth of them, and of a planted order its own."""
        count = max(1, self._orders // 3)
        customers = numbers % count
        for order in self._planted_in(numbers):
            has_partner = order - 1 in self._planted and order % 2 == 1
            customers[order - int(numbers[0])] = count + order - has_partner
        return customers


class Chunk:
    """Some neighbouring orders: what they are, and their moments."""

    def __init__(self, stories: Stories, first: int, end: int, is_last: bool) -> None:
        self.all_stories = stories.all
        self.numbers = np.arange(first, end)
        self.stories = stories.of(self.numbers)
        self.pushes = stories.pushes_of(self.numbers)
        self.customers = stories.customers(self.numbers)
        is_grouped = np.array([story.is_grouped for story in stories.all])[self.stories]
        self.variants = self.numbers % LINES_MAX + LINES_MAX * is_grouped
        self.queues = self.customers % QUEUE_COUNT
        self.spread = mixed(self.numbers)
        placed: Array = stories.placed_ms(self.numbers)
        due = placed + TIMEOUT_MS
        push = placed + 15_000 + self.spread % 10_000
        if is_last:
            push[-1] = placed[-1] + LAST_PUSH_MS
        at = placed + 2_000 + self.spread % 20_000
        self.moments = {"placed": placed, "at": at, "due": due, "moved": due + 20_000, "push": push}

    def skus(self, line: int) -> Array:
        """The number of each order's article on a line."""
        numbers: Array = 10_000 + (LINES_MAX * self.numbers + line) % 80_000
        return numbers

    def events(self) -> Array:
        """The records of all orders and pushes, in no order."""
        found = []
        pushes = (*SOUND_PUSHES, *PLANTED_PUSHES)
        for chosen, known in ((self.stories, self.all_stories), (self.pushes, pushes)):
            for number in np.unique(chosen[chosen >= 0]).tolist():
                here = np.flatnonzero(chosen == number)
                found += [self._events_of(step, here) for step in known[number].steps]
        return np.concatenate(found)

    def _events_of(self, step: Step, here: Array) -> Array:
        kind, moment, after_ms = step
        found = np.zeros(len(here), EVENT)
        found["order"], found["kind"] = self.numbers[here], _KIND_NUMBERS[kind]
        found["ms"] = self.moments[moment][here] + after_ms
        if moment in ("due", "moved", "push"):
            found["ms"] += self.spread[here] % _LATENESS_MS
        return found

    def fields(self) -> Fields:
        """The digits that go into the records' fields."""
        moments = {name: digits_of(ms, _MS_DIGITS) for name, ms in self.moments.items() if name != "push"}
        return moments | {
            "order": digits_of(self.numbers, ID_DIGITS),
            "customer": digits_of(self.customers, ID_DIGITS),
            "push_due": digits_of(self.moments["push"], _MS_DIGITS),
            "queue": digits_of(self.queues, 1),
            **{f"sku{line}": digits_of(self.skus(line), SKU_DIGITS) for line in range(LINES_MAX)},
        }


def mixed(numbers: Array) -> Array:
    """A number below 65,536 for each, in no visible order."""
    spread: Array = ((numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(48)).astype(
        np.int64
    )
    return spread


class Ring:
    """What the open orders' records need, by the order's number modulo `RING`."""

    def __init__(self) -> None:
        self.variants = np.zeros(RING, np.int64)
        self.queues = np.zeros(RING, np.int64)
        self.fields: Fields = {}

    def take(self, chunk: Chunk) -> None:
        """Puts the orders of a chunk in the place of long gone ones."""
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
    """Builds everything below `folder`; exits with a sentence where the disk is too small."""
    folder.mkdir(parents=True, exist_ok=True)
    check_room(folder, orders)
    stories = Stories(orders, plants_per_case, seed)
    with ProcessPoolExecutor(1, get_context("spawn")) as other:
        cases = other.submit(write_books, folder, orders, plants_per_case, seed)
        writer = write_log(folder, stories, segment_bytes)
        return Truth(folder, orders, writer.record_count, writer.end_offset, cases.result())


def write_books(folder: Path, orders: int, plants_per_case: int, seed: int) -> dict[str, int]:
    """Writes the databases, the carts and the truth; returns how many findings each case has."""
    books = Books(folder)
    for chunk in Stories(orders, plants_per_case, seed).chunks():
        books.add(chunk)
    books.add_strangers(plants_per_case)
    return books.close()


def write_log(folder: Path, stories: Stories, segment_bytes: int) -> LogWriter:
    """Writes the store."""
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
    """Writes what is stored before a moment; returns what waits, with new acknowledgements."""
    events = events[np.argsort(events["ms"], kind="stable")]
    count = int(np.searchsorted(events["ms"], until_ms))
    acks = writer.write(events[:count], ring.variants, ring.queues, ring.fields)
    acks["ms"] = until_ms + np.arange(len(acks)) % 10_000
    return np.concatenate((events[count:], acks))


def check_room(folder: Path, orders: int) -> None:
    """Refuse to begin what the disk cannot hold."""
    needed, free = orders * ORDER_BYTES + SPARE_BYTES, shutil.disk_usage(folder).free
    if free < needed:
        sys.exit(
            f"{folder} has {free >> 30} GiB free; {orders:,} orders need {(needed >> 30) + 1} GiB. "
            "Give another folder, or fewer --orders."
        )


def main() -> None:
    """Build, and print what was built."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--orders", type=int, default=1_000_000)
    parser.add_argument("--plants", type=int, default=0, help="findings of each case")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    started = time.monotonic()
    truth = build(given.folder, given.orders, given.plants, given.seed)
    figures = {
        "orders": truth.orders,
        "records": truth.records,
        "record_bytes": round(truth.log_bytes / truth.records),
        "log_bytes": truth.log_bytes,
        "findings": truth.cases,
        "wall_s": round(time.monotonic() - started, 1),
        "cpu_s": round(sum(os.times()[:4]), 1),
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
