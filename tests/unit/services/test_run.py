"""What the composition root keeps beside the store."""

from __future__ import annotations

from pathlib import Path

from services.run import count_boot


def test_starts_are_counted_even_when_a_power_cut_emptied_the_counter(tmp_path: Path) -> None:
    assert [count_boot(tmp_path) for _ in range(3)] == [0, 1, 2]
    (tmp_path / "boots").write_text("")
    assert [count_boot(tmp_path) for _ in range(2)] == [1, 2]
