"""Timeline of a finding: its log records and its times in the databases, in order of time.

Each line has its source and the time since the previous line. The clocks of databases and broker may differ
slightly, so a line from a database may precede its cause.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

FROM_STORES: Final = {
    "placed_ms": ("order database", "order placed"),
    "paid_ms": ("order database", "order paid"),
    "timed_out_ms": ("order database", "order timed out"),
    "cancelled_ms": ("order database", "order cancelled"),
    "cleared_ms": ("cart ledger", "cart cleared"),
}
_UNITS_MS: Final = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))


class Known(NamedTuple):
    """An event of a timeline. `physical_offset` is None if the event is not from the log."""

    at_ms: int
    physical_offset: int | None
    what: str
    where: str
    note: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a timeline. `gap` is empty for the first line and if no time has passed."""

    known: Known
    gap: str


def timeline(evidence: dict[str, Any]) -> list[Line]:
    """Return the lines of a finding, from its columns and its `timeline` events."""
    found = [Known(evidence[name], None, what, where, "") for name, (where, what) in FROM_STORES.items()
             if evidence.get(name) is not None]  # fmt: skip
    found += [
        Known(
            event["store_ms"],
            event["physical_offset"],
            event["kind"],
            event["topic"],
            event.get("note") or "",
        )
        for event in evidence.get("timeline") or ()
    ]
    found.sort(key=lambda one: (one.at_ms, one.physical_offset or -1))
    before = [one.at_ms for one in found[:1]] + [one.at_ms for one in found]
    return [Line(one, gap(one.at_ms - ms)) for one, ms in zip(found, before, strict=False)]


def gap(ms: int) -> str:
    """Return a span as text in its two largest units, such as "13 m 7 s", or "" for 0 or less.

    A second unit that is 0 or milliseconds is left out.
    """
    for place, (unit, unit_ms) in enumerate(_UNITS_MS):
        if ms >= unit_ms:
            rest_unit, rest_ms = _UNITS_MS[min(place + 1, len(_UNITS_MS) - 1)]
            rest = ms % unit_ms // rest_ms if rest_unit != "ms" else 0
            return f"{ms // unit_ms} {unit}" + (f" {rest} {rest_unit}" if rest else "")
    return ""
