"""Tests the mapping of log offsets to segments."""

from __future__ import annotations

import pytest

from commitlog.errors import StoreDamaged
from commitlog.log.segments import Segments


def test_an_offset_lies_in_the_segment_that_begins_before_it() -> None:
    segments = Segments([4096, 8192], 4096)
    assert segments.place(4096) == ("commitlog/00000000000000004096", 0)
    assert segments.place(8200) == ("commitlog/00000000000000008192", 8)


def test_what_lies_before_the_log_is_in_no_file() -> None:
    with pytest.raises(StoreDamaged, match="4095 was deleted: the log begins at 4096"):
        Segments([4096, 8192], 4096).place(4095)
