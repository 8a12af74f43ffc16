"""Rates as people write them: 50 or 50/s per second, 600/m per minute, 100/h per hour."""

from __future__ import annotations

import re
from typing import Final

SAMPLES: Final = "50/s (or 50), 600/m or 100/h"
_RATE: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(/s|/m|/h)?", re.ASCII)
_SECONDS: Final = {None: 1, "/s": 1, "/m": 60, "/h": 3_600}


def per_second(text: str) -> float:
    """Return a rate per second. The rate 0 means no limit. Raise `ValueError` for an unknown form."""
    found = _RATE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"write it as {SAMPLES}; 0: no limit")
    return float(found[1]) / _SECONDS[found[2]]


def whole_per_second(text: str) -> int:
    """Return a rate in whole items per second, rounded down. Raise `ValueError` if it is less than 1."""
    rate = per_second(text)
    if 0 < rate < 1:
        raise ValueError("the lowest rate is 1/s")
    return int(rate)
