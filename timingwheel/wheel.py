"""A hierarchical timing wheel.

Setting, moving, or canceling a timer takes O(1) time. Timers expire in due order.

A timer is an integer whose meaning is determined by the caller. The wheel stores the due time of each pending
timer. Its slots hold (due time, timer) pairs (see `timingwheel.levels`). A canceled or moved timer leaves its
old pair behind. A pair is valid only if it matches the current due time of its timer, and a stale pair is
dropped at its due time. When half of the pairs are stale, all slots are swept, one after another. Otherwise,
stale pairs would accumulate when leases with long timeouts end within milliseconds. During a sweep, each call
that creates a stale pair checks `_SWEPT_EACH` pairs, so that no single call performs the entire sweep.
Sweeping 200,000 pairs takes 40 to 130 ms in total. Rules:

* `advance(now_ms)` returns only timers due by `now_ms`.
* Timers are returned in due order. Timers with the same due time are returned in the order in which they were
  first set to that time.
* The time of a wheel never moves backward. A lower `now_ms` has no effect.

The start of the next occupied slot is cached, because searching for it in each call would take as long as
setting a timer.

Cost: one dictionary entry and up to four integers per timer. An empty slot uses no memory. The wheel jumps
from one occupied slot to the next, so idle periods of any length cost the same. A cascade moves all timers of
a slot at once. It takes at least 50 us, but with thousands of timers, it takes less than 1 us per timer.

Limitation: a slot is always emptied as a whole. If the slot holds a very large number of timers, the
`advance` call that enters it takes a long time, regardless of `count_max`.
"""

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Final

import numpy as np

from timingwheel import levels

Pairs = np.ndarray[Any, np.dtype[np.int64]]
"""Array of shape (n, 2) with due times in milliseconds and timers."""

_STALE_MIN: Final = 16_384
_SWEPT_EACH: Final = 8
_SWEPT_AT_ONCE: Final = 512
_NEVER: Final = levels.SPAN_MS
_EMPTY: Final = partial(array, "q")
"""Creates an empty slot: an array of alternating due times and timers."""


class Wheel:
    """A timing wheel that starts at `now_ms`."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self._due_ms: dict[int, int] = {}
        self._slots: Final = [defaultdict[int, "array[int]"](_EMPTY) for _ in range(levels.LEVEL_COUNT)]
        self._occupied: Final = [0] * levels.LEVEL_COUNT
        self._expired: deque[int] = deque()
        self._pair_count = self._stale_count = 0
        self._unswept: list[tuple[int, int]] = []
        """Slots (level, number) left to sweep. The last one is next."""
        self._sweeping: array[int] | None = None
        """Pairs of the slot being swept. `_kept` holds the valid ones before `_swept_to`."""
        self._kept, self._swept_to, self._owed_count = _EMPTY(), 0, 0
        self._next_ms: int | None = _NEVER
        """Start of the next occupied slot, `_NEVER` if all are empty, or None if unknown."""

    def __len__(self) -> int:
        return len(self._due_ms)

    def __contains__(self, timer: int) -> bool:
        return timer in self._due_ms

    def due_ms(self, timer: int) -> int:
        """Return the due time of a timer in milliseconds. Raise KeyError if the timer is not pending."""
        return self._due_ms[timer]

    def schedule(self, timer: int, due_ms: int) -> None:
        """Set a timer, or move it to another due time.

        If the timer is already due, the next `advance` returns it.
        """
        due_ms = max(due_ms, self.now_ms)
        assert due_ms < levels.SPAN_MS, f"timer {timer} is due beyond the wheel"
        if self._due_ms.get(timer) == due_ms:
            return
        was_pending = timer in self._due_ms
        self._due_ms[timer] = due_ms
        self._link((timer,), due_ms)
        if was_pending:
            self._count_stale_pairs(1)

    def schedule_many(self, timers: Sequence[int], due_ms: int) -> None:
        """Set several timers to the same due time. The timers must be distinct and must not be pending."""
        due_ms = max(due_ms, self.now_ms)
        assert due_ms < levels.SPAN_MS, f"{len(timers)} timers are due beyond the wheel"
        count = len(self._due_ms) + len(timers)
        self._due_ms.update(dict.fromkeys(timers, due_ms))
        assert len(self._due_ms) == count, "a timer is set that is pending, or twice"
        self._link(timers, due_ms)

    def cancel(self, timer: int) -> bool:
        """Cancel a timer. Return whether the timer was pending."""
        return self.cancel_many((timer,)) > 0

    def cancel_many(self, timers: Iterable[int]) -> int:
        """Cancel several timers. Return the number of timers that were pending."""
        forget, count = self._due_ms.pop, 0
        for timer in timers:
            count += forget(timer, None) is not None
        self._count_stale_pairs(count)
        return count

    def advance(self, now_ms: int, count_max: int) -> list[tuple[int, int]]:
        """Advance to `now_ms`. Remove and return up to `count_max` due timers in due order.

        Return a list of (due time, timer) pairs. If the list contains `count_max` entries, call `advance`
        again, because more timers may be due.
        """
        due: list[tuple[int, int]] = []
        while len(due) < count_max and (self._expired or self._step(now_ms)):
            self._take_expired(due, count_max)
        return due

    def rebased(self, now_ms: int) -> Wheel:
        """Return a new wheel at `now_ms` that contains the same timers.

        Use this after the clock has been set back.
        """
        wheel = Wheel(now_ms)
        for timer, due_ms in self._due_ms.items():
            wheel.schedule(timer, due_ms)
        return wheel

    def next_due_ms(self) -> int | None:
        """Return when `advance` must be called next, or None if no call is needed.

        This is never later than the next due time. It may be the start of a slot whose timers only cascade or
        have all been canceled.
        """
        if self._expired:
            return self.now_ms
        if self._next_ms is None:
            upcoming = self._next_slot()
            self._next_ms = _NEVER if upcoming is None else upcoming[2]
        return None if self._next_ms == _NEVER else self._next_ms

    def _link(self, timers: Sequence[int], due_ms: int) -> None:
        level = levels.level_of(self.now_ms, due_ms)
        slot = levels.slot_of(level, due_ms)
        pairs = self._slots[level][slot]
        linked = [due_ms] * (2 * len(timers))
        linked[1::2] = timers
        pairs.fromlist(linked)
        self._occupied[level] |= 1 << slot
        self._pair_count += len(timers)
        if self._next_ms is not None:
            start_ms = levels.slot_start_ms(level, slot, self.now_ms)
            if start_ms < self._next_ms:
                self._next_ms = start_ms

    def _count_stale_pairs(self, count: int) -> None:
        """Count new stale pairs. Start or continue a sweep if necessary."""
        self._stale_count += count
        if self._unswept:
            self._owed_count += _SWEPT_EACH * count
            if self._owed_count >= _SWEPT_AT_ONCE:
                self._sweep(self._owed_count)
                self._owed_count = 0
        elif self._stale_count > _STALE_MIN + self._pair_count // 2:
            # The count is reset although the stale pairs still exist, because the sweep will drop these
            # pairs. A pair that becomes stale after its slot has been swept is dropped by the next sweep.
            self._stale_count = 0
            self._unswept = [
                (level, slot)
                for level in range(levels.LEVEL_COUNT)
                for slot in levels.all_of(self._occupied[level])
            ]

    def _sweep(self, count: int) -> None:
        """Check the next `count` pairs and drop the stale ones.

        The order of the valid pairs does not change.
        """
        while count > 0 and self._unswept:
            level, slot = self._unswept[-1]
            pairs = self._slots[level].get(slot)
            if pairs is not self._sweeping:  # The slot is new, or it was emptied and then reused.
                self._sweeping, self._kept, self._swept_to = pairs, _EMPTY(), 0
            if pairs is None:
                self._unswept.pop()
                continue
            end = min(self._swept_to + 2 * count, len(pairs))
            self._keep_counting(pairs[self._swept_to : end])
            count -= (end - self._swept_to) // 2
            self._swept_to = end
            if end == len(pairs):
                self._swept(level, slot, pairs)

    def _keep_counting(self, pairs: array[int]) -> None:
        """Keep the pairs in the current slot that match the due times of their timers."""
        rows = np.frombuffer(pairs, np.int64).reshape(-1, 2)
        due_ms = map(self._due_ms.get, pairs[1::2], repeat(-1))
        counting: Pairs = rows[rows[:, 0] == np.fromiter(due_ms, np.int64, len(rows))]
        self._kept.frombytes(counting.tobytes())

    def _swept(self, level: int, slot: int, pairs: array[int]) -> None:
        """Replace the pairs in a swept slot with its valid pairs."""
        assert self._swept_to == len(pairs), "pairs would be dropped unseen"
        self._unswept.pop()
        self._pair_count -= (len(pairs) - len(self._kept)) // 2
        self._check_counts()
        if self._kept:
            self._slots[level][slot] = self._kept
        else:
            del self._slots[level][slot]
            self._occupied[level] &= ~(1 << slot)
            self._next_ms = None
        self._sweeping = None

    def _step(self, now_ms: int) -> bool:
        """Empty the next occupied slot that begins by `now_ms`. Return False if there is no such slot."""
        upcoming = self._next_slot()
        if upcoming is None or upcoming[2] > now_ms:
            self.now_ms = max(self.now_ms, now_ms)
            return False
        level, slot, start_ms = upcoming
        self.now_ms = max(self.now_ms, start_ms)
        self._empty(level, slot)
        self._check_counts()
        return True

    def _check_counts(self) -> None:
        """Assert that there are at least as many pairs as pending timers."""
        pairs = self._pair_count + len(self._expired)
        assert pairs >= len(self._due_ms), f"{len(self._due_ms)} timers pend, and {pairs} pairs are left"

    def _next_slot(self) -> tuple[int, int, int] | None:
        """Return (level, slot, start in milliseconds) for the first occupied slot, or None.

        For slots with the same start, the highest level comes first, because its timers were set before those
        in lower slots and cascade into them.
        """
        found: tuple[int, int, int] | None = None
        for level in range(levels.LEVEL_COUNT):
            slot = levels.first_from(self._occupied[level], levels.slot_of(level, self.now_ms))
            if slot >= 0:
                start_ms = levels.slot_start_ms(level, slot, self.now_ms)
                if found is None or start_ms <= found[2]:
                    found = (level, slot, start_ms)
        return found

    def _empty(self, level: int, slot: int) -> None:
        """Move a slot's pairs to lower levels or, on level 0, to the expired timers."""
        self._next_ms = None
        pairs = self._slots[level].pop(slot)
        self._occupied[level] &= ~(1 << slot)
        self._pair_count -= len(pairs) // 2
        if level > 0:
            self._cascade(level, np.frombuffer(pairs, np.int64).reshape(-1, 2))
            return
        for due_ms, timer in zip(pairs[::2], pairs[1::2], strict=True):
            if self._due_ms.get(timer) == due_ms:
                self._expired.append(timer)

    def _cascade(self, level: int, rows: Pairs) -> None:
        """Move an upper-level slot's pairs to lower levels when the slot starts.

        All pairs for the same lower slot move at once, because a level-2 slot may hold all timers due within
        a minute.
        """
        # As in `levels.level_of`, the level is the index of the highest byte in which the due time differs
        # from the current time. All bytes with an index of `level` or higher are equal, so each pair is moved
        # to exactly one lower level.
        differing = rows[:, 0] ^ self.now_ms
        for lower in range(level):
            bits = levels.SLOT_BITS * lower
            is_here = differing >> (bits + levels.SLOT_BITS) == 0
            if lower > 0:
                is_here &= differing >> bits != 0
            here = rows[is_here]
            slots = (here[:, 0] >> bits & levels.SLOT_MASK).astype(np.uint8)
            ordered = here[np.argsort(slots, kind="stable")].tobytes()  # NumPy sorts bytes in linear time.
            counts, at = np.bincount(slots, minlength=levels.SLOT_COUNT).tolist(), 0
            for slot in np.flatnonzero(counts).tolist():
                end = at + rows.strides[0] * counts[slot]
                self._slots[lower][slot].frombytes(ordered[at:end])
                self._occupied[lower] |= 1 << slot
                at = end
        self._pair_count += len(rows)

    def _take_expired(self, due: list[tuple[int, int]], count_max: int) -> None:
        """Move expired timers that are still pending to `due`, up to `count_max` in total.

        An expired timer may have been moved or canceled in the meantime.
        """
        while self._expired and len(due) < count_max:
            timer = self._expired.popleft()
            due_ms = self._due_ms.get(timer)
            if due_ms is not None and due_ms <= self.now_ms:
                del self._due_ms[timer]
                due.append((due_ms, timer))
