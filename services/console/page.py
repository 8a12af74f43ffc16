"""A page: one model with two faces, HTML and JSON, and the acts that its forms post.

    GET  path           the model in a template; with `Accept: application/json`, or `as=json`, as it is
    POST path/VERB      an act: it says what became of it, and leads back to a page (303)

`read` and `act` call the broker and block; they run in threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from services.http.api import Api
from tidewheel.errors import ClientMistake

Model = dict[str, Any]


REFRESH_MS: Final = 5_000


class Asked:
    """The fields of a URL or a form, as texts without the blanks around them."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._whole = fields
        self._fields = {name: text.strip() for name, text in fields.items()}

    def get(self, name: str, default: str = "") -> str:
        """Return a field; the default if it is missing or empty."""
        return self._fields.get(name) or default

    def whole(self, name: str) -> str:
        """Return a field with the blanks around it; empty if it is missing."""
        return self._whole.get(name, "")

    def required(self, name: str, meaning: str) -> str:
        """Return a field; raise `ClientMistake` if it is missing or empty."""
        if not (text := self.get(name)):
            raise ClientMistake(f"{meaning} is missing: fill it in.")
        return text

    def given(self, *names: str) -> dict[str, str]:
        """Return those of the fields that are not empty."""
        return {name: self._fields[name] for name in names if self._fields.get(name)}


class Done(NamedTuple):
    """The outcome of an act in words, and the path of the page that follows."""

    said: str
    path: str


Act = Callable[[Api, Asked], Done]


@dataclass(frozen=True, slots=True)
class Page:
    """One page; `entry` is its name in the menu, empty for those that others lead to.

    `every_ms` is how often a page that is looked at is asked for again; 0: never.
    """

    path: str
    title: str
    template: str
    read: Callable[[Api, Asked], Model]
    entry: str = ""
    acts: Mapping[str, Act] = field(default_factory=dict)
    every_ms: int = REFRESH_MS


@dataclass(frozen=True, slots=True)
class File:
    """A file that the console serves unchanged, to signed-in sessions only; `read` returns its text."""

    path: str
    media_type: str
    read: Callable[[Api, Asked], str]
