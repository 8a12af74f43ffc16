"""Agreement between rows and messages: the evidence for the reasons of a proposal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from spark_jobs.proposing.facts import Message, Row, Table, Topic

MOST: Final = 0.8
"""Minimum share that counts as a rule. The exceptions to it are findings for the audit."""

NEAR_MS: Final = 60_000
"""Maximum difference in ms between the times of one event by several clocks and processes."""

_MS_DIGITS: Final = (12, 13)
"""Numbers of digits of milliseconds since 1970, from March 1973 to November 2286."""


@dataclass(frozen=True, slots=True)
class Share:
    """A count out of a total."""

    count: int
    of: int

    @property
    def is_most(self) -> bool:
        """Return whether the count is at least one and at least `MOST` of the total."""
        return self.count > 0 and self.count >= MOST * self.of

    def __str__(self) -> str:
        return f"{self.count:,} of {self.of:,}"


def share(flags: Iterable[bool]) -> Share:
    """Return the share of flags that are set."""
    listed = list(flags)
    return Share(sum(listed), len(listed))


def text_of(value: Any) -> str | None:
    """Return a value of a JSON body in the text form of a key; None for null, arrays and objects."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) if isinstance(value, str | int | float) else None


def rows_by(table: Table, key: str) -> dict[str, Row]:
    """Return the sampled rows by key; the first row of a repeated key."""
    found: dict[str, Row] = {}
    for row in table.rows:
        text = row.texts.get(key)
        if text is not None:
            found.setdefault(text, row)
    return found


def pairs(topic: Topic, rows: Mapping[str, Row]) -> list[tuple[Message, Row]]:
    """Return the messages of a topic whose key has a row, with the row."""
    return [(one, rows[one.key]) for one in topic.messages if one.key in rows]


def field_names(messages: Iterable[Message]) -> list[str]:
    """Return the names of the fields in the bodies, in order of first occurrence."""
    return list(dict.fromkeys(name for one in messages for name in one.body))


def field_equals(found: list[tuple[Message, Row]], field: str, column: str) -> Share:
    """Return the share of messages whose field equals the column of their row, of those with both values."""
    values = [(text_of(message.body.get(field)), row.texts.get(column)) for message, row in found]
    return share(field == text for field, text in values if field is not None and text is not None)


def times_apart(found: list[tuple[Message, Row]], field: str, column: str) -> list[int]:
    """Return the absolute differences in ms between a field and the column of its row, where both are times.

    Two times without a zone are compared as wall-clock times.
    """
    texts = [(text_of(message.body.get(field)), row.texts.get(column)) for message, row in found]
    times = [(_ms(one), _ms(other)) for one, other in texts if one is not None and other is not None]
    return [abs(one - other) for one, other in times if one is not None and other is not None]


def _ms(text: str) -> int | None:
    """Return a text in ISO 8601 (UTC if without a zone) or in milliseconds as ms since 1970; else None."""
    if text.isdecimal():
        return int(text) if len(text) in _MS_DIGITS else None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000)


def time_is_near(found: list[tuple[int | None, int | None]]) -> Share:
    """Return the share of pairs at most `NEAR_MS` apart, of those without None."""
    return share(abs(one - other) <= NEAR_MS for one, other in found if one is not None and other is not None)
