"""Pure integer functions for the levels of the timing wheel.

Level 0 has 256 slots of 1 ms. Each higher level has 256 slots, each as long as the entire level below:

    level  slot            level spans
    0      1 ms            256 ms
    1      256 ms          65.5 s
    2      65.5 s          4.7 h
    3      4.7 h           49.7 days
    4      49.7 days       34.8 years
    5      34.8 years      8,900 years

A timer is on the lowest level where its due time and the current time fall into the same slot of the next
higher level. Its slot number is the byte of the due time for this level. When the current time enters an
upper-level slot, the slot's timers cascade to lower levels. This happens at most five times per timer. (See
Varghese and Lauck 1987, scheme 7.)
"""

from __future__ import annotations

from typing import Final

LEVEL_COUNT: Final = 6
SLOT_BITS: Final = 8
SLOT_COUNT: Final = 1 << SLOT_BITS
SLOT_MASK: Final = SLOT_COUNT - 1
SPAN_MS: Final = 1 << (SLOT_BITS * LEVEL_COUNT)
"""Upper limit (exclusive) for due times in milliseconds, in the year 10889."""


def level_of(now_ms: int, due_ms: int) -> int:
    """Return the level of a timer: the index of the highest byte in which the times differ."""
    return max(0, (now_ms ^ due_ms).bit_length() - 1) // SLOT_BITS


def slot_of(level: int, due_ms: int) -> int:
    """Return the slot number for `due_ms` on `level`, from 0 to 255."""
    return (due_ms >> (SLOT_BITS * level)) & SLOT_MASK


def slot_start_ms(level: int, slot: int, now_ms: int) -> int:
    """Return the start time of `slot` on `level`, in milliseconds.

    The start is in the same slot of the next higher level as `now_ms`.
    """
    shift = SLOT_BITS * level
    return ((now_ms >> (shift + SLOT_BITS)) << SLOT_BITS | slot) << shift


def first_from(occupied: int, slot: int) -> int:
    """Return the lowest bit set in `occupied` at or above `slot`, or -1 if there is none."""
    ahead = occupied >> slot
    return slot + (ahead & -ahead).bit_length() - 1 if ahead else -1


def all_of(occupied: int) -> list[int]:
    """Return the numbers of all set bits, in ascending order."""
    return [slot for slot in range(SLOT_COUNT) if occupied >> slot & 1]
