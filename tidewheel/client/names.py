"""Validation of topic names, group names, keys and namespaces.

A value that is not a str is refused, even if it is falsy. Otherwise 0 and None would be treated as missing,
and a number in a query would match the timer with the same digits as its key. A group name is part of a URL
path, where ".", ".." and the slash have a special meaning. The broker validates the characters.
"""

from __future__ import annotations

from urllib.parse import quote

from tidewheel.errors import ClientMistake, ConfigurationError

_SHOWN_CHARACTERS = 80


def text(value: object, field: str) -> str:
    """Return a str unchanged. Raises `ClientMistake` with the field name for a value of another type."""
    if not isinstance(value, str):
        raise ClientMistake(f"{field} is {value!r:.{_SHOWN_CHARACTERS}}: give a text.")
    return value


def namespace_of(value: object) -> str:
    """Return a namespace. Raises `ConfigurationError` if it is not a str or contains '%'."""
    if not isinstance(value, str) or "%" in value:
        raise ConfigurationError(
            f"namespace is {value!r:.{_SHOWN_CHARACTERS}}: give a text without '%', which ends a namespace."
        )
    return value


def in_path(group: object) -> str:
    """Return a group name quoted for a URL path. Raises `ClientMistake` if the name is invalid."""
    name = text(group, "group")
    if "/" in name or not name.strip("."):
        raise ClientMistake(
            f"{name[:_SHOWN_CHARACTERS]!r} cannot be the name of a group: "
            "it has 1 to 120 letters, digits, '_', '-', '%' or '|'."
        )
    try:
        return quote(name, safe="")
    except UnicodeEncodeError as error:
        raise ClientMistake(f"The name of the group cannot be held by UTF-8: {error}.") from None
