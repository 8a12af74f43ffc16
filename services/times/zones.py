"""Local times in a given time zone."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

MONTH: Final = re.compile(r"\d{4}-\d\d")


def in_zone(text: str, zone: ZoneInfo) -> str:
    """Return a local time, or a month, with its time zone. Any other text is returned unchanged."""
    given = f"{text}-01" if MONTH.fullmatch(text) else text
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        return text
    return moment.replace(tzinfo=zone).isoformat() if moment.tzinfo is None and "-" in given else given
