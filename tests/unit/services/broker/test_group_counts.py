"""How many dead letters are open, also when the first of them are gone."""

from __future__ import annotations

import pytest

from consumequeue.offsets import Progress
from services.broker.group_counts import open_count


@pytest.mark.parametrize(
    ("min_offset", "expected"),
    [(0, 6), (2, 6), (3, 5), (4, 5), (5, 5), (6, 4), (8, 2), (9, 2), (10, 1), (11, 0)],
)
def test_what_is_gone_is_not_open_and_what_is_done_is_counted_once(min_offset: int, expected: int) -> None:
    progress = Progress()
    for offset in (0, 1, 3, 4, 8):
        progress.finish(offset)
    assert open_count(progress, min_offset, 11) == expected
