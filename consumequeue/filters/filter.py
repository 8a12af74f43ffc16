"""Filters, which select the records for a consumer.

A filter works in two steps. First, entries whose tag hash is not in `tags_codes` are skipped without reading
their records. Then `matches` checks the stored properties of the remaining records, because hashes may
collide and an expression may test properties other than the tag.

Tag expressions are parsed as in RocketMQ's `FilterAPI`. `*` and the empty expression match all messages. Any
other expression is a list of tags separated by `||`. Tags are trimmed, and empty tags are ignored.
`sql_filter.py` describes SQL expressions. Tag expressions differ from RocketMQ's in three cases:

| expression | RocketMQ            | Tidewheel             | reason                            |
|------------|---------------------|-----------------------|-----------------------------------|
| `a | b`    | the tag `a | b`     | refused               | a tag cannot contain a bar        |
| ` || `     | no messages         | refused               | RocketMQ refuses `||`             |
| ` a`       | the tag `a`         | the tags `a` and ` a` | the tag ` a` can be sent          |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from commitlog import limits
from commitlog.records import properties
from consumequeue.entry import tags_code
from consumequeue.filters.errors import IllegalFilter
from tidewheel import property_names

TAG, SQL = "TAG", "SQL"


class FilterText(NamedTuple):
    """A filter as text: the type `TAG` or `SQL`, and an expression."""

    type: str
    expression: str


class Filter(Protocol):
    """Selects the records for a consumer."""

    @property
    def text(self) -> FilterText:
        """The filter as text. Filters with the same text are equal."""

    @property
    def tags_codes(self) -> frozenset[int] | None:
        """Hashes of the tags that may match, or None if any tag may match."""

    def matches(self, stored: bytes) -> bool:
        """Return whether a record with these stored properties matches."""

    def work(self, stored_bytes: int) -> int:
        """Return the maximum cost of `matches` in units of `limits.WORK_NS`.

        The cost depends on the size of the stored properties.
        """


@dataclass(slots=True, frozen=True)
class MatchAllFilter:
    """Matches every message."""

    @property
    def text(self) -> FilterText:
        """The expression `*`."""
        return _ALL

    @property
    def tags_codes(self) -> frozenset[int] | None:
        """None, because any tag may match."""
        return None

    def matches(self, stored: bytes) -> bool:
        """Return True."""
        return True

    def work(self, stored_bytes: int) -> int:
        """Return 0, because no properties are read."""
        return 0


@dataclass(slots=True, frozen=True)
class TagFilter:
    """Matches messages that have one of the tags in an expression."""

    tags: frozenset[str]
    tags_codes: frozenset[int] | None
    text: FilterText = field(compare=False)

    def matches(self, stored: bytes) -> bool:
        """Return whether a record's tag matches, not only the hash of the tag."""
        return properties.value_of(stored, property_names.TAG) in self.tags

    def work(self, stored_bytes: int) -> int:
        """Return the cost of searching the properties for the tag."""
        return stored_bytes // _TAG_SEARCHED_BYTES


_TAG_SEARCHED_BYTES: Final = 8 * 1024
"""Property bytes searched for a tag per `limits.WORK_NS`."""
_ALL = FilterText(TAG, "*")
EVERYTHING: Filter = MatchAllFilter()
TRIMMED = "".join(map(chr, range(0x21)))
"""Characters that Java's `String.trim` removes. Tags may begin or end with other whitespace."""


def parse_tags(expression: str) -> Filter:
    """Return the filter for a tag expression. Raise `IllegalFilter` if it is invalid.

    Filters for short expressions are cached.
    """
    return (_parse_kept if len(expression) <= limits.FILTER_CHARACTERS_MAX else _parse)(expression)


def _parse(expression: str) -> Filter:
    check_expression(expression, limits.TAG_BYTES_MAX)
    if expression.strip() in ("", "*"):
        return EVERYTHING
    tags = frozenset(tag for part in expression.split("||") if (tag := part.strip(TRIMMED)))
    if not tags or any("|" in tag for tag in tags):
        raise IllegalFilter(f"{expression[:100]!r} has no tag or a single '|'. Write tags as 'paid || sent'.")
    if len(tags) > limits.FILTER_TAGS_MAX:
        raise IllegalFilter(f"It asks for {len(tags)} tags, the limit is {limits.FILTER_TAGS_MAX}.")
    if len(tags) == 1 and "||" not in expression:
        tags |= {expression}
        text = FilterText(TAG, expression)
    else:
        # The tags are sorted, so that the filters for `a || b` and `b||a` are equal. In an expression that
        # contains bars, `*` is an ordinary tag.
        text = FilterText(TAG, "||".join(sorted(tags)) + "||" * (len(tags) == 1))
    return TagFilter(tags, frozenset(map(tags_code, tags)), text)


_parse_kept = lru_cache(maxsize=limits.FILTERS_KEPT_MAX)(_parse)


def check_expression(expression: str, characters_max: int = limits.FILTER_CHARACTERS_MAX) -> None:
    """Raise `IllegalFilter` if an expression is too long or not valid Unicode."""
    if len(expression) > characters_max:
        raise IllegalFilter(f"It has {len(expression)} characters, the limit is {characters_max}.")
    try:
        expression.encode()
    except UnicodeEncodeError as error:
        raise IllegalFilter(f"Character {error.start + 1} is half of one: a lone surrogate.") from error
