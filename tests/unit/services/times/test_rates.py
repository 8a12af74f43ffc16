"""Rates: every form that people write, and those that are refused."""

from __future__ import annotations

import pytest

from services.times.rates import per_second, whole_per_second


@pytest.mark.parametrize(
    ("text", "rate"),
    [("50", 50), ("50/s", 50), ("600/m", 10), ("90/h", 0.025), ("0.5", 0.5), ("0", 0), (" 7/s ", 7)],
)
def test_a_rate_has_a_unit_or_is_per_second(text: str, rate: float) -> None:
    assert per_second(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "-1", "1/d", "1e9", "50 per second", "٥"])
def test_what_is_no_rate_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match="50/s"):
        per_second(text)


def test_a_release_takes_whole_numbers() -> None:
    assert [whole_per_second(one) for one in ("0", "1", "60/m", "7200/h")] == [0, 1, 1, 2]
    for text in ("30/m", "90/m", "1.5", "0.5/s", "100/h", "fast"):
        with pytest.raises(ValueError, match="a whole number of at least 1 per second; 0") as refused:
            whole_per_second(text)
        assert "/h" not in str(refused.value)
