"""What a proposal is made of: tables with samples of their rows, topics with samples of their messages.

Values are texts as the audit reads them as keys, so they compare with keys and bodies of messages. A row has
the times of its columns besides, in milliseconds since 1970, where a column holds times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What a column holds, by its declared type or, where there is none, by its values."""

    TEXT = "text"
    INTEGER = "whole numbers"
    DECIMAL = "decimal numbers"
    TIME = "times"
    BOOLEAN = "booleans"
    OTHER = "something else"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: `refers_to` is the table that a foreign key leads to, "" for none."""

    name: str
    kind: Kind
    is_unique: bool = False
    refers_to: str = ""
    counts: Mapping[str | None, int] | None = None
    """Rows by value in the whole table, 0 of a value that the database allows and no row has; None where
    there are too many values to be statuses.
    """
    keys: frozenset[str] = frozenset()
    """The keys of messages in the log that the column holds."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a sample."""

    texts: Mapping[str, str | None]
    times: Mapping[str, int] = field(default_factory=dict)
    """Only of columns and values that are a time of the years 2001 to 2100."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table or view; `name` has its schema before it unless that is the default one.

    `rows` is a sample, of rows with keys of messages where there are such.
    """

    name: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...] = ()

    def column(self, name: str) -> Column:
        """Return a column by its name; raise `KeyError`."""
        for one in self.columns:
            if one.name == name:
                return one
        raise KeyError(name)

    def values(self, name: str) -> list[str]:
        """Return the values that a column has in the sample, without nulls."""
        texts = (row.texts.get(name) for row in self.rows)
        return [text for text in texts if text is not None]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a sample: its first key, its body if that is a JSON object, its times."""

    key: str
    body: Mapping[str, Any]
    stored_ms: int
    due_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Topic:
    """One user's topic in the part of the log that was read; counts are of records."""

    name: str
    halves: int = 0
    """Messages of transactions, ended or not."""
    plain: int = 0
    """Messages that were sent without a transaction and without a delay."""
    delayed: int = 0
    """Timers, of transactions or not."""
    delivered: int = 0
    without_key: int = 0
    messages: tuple[Message, ...] = ()
    """The newest ones, one of each key."""
    groups: Mapping[str, int] = field(default_factory=dict)
    """How many of its messages each consumer group has acknowledged."""
    cancels: Mapping[str, int] = field(default_factory=dict)
    """How many timers of which topic its messages have cancelled."""
    timer_keys: Mapping[str | None, int] = field(default_factory=dict)
    """How many of its timers have a key of their own, by what stands in it before the message's key; by None
    where it does not end with that.
    """

    @property
    def keys(self) -> frozenset[str]:
        """Return the keys of the sample."""
        return frozenset(one.key for one in self.messages)

    @property
    def is_delayed(self) -> bool:
        """Return whether its messages are delayed, most of them."""
        return self.delayed > self.plain and self.delayed * 2 >= self.halves


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The part of a log that was read: its topics, how many records, the time of the last one."""

    topics: tuple[Topic, ...]
    records: int
    last_ms: int
    is_whole: bool = True
    first_ms: int = 0
    """The time of the whole log's first record; 0 if that was not read."""
