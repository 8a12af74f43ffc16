"""Filters: which records a consumer wants, judged by what is stored of them.

A filter is asked in two steps. `tags_codes` are the hashes that the wanted tags have in the queue's entries:
an entry with another hash is passed over and its record never read. `matches` judges the stored properties of
the records that are left, for hashes collide and an expression may ask for more than the tag.

Tag expressions are `*` or nothing for all, else tags joined by `||`. SQL expressions: `sql_filter.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from commitlog import limits, properties
from commitlog.errors import IllegalFilter
from consumequeue.entry import tags_code


class Filter(Protocol):
    """What a consumer wants."""

    @property
    def tags_codes(self) -> frozenset[int] | None:
        """The hashes of the tags that may match; None if any may, also that of a message without a tag."""

    def matches(self, stored: bytes) -> bool:
        """Whether the record with these stored properties is wanted."""


@dataclass(slots=True, frozen=True)
class Everything:
    """Wants every message."""

    @property
    def tags_codes(self) -> frozenset[int] | None:
        """Any."""
        return None

    def matches(self, stored: bytes) -> bool:
        """Always."""
        return True


@dataclass(slots=True, frozen=True)
class Tagged:
    """Wants the messages that have one of these tags."""

    tags: frozenset[str]
    tags_codes: frozenset[int] | None

    def matches(self, stored: bytes) -> bool:
        """Whether the tag itself is wanted, not only its hash."""
        return properties.value_of(stored, properties.TAG) in self.tags


EVERYTHING: Filter = Everything()


@lru_cache(maxsize=limits.FILTERS_KEPT_MAX)
def parse_tags(expression: str) -> Filter:
    """The filter of a tag expression; raises `IllegalFilter`."""
    check_expression(expression)
    if expression.strip() in ("", "*"):
        return EVERYTHING
    tags = frozenset(tag.strip() for tag in expression.split("||"))
    if "" in tags or any("|" in tag for tag in tags):
        raise IllegalFilter(
            f"{expression[:100]!r} has an empty tag or a single '|'. Write tags as 'paid || sent'."
        )
    return Tagged(tags, frozenset(map(tags_code, tags)))


def check_expression(expression: str) -> None:
    """Raises `IllegalFilter` for an expression, of whatever language, that is not even read."""
    if len(expression) > limits.FILTER_CHARACTERS_MAX:
        raise IllegalFilter(
            f"It has {len(expression)} characters, the limit is {limits.FILTER_CHARACTERS_MAX}."
        )
    try:
        expression.encode()
    except UnicodeEncodeError as error:
        raise IllegalFilter(f"Character {error.start + 1} is half of one: a lone surrogate.") from error
