"""Cron expressions mean what cron's users mean by them."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from services.broker.schedules.recurrence import Recurrence
from services.broker.spine.errors import IllegalSchedule

LONDON = "Europe/London"


def ms(text: str, zone: str = LONDON) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def following(cron: str, start: str, count: int, zone: str = LONDON) -> list[str]:
    """The next occurrences as local times."""
    recurrence, moments, now_ms = Recurrence(cron, zone), [], ms(start, zone)
    for _ in range(count):
        now_ms = recurrence.next_after(now_ms) or 0
        moments.append(datetime.fromtimestamp(now_ms / 1000, ZoneInfo(zone)).strftime("%a %d %b %H:%M:%S"))
    return moments


def test_five_fields_are_minutes_and_up() -> None:
    assert following("30 9 * * *", "2026-11-21 09:29:59", 2) == ["Sat 21 Nov 09:30:00", "Sun 22 Nov 09:30:00"]


def test_six_fields_start_with_the_seconds() -> None:
    assert following("*/10 * * * * *", "2026-11-21 09:29:55", 2) == [
        "Sat 21 Nov 09:30:00",
        "Sat 21 Nov 09:30:10",
    ]


def test_an_occurrence_is_strictly_later() -> None:
    assert following("0 12 * * *", "2026-11-21 12:00:00", 1) == ["Sun 22 Nov 12:00:00"]


def test_weekdays_are_numbered_from_sunday() -> None:
    assert following("0 0 * * 1-5", "2026-11-20 12:00:00", 2) == [
        "Mon 23 Nov 00:00:00",
        "Tue 24 Nov 00:00:00",
    ]
    assert following("0 0 * * 0", "2026-11-20 12:00:00", 1) == ["Sun 22 Nov 00:00:00"]
    assert following("0 0 * * 7", "2026-11-20 12:00:00", 1) == ["Sun 22 Nov 00:00:00"]


def test_day_or_weekday_when_both_are_given() -> None:
    assert following("0 0 25 * mon", "2026-11-21 12:00:00", 3) == [
        "Mon 23 Nov 00:00:00",
        "Wed 25 Nov 00:00:00",
        "Mon 30 Nov 00:00:00",
    ]


def test_the_zone_keeps_the_wall_clock_over_the_change_to_summer_time() -> None:
    assert ms("2026-03-29 09:00:00") - ms("2026-03-28 09:00:00") == 23 * 3_600_000
    assert following("0 9 * * *", "2026-03-28 08:00:00", 2) == ["Sat 28 Mar 09:00:00", "Sun 29 Mar 09:00:00"]


def test_midnight_after_a_day_of_23_hours_is_not_skipped() -> None:
    """APScheduler 3.11's own arithmetic goes from midnight to midnight by 24 hours here."""
    assert following("0 0 * * *", "2026-03-29 00:00:00", 2, "Europe/Berlin") == [
        "Mon 30 Mar 00:00:00",
        "Tue 31 Mar 00:00:00",
    ]


def test_29_february_waits_eight_years_over_2100_and_30_february_for_ever() -> None:
    assert following("0 0 29 2 *", "2096-03-01 00:00:00", 1) == ["Fri 29 Feb 00:00:00"]
    assert Recurrence("0 0 30 2 *", LONDON).next_after(ms("2026-01-01")) is None
    assert Recurrence("0 0 31 2,4,6,9,11 *", LONDON).next_after(ms("2026-01-01")) is None


@pytest.mark.parametrize(
    ("cron", "zone"),
    [
        ("* * * *", LONDON),
        ("61 * * * *", LONDON),
        ("* * * * 8", LONDON),
        ("* * * * -", LONDON),
        ("* * * * *", "Mars/Base"),
        ("* * * * *", ""),
        ("* * * * *", "../../etc/passwd"),
        ("", LONDON),
    ],
)
def test_what_cannot_be_read_is_refused(cron: str, zone: str) -> None:
    with pytest.raises(IllegalSchedule, match="cannot be read"):
        Recurrence(cron, zone)
