"""A page of the console: a model that is returned as HTML or JSON, and the actions of its forms.

    GET  path           the model as HTML, or as JSON with `Accept: application/json` or `as=json`
    POST path/VERB      an action, which redirects to a page (303) that shows its result

A page with `blank` keeps its form when a field is refused: it is shown without results, with the fields as
they were entered and the error, and with the status of the error. An action that raises `Unconfirmed` shows
its page again, too, with what the user must confirm.

`read` and actions call the broker and block. They run in threads.
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
    """The fields of a query string or a form, stripped except in `whole` and `as_typed`."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._whole = fields
        self._fields = {name: text.strip() for name, text in fields.items()}

    def get(self, name: str, default: str = "") -> str:
        """Return a field, or the default if it is missing or empty."""
        return self._fields.get(name) or default

    def whole(self, name: str) -> str:
        """Return a field without stripping it, or an empty string if it is missing."""
        return self._whole.get(name, "")

    def required(self, name: str, meaning: str) -> str:
        """Return a field. Raises `ClientMistake` if it is missing or empty."""
        if not (text := self.get(name)):
            raise ClientMistake(f"{meaning} is missing: fill it in.")
        return text

    def given(self, *names: str) -> dict[str, str]:
        """Return the named fields that are not empty."""
        return {name: self._fields[name] for name in names if self._fields.get(name)}

    def as_typed(self, *names: str) -> dict[str, str]:
        """Return the named fields that are not blank, without stripping them."""
        return {name: self._whole[name] for name in names if self._fields.get(name)}


class Unconfirmed(ClientMistake):
    """The request cannot be accepted.

    The user must confirm the action. Its page is shown again with `fields` in its model; the field `here` is
    the query of the page.
    """

    def __init__(self, said: str, fields: Model | None = None) -> None:
        super().__init__(said)
        self.fields = fields or {}


class Done(NamedTuple):
    """The result message of an action and the path of the next page."""

    said: str
    path: str


Act = Callable[[Api, Asked], Done]


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the console. `entry` is its menu name, which is empty for pages outside the menu.

    `every_ms` is the refresh interval of a visible page, or 0 for no refresh. `blank` returns the model of
    the form without results.
    """

    path: str
    title: str
    template: str
    read: Callable[[Api, Asked], Model]
    entry: str = ""
    acts: Mapping[str, Act] = field(default_factory=dict)
    every_ms: int = REFRESH_MS
    blank: Callable[[Api, Asked], Model] | None = None


@dataclass(frozen=True, slots=True)
class File:
    """A file that only signed-in users can download. `read` returns its text."""

    path: str
    media_type: str
    read: Callable[[Api, Asked], str]
