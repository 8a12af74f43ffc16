"""Parsing and formatting of time spans such as 500ms, 30s, 1h30m and 2d."""

from __future__ import annotations

import re

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
PART = re.compile(r"([0-9]{1,15})(ms|s|m|h|d)")
SPAN = r"(?:[0-9]{1,15}(?:ms|s|m|h|d))+"
"""Regular expression for a time span, without groups."""
WORDS = re.compile(r"(?:in\s+)?([0-9]{1,15})\s*([smhd])(?:|ecs?|econds?|ins?|inutes?|ours?|rs?|ays?)", re.I)
"""Time spans with a unit word or after `in`, such as 30 min, 2 hours, or in 5m."""


def span_ms(text: str) -> int:
    """Return a time span in milliseconds. Raises ValueError with advice on the format."""
    if not re.fullmatch(SPAN, text):
        raise ValueError(_advice(text))
    return sum(int(count) * UNITS_MS[unit] for count, unit in PART.findall(text))


def span_text(span_ms: int) -> str:
    """Return a span in milliseconds as `span_ms` reads it, exactly: 7d, 1h30m, 1s500ms."""
    parts = []
    for unit, unit_ms in reversed(UNITS_MS.items()):
        count, span_ms = divmod(span_ms, unit_ms)
        parts.append(f"{count}{unit}" if count else "")
    return "".join(parts) or "0ms"


def rounded(span_ms: int) -> str:
    """Return a span in its two largest units, for people: 16m52s, 5d3h, 640ms."""
    units = list(reversed(UNITS_MS.items()))
    for number, (unit, unit_ms) in enumerate(units):
        if span_ms >= unit_ms:
            smaller, smaller_ms = units[min(number + 1, len(units) - 1)]
            rest = span_ms % unit_ms // smaller_ms
            has_rest = rest and unit not in ("s", "ms")
            return f"{span_ms // unit_ms}{unit}" + (f"{rest}{smaller}" if has_rest else "")
    return "0ms"


def away(ahead_ms: int) -> str:
    """Return the distance of a time from now, for people: in 16m52s, or 38s ago if it is negative."""
    return f"in {rounded(ahead_ms)}" if ahead_ms >= 0 else f"{rounded(-ahead_ms)} ago"


def _advice(text: str) -> str:
    """Return advice on how to write a time span."""
    if re.fullmatch(r"[0-9]{1,15}", text):
        return f"it has no unit; write {text}s for seconds, {text}ms for milliseconds"
    if re.fullmatch(f"-{SPAN}", text):
        return f"a span is not negative; write {text[1:]}"
    if spelled := WORDS.fullmatch(text):
        return f"write {spelled[1]}{spelled[2].lower()}"
    return "write it as 500ms, 30s, 1h30m or 2d"
