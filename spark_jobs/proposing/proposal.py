"""What is proposed: names with their reasons, doubts with what to write, and the statuses that there are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Choice(NamedTuple):
    """One name of a mapping: where it stands, what the user calls it, and why it is thought to be that."""

    section: str
    name: str
    value: str | list[str]
    why: str


class Doubt(NamedTuple):
    """What was not found, or may be otherwise: a sentence that ends with what to write.

    `is_blocking`: an audit would refuse, or accuse every order.
    """

    said: str
    is_blocking: bool = False


def not_found(what: str, section: str, name: str, may_be: Sequence[str] = ()) -> Doubt:
    """Return the doubt about a column that was not found, with the columns that it may be."""
    it_may_be = f" (it may be {' or '.join(may_be)})" if may_be else ""
    return Doubt(
        f'Not found: {what}{it_may_be}. If there is such a column, write {name} = "..." in [{section}].'
    )


class StatusCount(NamedTuple):
    """A status that orders have: how many, and which of ours it is taken for; "" for none."""

    value: str | None
    rows: int
    meaning: str
    why: str


@dataclass(frozen=True, slots=True)
class Part:
    """What was found of one part of the mapping."""

    choices: tuple[Choice, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    statuses: tuple[StatusCount, ...] = ()

    @classmethod
    def joined(cls, parts: Iterable[Part]) -> Part:
        """Return all parts as one, in their order."""
        listed = list(parts)
        return cls(
            tuple(one for part in listed for one in part.choices),
            tuple(one for part in listed for one in part.doubts),
            tuple(one for part in listed for one in part.statuses),
        )


@dataclass(frozen=True, slots=True)
class Proposal:
    """A mapping with its reasons; `has_carts` and `has_pushes`: the database has these, too."""

    choices: tuple[Choice, ...]
    doubts: tuple[Doubt, ...]
    statuses: tuple[StatusCount, ...]
    has_carts: bool = False
    has_pushes: bool = False

    @property
    def is_auditable(self) -> bool:
        """Return whether an audit by it says something of the orders."""
        return not any(one.is_blocking for one in self.doubts)

    def document(self) -> dict[str, Any]:
        """Return it as the document that `inputs.mapping.as_mapping` reads."""
        found: dict[str, Any] = {}
        for choice in self.choices:
            section = found
            for name in choice.section.split("."):
                section = section.setdefault(name, {})
            section[choice.name] = choice.value
        return found
