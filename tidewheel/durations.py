"""Spans of time as people write them: 500ms, 30s, 1h30m, 2d."""

from __future__ import annotations

import re

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
PART = re.compile(r"([0-9]{1,15})(ms|s|m|h|d)")
SPAN = r"(?:[0-9]{1,15}(?:ms|s|m|h|d))+"
"""A span as part of a regular expression, without groups."""


def span_ms(text: str) -> int:
    """Return a span in milliseconds; raises ValueError that says how to write one."""
    if not re.fullmatch(SPAN, text):
        raise ValueError("write it as 500ms, 30s, 1h30m or 2d")
    return sum(int(count) * UNITS_MS[unit] for count, unit in PART.findall(text))
