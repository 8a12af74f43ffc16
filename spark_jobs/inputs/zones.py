"""Time zones for local times: the conversion of a time without a zone to an instant.

A change of a zone's offset, as with daylight saving time, makes local times ambiguous or skips them. Such a
time is refused; the instant is not guessed.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import cache
from typing import Final
from zoneinfo import ZoneInfo

_OFFSET: Final = re.compile(r"([+-])([0-9]{2}):([0-9]{2})")


class TimeOfNoZone(ValueError):
    """A local time that the clocks of a zone show twice or never."""


@cache
def zone_of(name: str) -> tzinfo:
    """Return a zone by its name, such as Europe/London, or by its offset from UTC, such as +01:00.

    Raises:
        ValueError: when there is no such zone.
    """
    if found := _OFFSET.fullmatch(name):
        ahead = timedelta(hours=int(found[2]), minutes=int(found[3]))
        return timezone(ahead if found[1] == "+" else -ahead)
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(name) from error


def moment(clock: datetime, zone: tzinfo) -> datetime:
    """Return the only instant at which the clocks of a zone show the local time `clock`.

    Raises:
        TimeOfNoZone: when there are two such instants, or none.
    """
    first, second = (clock.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1))
    assert first is not None
    assert second is not None
    if first != second:
        raise TimeOfNoZone(f"is {'twice' if first > second else 'never'} on the clocks of {zone}")
    return clock.replace(tzinfo=zone)
