"""The orders of a generated shop in chunks of consecutive numbers: the story and the times of each.

The log and the books are written by two processes with the same random draws: a draw depends only on the
seed, the shop's size and the number of a chunk's first order.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from parts.columns import QUEUE_COUNT, Array, digits_of
from parts.shop.log import EVENT, Fields
from parts.shop.stories import KINDS, PLANTED, PLANTED_PUSHES, SOUND, SOUND_PUSHES, Step, Story
from parts.shop.templates import ID_DIGITS, LINES_MAX, PLACED_MS, SKU_DIGITS, TIMEOUT_MS

MS_PER_ORDER_MIN: Final = 10
DAY_MS_MIN: Final = 3 * 3_600_000
OLD_MS_MIN: Final = 45 * 60_000
YOUNG_MS_MAX: Final = 25 * 60_000
CHUNK: Final = 5_000
ORDERS_PER_PUSH: Final = 20
LAST_PUSH_MS: Final = 20 * 60_000
_LATENESS_MS: Final = 12
_MS_DIGITS: Final = 13
_KIND_NUMBERS: Final = {name: number for number, name in enumerate(KINDS)}


class Stories:
    """Assignment of stories and pushes to orders."""

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
        """Yield all orders in chunks of up to `CHUNK` consecutive numbers."""
        for first in range(0, self._orders, CHUNK):
            end = min(first + CHUNK, self._orders)
            yield Chunk(self, first, end, end == self._orders)

    def placed_ms(self, numbers: Any) -> Any:
        """Return the time at which each order is placed, in milliseconds."""
        return PLACED_MS + numbers * self.ms_per_order

    def _plant(self, plants_per_case: int, draw: np.random.Generator) -> None:
        """Assign planted stories to orders with even numbers, and their partners' to the next orders."""
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
        """Return the index in `all` of each order's story; `numbers` is one chunk."""
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
        """Return the index of each order's push in `SOUND_PUSHES + PLANTED_PUSHES`; -1 for none."""
        draw = np.random.default_rng([self._seed, int(numbers[0]), 1])
        chosen = draw.choice(len(SOUND_PUSHES), len(numbers), p=[push.share for push in SOUND_PUSHES])
        chosen[numbers % ORDERS_PER_PUSH != ORDERS_PER_PUSH // 2] = -1
        for order in numbers[chosen >= 0].tolist():
            chosen[order - int(numbers[0])] = self._planted_pushes.get(order, chosen[order - int(numbers[0])])
        if numbers[-1] == self._orders - 1:
            chosen[-1] = 0
        return chosen

    def customers(self, numbers: Array) -> Array:
        """Return each order's customer: one per three orders.

        A planted order has a separate customer, which it shares only with its partner.
        """
        count = max(1, self._orders // 3)
        customers = numbers % count
        for order in self._planted_in(numbers):
            has_partner = order - 1 in self._planted and order % 2 == 1
            customers[order - int(numbers[0])] = count + order - has_partner
        return customers


class Chunk:
    """Orders of consecutive numbers: their stories, pushes, customers and times."""

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
        """Return the number of each order's article in an order line."""
        numbers: Array = 10_000 + (LINES_MAX * self.numbers + line) % 80_000
        return numbers

    def events(self) -> Array:
        """Return the records of all orders and pushes as rows of `EVENT`, unsorted."""
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
        """Return the digits of the records' fields."""
        moments = {name: digits_of(ms, _MS_DIGITS) for name, ms in self.moments.items() if name != "push"}
        return moments | {
            "order": digits_of(self.numbers, ID_DIGITS),
            "customer": digits_of(self.customers, ID_DIGITS),
            "push_due": digits_of(self.moments["push"], _MS_DIGITS),
            "queue": digits_of(self.queues, 1),
            **{f"sku{line}": digits_of(self.skus(line), SKU_DIGITS) for line in range(LINES_MAX)},
        }


def mixed(numbers: Array) -> Array:
    """Return a hash below 65,536 of each number."""
    spread: Array = ((numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(48)).astype(
        np.int64
    )
    return spread
