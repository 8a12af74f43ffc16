"""Upper slots that are not split, because they are small: one file stays, beside those of the slots below it.

When the boundary of its level comes to a slot, and the slot's file has no more rows than are read ahead at
once, the boundary simply moves on. What is set later goes to the slots below; what is in the file is read
from it, in due order, and merged by due time. So a far timer among few is written once, and no checkpoint is
needed for the sake of its level.

A timer lives in exactly one slot: in the shared slot that was shared first of those whose `last_offset`, the
last timer set before the checkpoint that last wrote its file, is not below its own; else in the slot of the
levels as they are now.
Cost: a few entries.
"""

from __future__ import annotations

from typing import Any

from timingwheel.boundaries import Slot, slot_named


class Shared:
    """The shared slots, each with its `last_offset`, a log offset."""

    def __init__(self, slots: dict[Slot, int] | None = None) -> None:
        self.slots: dict[Slot, int] = slots or {}

    def home(self, due_ms: int, timer_offset: int) -> Slot | None:
        """Return the shared slot in which a timer lives; None if the timer lives in no shared slot."""
        homes = [
            (last_offset, slot)
            for slot, last_offset in self.slots.items()
            if slot.start_ms <= due_ms < slot.end_ms and timer_offset <= last_offset
        ]
        return min(homes)[1] if homes else None

    def drop_passed(self, until_ms: int) -> None:
        """Forget the slots that lie wholly before a time."""
        self.slots = {slot: last for slot, last in self.slots.items() if slot.end_ms > until_ms}

    def freeze(self) -> Any:
        """Return what a snapshot keeps."""
        return {slot.name: last_offset for slot, last_offset in self.slots.items()}

    @classmethod
    def thawed(cls, frozen: Any) -> Shared:
        """Return the shared slots of a snapshot."""
        return cls({slot_named(name): last_offset for name, last_offset in frozen.items()})
