"""Who has room to lead, and who has not."""

from __future__ import annotations

import pytest

from services.cluster.election.health import has_room
from tests.memory_disk import MemoryDisk


@pytest.mark.parametrize(
    ("free_bytes", "total_bytes", "is_enough"),
    [(1 << 24, 1 << 26, True), ((1 << 24) - 1, 1 << 26, False), (1 << 24, 1 << 40, False)],
)
def test_room_is_two_segments_and_a_share_of_the_disk(
    free_bytes: int, total_bytes: int, is_enough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = MemoryDisk()
    monkeypatch.setattr(disk, "usage", lambda: (free_bytes, total_bytes))
    assert has_room(disk, 1 << 23) is is_enough
