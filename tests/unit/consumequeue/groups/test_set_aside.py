"""Tests the offsets that are set aside for filters against a dictionary of masks."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from consumequeue.groups.set_aside import SetAsideOffsets

BITS = (1, 2, 4)


class AgainstMasks(RuleBasedStateMachine):
    """Each operation is performed on both structures.

    Afterwards, the first offset must be the same for every filter.
    """

    def __init__(self) -> None:
        super().__init__()
        self.aside, self.masks = SetAsideOffsets(), {}

    @rule(offset=st.integers(0, 20), mask=st.integers(1, 7))
    def put(self, offset: int, mask: int) -> None:
        if offset not in self.masks:
            self.aside.put(offset, mask)
            self.masks[offset] = mask

    @rule(offset=st.integers(0, 20))
    def take(self, offset: int) -> None:
        assert self.aside.take(offset) == (self.masks.pop(offset, None) is not None)

    @rule()
    def take_all(self) -> None:
        assert self.aside.take_all() == sorted(self.masks)
        self.masks.clear()

    @rule(below=st.integers(0, 20))
    def take_below(self, below: int) -> None:
        self.aside.take_below(below)
        self.masks = {offset: mask for offset, mask in self.masks.items() if offset >= below}

    @invariant()
    def agrees(self) -> None:
        assert len(self.aside) == len(self.masks)
        for bit in BITS:
            mine = [offset for offset, mask in self.masks.items() if mask & bit]
            assert self.aside.first(bit) == min(mine, default=None)
            assert self.aside.counts()[bit] == len(mine)
        assert len(self.aside._heaps) <= len(set(self.masks.values()))


TestAgainstMasks = AgainstMasks.TestCase
