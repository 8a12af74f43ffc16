"""Tag filters: `*` or nothing for all, else tags joined by `||`."""

from __future__ import annotations

from dataclasses import dataclass

from commitlog.errors import IllegalFilter
from consumequeue.entry import tags_code


@dataclass(slots=True, frozen=True)
class TagFilter:
    """The wanted tags and their hashes; None for all."""

    tags: frozenset[str] | None
    tags_codes: frozenset[int]

    def may_match(self, entry_tags_code: int) -> bool:
        """Whether a record with this hash may match; the record's tag decides (hashes collide)."""
        return self.tags is None or entry_tags_code in self.tags_codes

    def matches(self, tag: str) -> bool:
        """Whether a message with this tag is wanted."""
        return self.tags is None or tag in self.tags


def parse(expression: str) -> TagFilter:
    """The filter for a tag expression; raises `IllegalFilter`."""
    if expression.strip() in ("", "*"):
        return TagFilter(None, frozenset())
    tags = frozenset(tag.strip() for tag in expression.split("||"))
    if "" in tags or any("|" in tag for tag in tags):
        raise IllegalFilter(f"{expression!r} has an empty tag or a single '|'. Write tags as 'paid || sent'.")
    return TagFilter(tags, frozenset(map(tags_code, tags)))
