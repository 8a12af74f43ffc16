"""Rates as people write them: 50 or 50/s per second, 600/m per minute, 100/h per hour."""

from __future__ import annotations

import re
from typing import Final

SAMPLES: Final = "50/s (or 50), 600/m or 100/h"
WHOLE_SAMPLES: Final = "50/s (or 50), a whole number of at least 1 per second"
"""The rates that `whole_per_second` accepts."""
_RATE: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(/s|/m|/h)?", re.ASCII)
_SECONDS: Final = {None: 1, "/s": 1, "/m": 60, "/h": 3_600}


def per_second(text: str) -> float:
    """Return a rate per second. The rate 0 means no limit. Raise `ValueError` for an unknown form."""
    return _parse(text, SAMPLES)


def whole_per_second(text: str) -> int:
    """Return a rate in whole items per second. The rate 0 means no limit.

    Raise `ValueError` for an unknown form, or for a rate that is not a whole number per second.
    """
    rate = _parse(text, WHOLE_SAMPLES)
    if not rate.is_integer():
        raise ValueError(f"write it as {WHOLE_SAMPLES}; 0: no limit")
    return int(rate)


def _parse(text: str, samples: str) -> float:
    found = _RATE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"write it as {samples}; 0: no limit")
    return float(found[1]) / _SECONDS[found[2]]
