"""A cron line means what vixie cron's manual says: crontab(5) for fields, cron(8) for changes of the clocks.

The rules are facts of the manual of Debian's package `cron` 3.0pl1. The table of changes is held against a
walk through every minute that does what cron(8) says.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.broker.schedules.recurrence import Recurrence
from services.broker.spine.errors import IllegalSchedule

BERLIN = "Europe/Berlin"
MINUTE = timedelta(minutes=1)
CHANGE_MAX = timedelta(hours=3)
"""cron(8): what changes the clock by more is a correction, and the new time is used at once."""


def ms(text: str, zone: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def coming(line: str, zone: str, start: str, count: int) -> list[str]:
    """The next occurrences from a local time on, as local times with their offset."""
    recurrence, at_ms, found = Recurrence(line, zone), ms(start, zone) - 1, []
    for _ in range(count):
        at_ms = recurrence.next_after(at_ms) or 0
        found.append(datetime.fromtimestamp(at_ms / 1000, ZoneInfo(zone)).strftime("%d %b %H:%M %z"))
    return found


# Changes of the clocks: lines x zones x changes.


@dataclass(frozen=True)
class Line:
    """What a line says about the time of day; a wildcard is a field of it that begins with `*`."""

    minutes: set[int]
    hours: set[int]
    is_wild: bool

    def fits(self, wall: datetime) -> bool:
        return wall.minute in self.minutes and wall.hour in self.hours


ANY_MINUTE, ANY_HOUR = set(range(60)), set(range(24))
LINES = {
    "30 2 * * *": Line({30}, {2}, is_wild=False),
    "0 2 * * *": Line({0}, {2}, is_wild=False),
    "0 3 * * *": Line({0}, {3}, is_wild=False),
    "0,30 2 * * *": Line({0, 30}, {2}, is_wild=False),
    "0 0 * * *": Line({0}, {0}, is_wild=False),
    "@daily": Line({0}, {0}, is_wild=False),
    "10 0,2 * * *": Line({10}, {0, 2}, is_wild=False),
    "0-59/5 2 * * *": Line(set(range(0, 60, 5)), {2}, is_wild=False),
    "0-59 0-23 * * *": Line(ANY_MINUTE, ANY_HOUR, is_wild=False),
    "30 0-23/1 * * *": Line({30}, ANY_HOUR, is_wild=False),
    "5,*/20 1-3 * * *": Line({0, 5, 20, 40}, {1, 2, 3}, is_wild=False),
    "* 2 * * *": Line(ANY_MINUTE, {2}, is_wild=True),
    "*/5 2 * * *": Line(set(range(0, 60, 5)), {2}, is_wild=True),
    "*/15 1-3 * * *": Line({0, 15, 30, 45}, {1, 2, 3}, is_wild=True),
    "*/20,5 1-3 * * *": Line({0, 5, 20, 40}, {1, 2, 3}, is_wild=True),
    "15 * * * *": Line({15}, ANY_HOUR, is_wild=True),
    "0 */2 * * *": Line({0}, set(range(0, 24, 2)), is_wild=True),
    "*/20 * * * *": Line({0, 20, 40}, ANY_HOUR, is_wild=True),
    "@hourly": Line({0}, ANY_HOUR, is_wild=True),
}
CHANGES = [
    ("Europe/Berlin", "2026-03-28"),
    ("Europe/Berlin", "2026-10-24"),
    ("Europe/London", "2026-03-28"),
    ("Europe/London", "2026-10-24"),
    ("America/New_York", "2026-03-07"),
    ("America/New_York", "2026-10-31"),
    ("Australia/Lord_Howe", "2026-10-03"),  # by half an hour
    ("Australia/Lord_Howe", "2026-04-04"),
    ("America/Havana", "2026-03-07"),  # at midnight
    ("America/Havana", "2026-10-31"),
    ("Antarctica/Troll", "2026-03-28"),  # by two hours
    ("Antarctica/Troll", "2026-10-24"),
    ("Antarctica/Casey", "2018-03-10"),  # back by three hours
    ("Pacific/Apia", "2011-12-29"),  # forward by a day: a correction
    ("Asia/Tokyo", "2026-03-28"),  # none
]
"""Zones, and days before their clocks change."""
DAYS = 4


@cache
def walk(name: str, zone: str, day: str) -> list[int]:
    """Look at a line every minute of some days, as cron(8) says; return when it runs (ms since 1970)."""
    line, found = LINES[name], []
    moment = datetime.fromtimestamp(ms(day, zone) / 1000, UTC)
    until = datetime.fromtimestamp(ms(day, zone) / 1000 + DAYS * 86_400, UTC)
    done = moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None) - MINUTE
    while moment < until:
        wall = moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        if line.is_wild or abs(wall - done) > CHANGE_MAX:
            # A wildcard, or a correction of the clock: the new time at once.
            done = wall - MINUTE
        missed = (done + n * MINUTE for n in range(1, 1 + (wall - done) // MINUTE))
        # Nothing if the wall is one that was there already; several if the clocks have skipped some.
        if any(line.fits(each) for each in missed):
            found.append(round(moment.timestamp() * 1000))
        done = max(done, wall)
        moment += MINUTE
    return found


@pytest.mark.parametrize(("zone", "day"), CHANGES)
@pytest.mark.parametrize("line", LINES)
def test_over_a_change_of_the_clocks_a_line_runs_as_cron_8_says(line: str, zone: str, day: str) -> None:
    start_ms = ms(day, zone)
    found = Recurrence(line, zone).between(start_ms - 1, start_ms + DAYS * 86_400_000 - 1)
    assert list(found) == walk(line, zone, day)


@given(st.sampled_from(sorted(LINES)), st.sampled_from(CHANGES), st.integers(0, (DAYS - 2) * 86_400_000 - 1))
def test_what_comes_next_does_not_depend_on_when_one_asks(
    line: str, change: tuple[str, str], later_ms: int
) -> None:
    zone, day = change
    moments, at_ms = walk(line, zone, day), ms(day, zone) + later_ms
    recurrence = Recurrence(line, zone)
    expected = next((moment for moment in moments if moment > at_ms), None)
    if expected is not None:
        assert recurrence.next_after(at_ms) == expected
    if moments and moments[0] <= at_ms:
        last_ms = max(moment for moment in moments if moment <= at_ms)
        assert recurrence.last_occurrence_until(moments[0] - 1, at_ms) == last_ms


@pytest.mark.parametrize(
    ("words", "line", "start", "expected"),
    [
        (
            "a job of the skipped hour: soon after the change",
            "30 2 * * *",
            "03-29 00:00",
            ["29 Mar 03:00 +0200"],
        ),
        ("the next day as ever", "30 2 * * *", "03-29 03:01", ["30 Mar 02:30 +0200"]),
        (
            "a wildcard: by the new time at once, so not in the skipped hour",
            "*/5 2 * * *",
            "03-29 00:00",
            ["30 Mar 02:00 +0200"],
        ),
        (
            "a fixed job of the repeated hour: not again",
            "30 2 * * *",
            "10-25 02:29",
            ["25 Oct 02:30 +0200", "26 Oct 02:30 +0100"],
        ),
        (
            "a wildcard: through the repeated hour",
            "*/30 2 * * *",
            "10-25 00:00",
            ["25 Oct 02:00 +0200", "25 Oct 02:30 +0200", "25 Oct 02:00 +0100", "25 Oct 02:30 +0100"],
        ),
        ("@hourly is a wildcard", "@hourly", "10-25 02:00", ["25 Oct 02:00 +0200", "25 Oct 02:00 +0100"]),
        (
            "a range of all hours is none",
            "0 0-23 * * *",
            "10-25 02:00",
            ["25 Oct 02:00 +0200", "25 Oct 03:00 +0100"],
        ),
    ],
)
def test_the_words_of_cron_8(words: str, line: str, start: str, expected: list[str]) -> None:
    assert coming(line, BERLIN, f"2026-{start}", len(expected)) == expected, words


def test_of_what_is_skipped_a_line_runs_once_together_with_what_is_due_then() -> None:
    """02:00, 02:15, 02:30, 02:45 are skipped and 03:00 is shown: one moment, one message."""
    assert coming("0,15,30,45 2,3 * * *", BERLIN, "2026-03-29 01:00", 2) == [
        "29 Mar 03:00 +0200",
        "29 Mar 03:15 +0200",
    ]


def test_seconds_are_a_part_of_the_time_of_day_too() -> None:
    """Ours: cron has none. A line with wildcard seconds is one that runs by what the clocks show."""
    assert coming("*/30 30 2 * * *", BERLIN, "2026-03-29 00:00", 1) == ["30 Mar 02:30 +0200"]
    assert coming("0 30 2 * * *", BERLIN, "2026-03-29 00:00", 1) == ["29 Mar 03:00 +0200"]


# Days: crontab(5). The 1st of August 2026 is a Saturday.


@pytest.mark.parametrize(
    ("words", "line", "days"),
    [
        ("both restricted: either", "0 0 13 * fri", [7, 13, 14, 21]),
        ("both restricted: either, by number", "0 0 1,15 * 5", [1, 7, 14, 15]),
        ("a day that begins with a star: both", "0 0 */2 * mon", [3, 17, 31]),
        ("a weekday that begins with a star: both", "0 0 1-7 * */7", [2]),
        ("a star first in a list counts", "0 0 */31,1-7 * mon", [3]),
        ("a star later in a list does not", "0 0 30,*/31 * mon", [1, 3, 10, 17]),
        ("a range of all days is a restriction", "0 0 1-31 * mon", [1, 2, 3, 4]),
        ("0 is Sunday", "0 0 * * 0", [2, 9, 16, 23]),
        ("7 is Sunday", "0 0 * * 7", [2, 9, 16, 23]),
        ("a range up to 7", "0 0 * * 5-7", [1, 2, 7, 8]),
        ("a range with a step", "0 0 1-9/4 * *", [1, 5, 9]),
        ("a step beyond the range is its first", "0 0 10-12/5 * *", [10]),
        ("a step of all", "0 0 */15 * *", [1, 16, 31]),
        ("names, whatever the case", "0 0 * * Mon,FRI", [3, 7, 10, 14]),
        ("month by name", "0 0 5 AUG *", [5]),
        ("months by names, a range with a step", "0 0 5 jun-dec/2 *", [5]),
        ("not that month", "0 0 5 jan-dec/2 *", []),
        ("ours: L is the last day of the month", "0 0 L * *", [31]),
        ("ours: a list may have it", "0 0 4,L * *", [4, 31]),
        ("ours: from a day on, by a step", "0 0 20/5 * *", [20, 25, 30]),
        ("ours: a range over the end of the week", "0 0 * * sat-mon", [1, 2, 3, 8]),
        ("ours: ? as a weekday is a star", "0 0 9 * ?", [9]),
    ],
)
def test_the_days_of_crontab_5(words: str, line: str, days: list[int]) -> None:
    recurrence = Recurrence(line, "UTC")
    found = recurrence.between(ms("2026-07-31 12:00", "UTC"), ms("2026-08-31 12:00", "UTC"))
    walls = [datetime.fromtimestamp(at_ms / 1000, UTC) for at_ms in found]
    assert [wall.day for wall in walls][: max(len(days), 1) if len(days) < 4 else 4] == days, words


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
        ("@HOURLY", "0 * * * *"),
    ],
)
def test_names_of_lines(name: str, line: str) -> None:
    assert coming(name, BERLIN, "2026-03-28 12:00", 30) == coming(line, BERLIN, "2026-03-28 12:00", 30)


NUMBERS = {"minute": (0, 59), "hour": (0, 23), "day": (1, 31), "month": (1, 12), "weekday": (0, 7)}


@st.composite
def a_field(draw: st.DrawFn, low: int, high: int) -> tuple[str, set[int], bool]:
    """A field's text, its numbers, and whether it begins with a star."""
    texts, numbers = [], set()
    for _ in range(draw(st.integers(1, 3))):
        step = draw(st.integers(1, high + 3))
        first = draw(st.integers(low, high))
        last = draw(st.integers(first, high))
        kind = draw(st.sampled_from(("one", "range", "range/step", "*", "*/step")))
        text, found = {
            "one": (f"{first}", {first}),
            "range": (f"{first}-{last}", set(range(first, last + 1))),
            "range/step": (f"{first}-{last}/{step}", set(range(first, last + 1, step))),
            "*": ("*", set(range(low, high + 1))),
            "*/step": (f"*/{step}", set(range(low, high + 1, step))),
        }[kind]
        texts.append(text)
        numbers |= found
    return ",".join(texts), numbers, texts[0].startswith("*")


@given(
    st.tuples(*(a_field(low, high) for low, high in NUMBERS.values())),
    st.datetimes(datetime(2026, 1, 1), datetime(2029, 12, 31)),
)
def test_a_minute_runs_if_the_fields_match_it(
    fields: tuple[tuple[str, set[int], bool], ...], wall: datetime
) -> None:
    (_, minutes, _), (_, hours, _), (_, days, any_day), (_, months, _), (_, weekdays, any_weekday) = fields
    wall = wall.replace(second=0, microsecond=0, tzinfo=UTC)
    by_day, by_weekday = wall.day in days, bool({wall.isoweekday(), wall.isoweekday() % 7} & weekdays)
    is_day = (by_day and by_weekday) if any_day or any_weekday else (by_day or by_weekday)
    fits = is_day and wall.minute in minutes and wall.hour in hours and wall.month in months
    at_ms = round(wall.timestamp() * 1000)
    line = " ".join(text for text, *_ in fields)
    assert (Recurrence(line, "UTC").next_after(at_ms - 1) == at_ms) == fits, line


# What is not cron's is refused by name, and told what to write.


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("@reboot", "@reboot .* no start of a machine.*@daily"),
        ("@every 5m", r"@every .*\*/5 \* \* \* \*"),
        (
            "@fortnightly",
            "@fortnightly is not known.*@yearly, @annually, @monthly, @weekly, @daily, @midnight",
        ),
        ("0 0 ? * 2-6", r"'\?' .*day.*write \*.*0 to 7 from Sunday"),
        ("0 0 15W * *", "'15W' .*nearest working day.*1-5"),
        ("0 0 LW * *", "'LW' .*nearest working day"),
        ("0 0 L-3 * *", "'L-3' .*days before the end.*L alone"),
        ("0 0 * * 5L", "'5L' .*last weekday of a month.*25-31"),
        ("0 0 * * friL", "'friL' .*last weekday of a month"),
        ("0 0 * * L", "'L' .*write sat or 6"),
        ("0 0 * * mon#2", "'mon#2' .*8-14"),
        ("0 0 * * 1#1", r"'1#1' .*\*/31,1-7 as the day"),
        ("H 3 * * *", "'H' .*hash.*number"),
        ("0~30 3 * * *", "'0~30' .*random.*number"),
        ("0 0 12 * * ? 2027", "7 fields.*year.*start and an end"),
        ("CRON_TZ=UTC 0 0 * * *", "CRON_TZ.*time zone .*of its own"),
        ("TZ=UTC 0 0 * * *", "TZ.*time zone .*of its own"),
        ("60 * * * *", "minute '60' .*0 to 59"),
        ("* 24 * * *", "hour '24' .*0 to 23"),
        ("* * 0 * *", "day '0' .*1 to 31"),
        ("* * * 13 *", "month '13' .*1 to 12, or jan to dec"),
        ("* * * mai *", "month 'mai' .*jan to dec"),
        ("* * * * 8", "weekday '8' .*0 to 7, or sun to sat"),
        ("* * * * monkey", "weekday 'monkey'"),
        ("*/0 * * * *", "minute '\\*/0' .*step"),
        ("30-10 * * * *", "minute '30-10' .*30-59,0-10"),
        ("1,,2 * * * *", "minute ''"),
        ("*-5 * * * *", "minute '\\*-5'"),
        ("0 0 24 * * *", "hour .24."),
        ("hourly", "1 field.*@hourly"),
    ],
)
def test_what_is_not_crons_is_refused_by_name(line: str, said: str) -> None:
    with pytest.raises(IllegalSchedule, match=f"(?s){said}"):
        Recurrence(line, BERLIN)


@pytest.mark.parametrize("zone", ["Mars/Base", "", "../../etc/passwd", "Europe"])
def test_a_zone_that_is_not_there_is_refused_by_name(zone: str) -> None:
    with pytest.raises(
        IllegalSchedule, match="there is no such time zone; give a name such as Europe/London"
    ):
        Recurrence("* * * * *", zone)
