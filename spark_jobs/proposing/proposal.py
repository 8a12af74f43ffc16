"""The parts of a proposal: names with their reasons, doubts with their remedies, and the orders' statuses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Choice(NamedTuple):
    """One name of a mapping: its section, its value in the user's stores, and the reason for the choice."""

    section: str
    name: str
    value: str | list[str]
    why: str


class Doubt(NamedTuple):
    """A text about what was not found or is uncertain, with the remedy.

    `is_blocking`: an audit would refuse the mapping, or report every order.
    """

    said: str
    is_blocking: bool = False


def not_found(what: str, section: str, name: str, may_be: Sequence[str] = ()) -> Doubt:
    """Return the doubt about a column that was not found, with the candidates for it."""
    it_may_be = f" (it may be {' or '.join(may_be)})" if may_be else ""
    return Doubt(
        f'Not found: {what}{it_may_be}. If there is such a column, write {name} = "..." in [{section}].'
    )


class StatusCount(NamedTuple):
    """A status of orders: number of rows, meaning as a status of the mapping ("" for none), and reason."""

    value: str | None
    rows: int
    meaning: str
    why: str


@dataclass(frozen=True, slots=True)
class Part:
    """The choices, doubts and statuses of one part of the mapping."""

    choices: tuple[Choice, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    statuses: tuple[StatusCount, ...] = ()

    @classmethod
    def joined(cls, parts: Iterable[Part]) -> Part:
        """Return the parts concatenated in their order."""
        listed = list(parts)
        return cls(
            tuple(one for part in listed for one in part.choices),
            tuple(one for part in listed for one in part.doubts),
            tuple(one for part in listed for one in part.statuses),
        )


@dataclass(frozen=True, slots=True)
class Proposal:
    """A mapping with its reasons. `has_carts` and `has_pushes`: the database also contains these."""

    choices: tuple[Choice, ...]
    doubts: tuple[Doubt, ...]
    statuses: tuple[StatusCount, ...]
    has_carts: bool = False
    has_pushes: bool = False

    @property
    def is_auditable(self) -> bool:
        """Return whether the mapping is complete enough for an audit: no doubt is blocking."""
        return not any(one.is_blocking for one in self.doubts)

    def document(self) -> dict[str, Any]:
        """Return the mapping as the document that `inputs.mapping.as_mapping` reads."""
        found: dict[str, Any] = {}
        for choice in self.choices:
            section = found
            for name in choice.section.split("."):
                section = section.setdefault(name, {})
            section[choice.name] = choice.value
        return found
