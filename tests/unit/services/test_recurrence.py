"""Cron expressions mean what cron's users mean by them."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.broker.errors import IllegalSchedule
from services.broker.recurrence import WEEKDAYS, Recurrence, named_weekdays

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


def test_a_skipped_local_time_occurs_as_much_later_as_the_clocks_jump() -> None:
    assert following("30 1 * * *", "2026-03-28 12:00:00", 2) == ["Sun 29 Mar 02:30:00", "Mon 30 Mar 01:30:00"]


def test_a_repeated_local_time_occurs_once_unless_it_is_hourly() -> None:
    assert following("30 1 * * *", "2026-10-24 12:00:00", 2) == ["Sun 25 Oct 01:30:00", "Mon 26 Oct 01:30:00"]
    assert following("30 * * * *", "2026-10-25 00:45:00", 3) == [
        "Sun 25 Oct 01:30:00",
        "Sun 25 Oct 01:30:00",
        "Sun 25 Oct 02:30:00",
    ]


CHANGES = [
    ("Europe/Berlin", "2026-03-28"),
    ("Europe/Berlin", "2026-10-24"),
    ("America/New_York", "2026-03-07"),
    ("America/New_York", "2026-10-31"),
    ("Australia/Lord_Howe", "2026-10-03"),  # by half an hour
    ("Australia/Lord_Howe", "2026-04-04"),
    ("America/Havana", "2026-03-07"),  # at midnight
    ("America/Havana", "2026-10-31"),
    ("Antarctica/Troll", "2026-03-28"),  # by two hours
    ("Pacific/Apia", "2011-12-29"),  # by a day
]
"""Zones, and days before their clocks change."""
LINES = {
    "30 2 * * *": ({2}, {30}),
    "0 0 * * *": ({0}, {0}),
    "15 * * * *": (None, {15}),
    "*/20 * * * *": (None, {0, 20, 40}),
    "*/15 1-3 * * *": ({1, 2, 3}, {0, 15, 30, 45}),
    "10 0,2 * * *": ({0, 2}, {10}),
}
"""Cron lines with the hours (None: any) and minutes that they mean."""
DAYS = 4


def oracle(cron: str, zone: str, day: str) -> list[int]:
    """Every minute of some days on the wall, put onto the line of time by the custom."""
    hours, minutes = LINES[cron]
    first, moments = datetime.fromisoformat(day), set()
    for wall in (first + timedelta(minutes=minute) for minute in range(DAYS * 1440)):
        if wall.minute in minutes and (hours is None or wall.hour in hours):
            once, again = (wall.replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp() for fold in (0, 1))
            if hours is not None:
                moments.add(round(once * 1000))
            elif again >= once:
                moments |= {round(once * 1000), round(again * 1000)}
    return sorted(moments)


@pytest.mark.parametrize("cron", LINES)
@pytest.mark.parametrize(("zone", "day"), CHANGES)
def test_over_a_change_of_the_clocks_it_occurs_as_the_custom_says(cron: str, zone: str, day: str) -> None:
    start_ms = ms(day, zone)
    until_ms = ms((datetime.fromisoformat(day) + timedelta(days=DAYS)).isoformat(), zone)
    assert list(Recurrence(cron, zone).between(start_ms - 1, until_ms - 1)) == oracle(cron, zone, day)


@given(st.sampled_from(sorted(LINES)), st.sampled_from(CHANGES), st.integers(0, (DAYS - 2) * 86_400_000 - 1))
def test_what_comes_next_does_not_depend_on_where_one_asks(
    cron: str, change: tuple[str, str], later_ms: int
) -> None:
    zone, day = change
    moments, at_ms = oracle(cron, zone, day), ms(day, zone) + later_ms
    recurrence = Recurrence(cron, zone)
    assert recurrence.next_after(at_ms) == next(moment for moment in moments if moment > at_ms)
    if moments[0] <= at_ms:
        last_ms = max(moment for moment in moments if moment <= at_ms)
        assert recurrence.last_until(moments[0] - 1, at_ms) == last_ms


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
    ("field", "days"),
    [
        ("*", "*"),
        ("?", "*"),
        ("5-7", "sun,fri,sat"),
        ("6-2", "sun,mon,tue,sat"),
        ("1-5/2", "mon,wed,fri"),
        ("*/3", "sun,wed,sat"),
        ("Monday,FRI", "mon,fri"),
    ],
)
def test_weekday_fields_become_names(field: str, days: str) -> None:
    assert named_weekdays(field) == days


@given(st.sets(st.integers(0, 6), min_size=1))
def test_any_list_of_weekdays_is_kept(days: set[int]) -> None:
    named = named_weekdays(",".join(map(str, days)))
    assert named.split(",") == [WEEKDAYS[day] for day in sorted(days)]


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
