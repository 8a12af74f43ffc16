"""Spans and moments: what is read, what is refused, and that nothing is early."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.client.spans import (
    EPOCH,
    MILLISECOND,
    MOMENT_MS_MAX,
    moment_ms,
    moment_of,
    span_ms,
)
from tidewheel.durations import UNITS_MS, span_text
from tidewheel.errors import ClientMistake

PARTS = st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from(sorted(UNITS_MS))), min_size=1, max_size=5)
ZONES = st.timedeltas(timedelta(hours=-14), timedelta(hours=14)).map(timezone)


@given(PARTS)
def test_a_written_span_is_the_sum_of_its_parts(parts: list[tuple[int, str]]) -> None:
    text = "".join(f"{count}{unit}" for count, unit in parts)
    assert span_ms(text, "delay") == sum(count * UNITS_MS[unit] for count, unit in parts)


@given(st.integers(0, 10**15))
def test_a_span_is_written_as_it_is_read(count_ms: int) -> None:
    assert span_ms(span_text(count_ms), "delay") == count_ms
    assert [span_text(one) for one in (0, 604_800_000, 43_200_000, 1_500)] == ["0ms", "7d", "12h", "1s500ms"]


@given(st.timedeltas(timedelta(0), timedelta(days=10_000)))
def test_a_timedelta_is_rounded_up_to_the_millisecond(span: timedelta) -> None:
    count_ms = span_ms(span, "delay")
    assert span <= count_ms * MILLISECOND < span + MILLISECOND


@pytest.mark.parametrize(
    ("span", "said"),
    [
        ("30", "'30', without a unit"),
        ("-30", "'-30', without a unit"),
        (30, "30, without a unit"),
        (1.5, "1.5, without a unit"),
        (True, "True, without a unit"),
        ("", "'': write it as"),
        ("-3s", "'-3s': write it as"),
        ("1.5h", "'1.5h': write it as"),
        ("30 s", "'30 s': write it as"),
        ("٣s", "'٣s': write it as"),
        (timedelta(seconds=-1), "a span of time is 0s to"),
        (timedelta.max, "a span of time is 0s to"),
        ("999999999999999d", "a span of time is 0s to"),
        (None, "a NoneType"),
        (b"3s", "a bytes"),
        (datetime(2026, 1, 1, tzinfo=UTC), "a datetime: it is a span"),
    ],
)
def test_what_is_no_span_is_refused_with_the_ways_to_write_one(span: Any, said: str) -> None:
    with pytest.raises(ClientMistake) as refused:
        span_ms(span, "delay")
    assert refused.value.detail.startswith("delay is ")
    assert said in refused.value.detail


@given(st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30), timezones=ZONES))
def test_a_moment_is_not_early_and_comes_back(moment: datetime) -> None:
    count_ms = moment_ms(moment, "at")
    assert moment <= moment_of(count_ms) < moment + MILLISECOND


@pytest.mark.parametrize("moment", [datetime(2026, 1, 1), datetime(1969, 1, 1, tzinfo=UTC), 30, "2026-01-01"])
def test_a_moment_without_a_zone_or_before_1970_is_refused(moment: Any) -> None:
    with pytest.raises(ClientMistake, match=r"^The request cannot be accepted. at is "):
        moment_ms(moment, "at")


@given(st.integers(0, 10**30))
def test_each_time_of_the_broker_is_a_datetime(count_ms: int) -> None:
    assert moment_of(count_ms) == EPOCH + timedelta(milliseconds=min(count_ms, MOMENT_MS_MAX))
