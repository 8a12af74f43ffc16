"""Input of a proposal: tables with sampled rows and topics with sampled messages.

Values are texts in the form in which the audit reads keys, so they can be compared with the keys and bodies
of messages. A row also has the values of its time columns in milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """The kind of values in a column, by its declared type, refined by its values (`tables`)."""

    TEXT = "text"
    INTEGER = "whole numbers"
    DECIMAL = "decimal numbers"
    TIME = "times"
    BOOLEAN = "booleans"
    OTHER = "something else"


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `refers_to` is the table that its single-column foreign key references, "" for none."""

    name: str
    kind: Kind
    is_unique: bool = False
    refers_to: str = ""
    counts: Mapping[str | None, int] | None = None
    """Row counts of the whole table by value, 0 for a value that the database allows and no row has.

    None if the values were not counted, because the column cannot be a status (too many values, unique, or of
    another kind) or no column of the table holds keys of messages.
    """
    keys: frozenset[str] = frozenset()
    """The keys of logged messages that the column contains."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a sample."""

    texts: Mapping[str, str | None]
    times: Mapping[str, int] = field(default_factory=dict)
    """Values of time and integer columns, in ms since 1970, that are in the years 2001 to 2099."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table or view. `name` is qualified with the schema unless that is the default schema.

    `rows` is a sample. It contains only rows with keys of messages, if there are any.
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
    """One sampled message: first key, body (empty unless it is a JSON object), store time and due time."""

    key: str
    body: Mapping[str, Any]
    stored_ms: int
    due_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Topic:
    """One user topic in the part of the log that was read. Counts are numbers of records."""

    name: str
    halves: int = 0
    """Half messages of transactions, ended or open."""
    plain: int = 0
    """Messages sent without a transaction and without a delay."""
    delayed: int = 0
    """Timers, sent in a transaction or without one."""
    delivered: int = 0
    without_key: int = 0
    messages: tuple[Message, ...] = ()
    """A sample of the newest messages, one per key."""
    groups: Mapping[str, int] = field(default_factory=dict)
    """Number of its messages acknowledged by each consumer group."""
    cancels: Mapping[str, int] = field(default_factory=dict)
    """Number of timers cancelled by its messages, by the topic of the timer."""
    timer_keys: Mapping[str | None, int] = field(default_factory=dict)
    """Number of its timers with a timer key, by the prefix of that key before the message's key.

    None counts timer keys that do not end with the message's key, and prefixes after the first 100.
    """

    @property
    def keys(self) -> frozenset[str]:
        """Return the keys of the sample."""
        return frozenset(one.key for one in self.messages)

    @property
    def is_delayed(self) -> bool:
        """Return whether most of its messages are delayed."""
        return self.delayed > self.plain and self.delayed * 2 >= self.halves


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The part of a log that was read: its topics, number of records, and newest store time in ms since 1970.

    `is_whole`: the part is the whole log, from offset 0.
    """

    topics: tuple[Topic, ...]
    records: int
    last_ms: int
    is_whole: bool = True
    first_ms: int = 0
    """Store time of the first record that the log still has, in ms since 1970; 0 if it was not read."""
