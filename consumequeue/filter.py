"""Filters: which records a consumer wants, judged by what is stored of them.

A filter is asked in two steps. `tags_codes` are the hashes that the wanted tags have in the queue's entries:
an entry with another hash is passed over and its record never read. `matches` judges the stored properties of
the records that are left, for hashes collide and an expression may ask for more than the tag.

Tag expressions are read as RocketMQ's `FilterAPI` reads them: `*` or nothing for all, else tags joined by
`||`, of which each is trimmed and empty ones are skipped. SQL expressions: `sql_filter.py`. We differ thrice,
where its reading asks for messages that there can never be, or not for all that there are:

| expression | RocketMQ            | here                  | because                           |
|------------|---------------------|-----------------------|-----------------------------------|
| `a | b`    | the tag `a | b`     | refused               | no tag holds a bar: a slip        |
| ` || `     | nothing, in silence | refused               | so is `||` there                  |
| ` a`       | the tag `a`         | the tags `a` and ` a` | what can be sent can be asked for |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from commitlog import limits, properties
from consumequeue.entry import tags_code
from consumequeue.errors import IllegalFilter
from tidewheel import property_names

TAG, SQL = "TAG", "SQL"


class FilterText(NamedTuple):
    """A filter as text: its type, `TAG` or `SQL`, and an expression that is read as the same filter."""

    type: str
    expression: str


class Filter(Protocol):
    """What a consumer wants."""

    @property
    def text(self) -> FilterText:
        """The filter as text; filters with equal texts are one filter."""

    @property
    def tags_codes(self) -> frozenset[int] | None:
        """The hashes of the tags that may match; None if any may, also that of a message without a tag."""

    def matches(self, stored: bytes) -> bool:
        """Return whether the record with these stored properties is wanted."""

    def work(self, stored_bytes: int) -> int:
        """Return what `matches` costs at most for stored properties of so many bytes, in `limits.WORK_NS`."""


@dataclass(slots=True, frozen=True)
class Everything:
    """The filter of a consumer that wants every message."""

    @property
    def text(self) -> FilterText:
        """`*`, whatever was written."""
        return _ALL

    @property
    def tags_codes(self) -> frozenset[int] | None:
        """None: any tag may match."""
        return None

    def matches(self, stored: bytes) -> bool:
        """Return True: every record is wanted."""
        return True

    def work(self, stored_bytes: int) -> int:
        """Return 0: nothing is looked at."""
        return 0


@dataclass(slots=True, frozen=True)
class Tagged:
    """The filter of a tag expression: messages that have one of these tags."""

    tags: frozenset[str]
    tags_codes: frozenset[int] | None
    text: FilterText = field(compare=False)

    def matches(self, stored: bytes) -> bool:
        """Return whether the tag itself is wanted, not only its hash."""
        return properties.value_of(stored, property_names.TAG) in self.tags

    def work(self, stored_bytes: int) -> int:
        """Return the cost of one search in the stored properties."""
        return stored_bytes // _TAG_SEARCHED_BYTES


_TAG_SEARCHED_BYTES: Final = 8 * 1024
"""How many bytes of properties are searched for a tag in `limits.WORK_NS`."""
_ALL = FilterText(TAG, "*")
EVERYTHING: Filter = Everything()
TRIMMED = "".join(map(chr, range(0x21)))
"""What Java's `String.trim` takes away: a tag may begin or end with any other space."""


def parse_tags(expression: str) -> Filter:
    """Return the filter of a tag expression, reading a long one anew each time; raise `IllegalFilter`."""
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
        # In one order, so that `a || b` and `b||a` are one filter. The bars keep the tag `*` a tag.
        text = FilterText(TAG, "||".join(sorted(tags)) + "||" * (len(tags) == 1))
    return Tagged(tags, frozenset(map(tags_code, tags)), text)


_parse_kept = lru_cache(maxsize=limits.FILTERS_KEPT_MAX)(_parse)


def check_expression(expression: str, characters_max: int = limits.FILTER_CHARACTERS_MAX) -> None:
    """Raise `IllegalFilter` for an expression, of whatever language, that is too long or no Unicode text."""
    if len(expression) > characters_max:
        raise IllegalFilter(f"It has {len(expression)} characters, the limit is {characters_max}.")
    try:
        expression.encode()
    except UnicodeEncodeError as error:
        raise IllegalFilter(f"Character {error.start + 1} is half of one: a lone surrogate.") from error
