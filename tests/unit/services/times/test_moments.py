"""Moments as people write them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from services.times.moments import due_ms, moment_ms, past_ms

NOW_MS = 1_763_700_000_000
"""2025-11-21T04:40:00Z"""


@pytest.fixture
def singapore() -> Iterator[None]:
    """This machine's zone is 8 hours ahead of UTC."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Asia/Singapore"
    time.tzset()
    yield
    os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
    time.tzset()


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("0", 0),
        ("1763700000000", NOW_MS),
        ("30m", NOW_MS + 1_800_000),
        ("in 30m", NOW_MS + 1_800_000),
        ("+30m", NOW_MS + 1_800_000),
        ("-30m", NOW_MS - 1_800_000),
        ("1h30m ago", NOW_MS - 5_400_000),
        ("99999d ago", 0),
        ("20000d ago", 0),
        ("1971-01-01T00:00Z", 0),
        ("1h30m", NOW_MS + 5_400_000),
        ("2025-11-21T04:40:00Z", NOW_MS),
        ("2025-11-21T12:40+08:00", NOW_MS),
        (" 2025-11-21 04:40:00.123456+00:00 ", NOW_MS + 123),
    ],
)
def test_a_moment_is_a_number_a_span_from_now_or_wall_time_with_its_zone(text: str, expected_ms: int) -> None:
    assert moment_ms(text, NOW_MS) == expected_ms


@pytest.mark.usefixtures("singapore")
def test_only_a_person_may_leave_the_zone_out() -> None:
    assert moment_ms("2025-11-21T12:40", NOW_MS, is_local=True) == NOW_MS
    with pytest.raises(ValueError, match="zone is missing"):
        moment_ms("2025-11-21T12:40", NOW_MS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "write it as"),
        ("-1", "write it as"),
        ("-30", "write it as"),
        ("- 30m", "write it as"),
        ("in 30m ago", "write it as"),
        ("in30m ", "write it as"),
        ("٣m", "write it as"),
        ("tomorrow", "write it as"),
        ("1.5", "write it as"),
        ("²", "write it as"),
        ("٣", "write it as"),
        ("9" * 19, "no clock goes that far"),
        ("9" * 5000, "no clock goes that far"),
        ("1969-12-31T23:59:59Z", "before 1970"),
        ("0001-01-01T00:00+14:00", "no clock goes that far"),
        ("2025-13-01T00:00Z", "the day 2025-13-01 does not exist"),
        ("2026-02-30T10:00", "the day 2026-02-30 does not exist"),
        ("2026-02-30", "the day 2026-02-30 does not exist"),
        ("2026-02-20T25:00", "write it as"),
        ("2026-02-20", "zone is missing: write 2026-02-20T00:00Z for UTC, or 2026-02-20T00:00.08:00$"),
        ("2026-02-20T10:00", "zone is missing: write 2026-02-20T10:00Z for UTC"),
    ],
)
def test_what_is_no_moment_says_how_to_write_one(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        moment_ms(text, NOW_MS)


@pytest.mark.parametrize("digits", ["1", "30", str(NOW_MS // 1000), "99999999999"])
def test_a_number_without_its_unit_is_no_moment_in_1970(digits: str) -> None:
    for parse in (moment_ms, past_ms, due_ms):
        with pytest.raises(ValueError, match="perhaps seconds were given where milliseconds are meant"):
            parse(digits, NOW_MS)


def test_zero_is_the_beginning_but_nothing_is_due_then() -> None:
    assert moment_ms("0", NOW_MS) == past_ms("0", NOW_MS) == 0
    with pytest.raises(ValueError, match="that is long ago"):
        due_ms("0", NOW_MS)


def test_seconds_are_not_taken_for_the_milliseconds_something_is_due_at() -> None:
    with pytest.raises(ValueError, match="perhaps seconds"):
        due_ms(str(NOW_MS // 1000), NOW_MS)
    assert due_ms(str(NOW_MS), NOW_MS) == NOW_MS
    assert due_ms("1s", NOW_MS) == NOW_MS + 1000


@pytest.mark.usefixtures("singapore")
def test_a_moment_that_has_been_may_be_a_span_ago_or_a_time_of_today() -> None:
    assert past_ms("-30m", NOW_MS) == past_ms("30m ago", NOW_MS) == NOW_MS - 1_800_000
    assert past_ms(str(NOW_MS), NOW_MS) == NOW_MS
    assert past_ms("99999d ago", NOW_MS) == 0
    assert past_ms("12:40", NOW_MS, is_local=True) == past_ms("12:40:00", NOW_MS, is_local=True) == NOW_MS
    with pytest.raises(ValueError, match="30m ago"):
        past_ms("yesterday", NOW_MS)
    with pytest.raises(ValueError, match="write it as"):
        past_ms("12:40", NOW_MS)


@pytest.mark.parametrize("text", ["30m", "in 30m", "+30m"])
def test_a_span_that_is_ahead_everywhere_else_is_not_read_as_past_where_the_past_is_meant(text: str) -> None:
    with pytest.raises(
        ValueError, match="that is in 30m, and the past is meant here; write '30m ago' or -30m"
    ):
        past_ms(text, NOW_MS)
