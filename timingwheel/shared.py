"""Shared slots: small upper-level slots.

A shared slot is not split, and it overlaps slots on lower levels.

If the file of a slot fits into a single read-ahead, the boundary advances past the slot. New timers are then
added to slots on lower levels. The timers in the file are read in due order and merged with those in the
other slots. In a store with few timers, each timer is thus written only once, and boundaries advance without
a checkpoint.

Each timer is in exactly one slot. The `last_offset` of a shared slot is the offset of the last timer set
before its file was last written. A timer is in the shared slot that covers its due time and has the lowest
`last_offset` at or above the timer's offset. If no such slot exists, the current boundaries determine the
slot. Cost: a few entries in memory.
"""

from __future__ import annotations

from typing import Any

from timingwheel.boundaries import Slot, slot_named


class Shared:
    """The shared slots, each with its `last_offset`, a log offset."""

    def __init__(self, slots: dict[Slot, int] | None = None) -> None:
        self.slots: dict[Slot, int] = slots or {}

    def home(self, due_ms: int, timer_offset: int) -> Slot | None:
        """Return the shared slot that contains a timer, or None."""
        homes = [
            (last_offset, slot)
            for slot, last_offset in self.slots.items()
            if slot.start_ms <= due_ms < slot.end_ms and timer_offset <= last_offset
        ]
        return min(homes)[1] if homes else None

    def drop_passed(self, until_ms: int) -> None:
        """Remove the slots that end by `until_ms`."""
        self.slots = {slot: last for slot, last in self.slots.items() if slot.end_ms > until_ms}

    def freeze(self) -> Any:
        """Return the state for a snapshot."""
        return {slot.name: last_offset for slot, last_offset in self.slots.items()}

    @classmethod
    def thawed(cls, frozen: Any) -> Shared:
        """Restore the shared slots from a snapshot."""
        return cls({slot_named(name): last_offset for name, last_offset in frozen.items()})
