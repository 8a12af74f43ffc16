"""Tests that the file of the virtual clock always has an intact line after a power failure."""

from __future__ import annotations

import pytest

from commitlog import layout
from tests.memory_disk import MemoryDisk


@pytest.mark.parametrize("turns", [(0,), (1,), (0, 1), (1, 0), (0, 1, 0)])
def test_a_write_of_the_clock_that_is_torn_at_any_byte_leaves_the_time_before(turns: tuple[int, ...]) -> None:
    """From the first write on, the time never decreases, and the store can be opened."""
    disk = MemoryDisk()
    assert layout.read_clock(disk) is None
    layout.begin_clock(disk)
    assert layout.read_clock(disk) == 0
    for number, turn in enumerate(turns[:-1], 1):
        layout.keep_clock(disk, number * 1_000, turn)
    before, after = (len(turns) - 1) * 1_000, len(turns) * 1_000
    size = disk.size(layout.CLOCK)
    whole = disk.read(layout.CLOCK, 0, size)
    layout.keep_clock(disk, after, turns[-1])
    assert layout.read_clock(disk) == after
    written = disk.read(layout.CLOCK, 0, disk.size(layout.CLOCK))
    changed = [at for at in range(len(written)) if whole[at : at + 1] != written[at : at + 1]]
    for cut in range(changed[0], changed[-1] + 1):
        disk.truncate(layout.CLOCK, 0)
        disk.write(layout.CLOCK, 0, written[:cut] + whole[cut:])
        assert layout.read_clock(disk) == before, f"torn at byte {cut}"
