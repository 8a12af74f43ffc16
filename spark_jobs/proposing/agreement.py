"""How far rows, messages and names agree: the evidence of which a proposal's reasons are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from spark_jobs.proposing.facts import Message, Row, Table, Topic

MOST: Final = 0.8
"""A share that is taken for a rule with exceptions, which an audit is there to find."""

NEAR_MS: Final = 60_000
"""Times of clocks and processes that are of one event lie so near each other."""

_MS_DIGITS: Final = (12, 13)
"""Milliseconds since 1970 have so many digits from 1973 on."""


@dataclass(frozen=True, slots=True)
class Share:
    """How many of how many."""

    count: int
    of: int

    @property
    def is_most(self) -> bool:
        """Return whether nearly all are meant, and there is one at least."""
        return self.count > 0 and self.count >= MOST * self.of

    def __str__(self) -> str:
        return f"{self.count:,} of {self.of:,}"


def share(flags: Iterable[bool]) -> Share:
    """Return how many flags are set."""
    listed = list(flags)
    return Share(sum(listed), len(listed))


def text_of(value: Any) -> str | None:
    """Return a value of a JSON body as the text that a key would be; None for none and for structures."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) if isinstance(value, str | int | float) else None


def rows_by(table: Table, key: str) -> dict[str, Row]:
    """Return the sampled rows by their key; the first of several."""
    found: dict[str, Row] = {}
    for row in table.rows:
        text = row.texts.get(key)
        if text is not None:
            found.setdefault(text, row)
    return found


def pairs(topic: Topic, rows: Mapping[str, Row]) -> list[tuple[Message, Row]]:
    """Return the messages of a topic that have a row, with it."""
    return [(one, rows[one.key]) for one in topic.messages if one.key in rows]


def field_names(messages: Iterable[Message]) -> list[str]:
    """Return the names of the fields that bodies have, in the order in which they occur."""
    return list(dict.fromkeys(name for one in messages for name in one.body))


def field_equals(found: list[tuple[Message, Row]], field: str, column: str) -> Share:
    """Return in how many messages a field is what a column of their row is, of those that have both."""
    values = [(text_of(message.body.get(field)), row.texts.get(column)) for message, row in found]
    return share(field == text for field, text in values if field is not None and text is not None)


def times_apart(found: list[tuple[Message, Row]], field: str, column: str) -> list[int]:
    """Return how many milliseconds a field and a column of its row are apart, of those that are both times;
    of two without a zone, as clocks show them.
    """
    texts = [(text_of(message.body.get(field)), row.texts.get(column)) for message, row in found]
    times = [(_ms(one), _ms(other)) for one, other in texts if one is not None and other is not None]
    return [abs(one - other) for one, other in times if one is not None and other is not None]


def _ms(text: str) -> int | None:
    """Return a time in ISO 8601, one without a zone as of UTC, or of milliseconds, in ms since 1970."""
    if text.isdecimal():
        return int(text) if len(text) in _MS_DIGITS else None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000)


def time_is_near(found: list[tuple[int | None, int | None]]) -> Share:
    """Return how many pairs of times are of one event, of those that are both there."""
    return share(abs(one - other) <= NEAR_MS for one, other in found if one is not None and other is not None)
