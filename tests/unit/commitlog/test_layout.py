"""Tests that the file with the durable offset always has an intact line after a power failure."""

from __future__ import annotations

from commitlog import layout
from tests.memory_disk import MemoryDisk

OFFSET, NEWER, NEWEST = 1_111, 22_222, 333_333
LINE_BYTES = 32


def test_one_line_is_sound_wherever_a_power_cut_tears_both_that_are_written_in_turn() -> None:
    """This failure was found by the receive simulation with seed 893.

    Recovery treated a torn tail as damage.
    """
    for first in range(LINE_BYTES + 1):
        for second in range(LINE_BYTES + 1):
            disk = MemoryDisk()
            layout.republish_durable(disk, OFFSET)
            layout.publish_durable(disk, NEWER, 1)
            layout.publish_durable(disk, NEWEST, 2)
            kept = iter([first, second])
            disk.crash(lambda count, kept=kept: next(kept) if count == LINE_BYTES else count)
            found = layout.published(disk)
            assert found.is_sound
            assert found.offset in (OFFSET, NEWER, NEWEST)


def test_a_start_publishes_anew_what_an_earlier_process_may_have_left_in_memory_only() -> None:
    disk = MemoryDisk()
    layout.republish_durable(disk, OFFSET)
    layout.publish_durable(disk, NEWER, 1)
    layout.publish_durable(disk, NEWEST, 2)
    disk.kill(lambda count: count)
    layout.republish_durable(disk, NEWEST)
    disk.crash(lambda count: count // 2)
    assert layout.published(disk) == layout.PublishedOffset(NEWEST, is_sound=True)


def test_an_epoch_lies_behind_the_offset_and_survives_torn_lines_too() -> None:
    for torn_at in range(LINE_BYTES + 1):
        disk = MemoryDisk()
        layout.republish_durable(disk, OFFSET, 3)
        layout.publish_epoch(disk, 4, 1)
        layout.publish_durable(disk, NEWER, 1)
        layout.publish_epoch(disk, 9, 2)
        disk.crash(lambda count, torn_at=torn_at: torn_at if count == LINE_BYTES else count)
        found = layout.published(disk)
        assert found.is_sound
        assert found.epoch in (3, 4, 9)
        assert layout.parse_durable(disk.read(layout.DURABLE, 0, 6 * LINE_BYTES)) == found.offset
        layout.republish_durable(disk, NEWER)
        assert layout.published(disk) == layout.PublishedOffset(NEWER, is_sound=True, epoch=found.epoch)


def test_a_file_without_epochs_is_of_epoch_0_and_gets_none_of_it() -> None:
    disk = MemoryDisk()
    layout.republish_durable(disk, OFFSET, 0)
    assert (layout.published(disk).epoch, disk.size(layout.DURABLE)) == (0, 3 * LINE_BYTES)
    # The epoch is written to the second of three lines, and the first line is a hole.
    layout.publish_epoch(disk, 1, 1)
    assert layout.published(disk) == layout.PublishedOffset(OFFSET, is_sound=True, epoch=1)


def test_what_a_node_has_taken_in_may_be_read_and_is_not_believed_at_a_start() -> None:
    for torn_at in range(LINE_BYTES + 1):
        disk = MemoryDisk()
        layout.republish_durable(disk, OFFSET, 3)
        layout.publish_accepted(disk, NEWER, 1)
        layout.publish_accepted(disk, NEWEST, 2)
        assert layout.parse_readable(disk.read(layout.DURABLE, 0, 9 * LINE_BYTES)) == NEWEST
        disk.crash(lambda count, torn_at=torn_at: torn_at if count == LINE_BYTES else count)
        readable = layout.parse_readable(disk.read(layout.DURABLE, 0, 9 * LINE_BYTES))
        assert readable in (OFFSET, NEWER, NEWEST)
        assert layout.published(disk).offset == OFFSET
        layout.republish_durable(disk, OFFSET)
        assert layout.parse_readable(disk.read(layout.DURABLE, 0, 9 * LINE_BYTES)) == OFFSET
        assert layout.published(disk) == layout.PublishedOffset(OFFSET, is_sound=True, epoch=3)
    assert layout.parse_readable(bytes(9 * LINE_BYTES)) is None
