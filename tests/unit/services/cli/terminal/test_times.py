"""How the commands tell spans of time."""

from __future__ import annotations

import pytest

from services.cli.messages.send import parse_delay_ms
from services.times.display import away, now_ms, span, wall
from tidewheel.errors import ConfigurationError


@pytest.mark.parametrize(
    ("span_ms", "told"),
    [
        (0, "0ms"),
        (640, "640ms"),
        (1_000, "1s"),
        (59_999, "59s"),
        (60_000, "1m"),
        (1_012_000, "16m52s"),
        (3_599_999, "59m59s"),
        (7_260_000, "2h1m"),
        (7_201_000, "2h"),
        (86_400_000 * 3 + 3_600_000, "3d1h"),
        (86_400_000 * 3_650, "3650d"),
    ],
)
def test_a_span_is_told_by_its_two_largest_units(span_ms: int, told: str) -> None:
    assert span(span_ms) == told


def test_a_moment_is_ahead_or_past_and_has_its_date_unless_it_is_today() -> None:
    assert away(now_ms() + 60_999).startswith("in 1m")
    assert away(now_ms() - 60_000).endswith(" ago")
    assert len(wall(now_ms())) == len("10:58:00")
    assert len(wall(now_ms() + 40 * 86_400_000)) == len("2026-11-22 10:58:00")


@pytest.mark.parametrize("text", ["30", "-5m", "11y"])
def test_a_delay_that_is_none_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_delay_ms(text)
    assert str(refused.value).count("cannot be used") == 1
    assert ("Without --in" in str(refused.value)) == text.startswith("-")
