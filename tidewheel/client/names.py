"""Names as an application gives them: topics, groups, keys and namespaces are texts.

A value of another type is refused, whether true or false: 0 and None would count as "not given", and a number
in a query would look like the name of another timer. A group is a part of a path, where URLs give ".", ".."
and a slash a meaning of their own. The broker judges the characters.
"""

from __future__ import annotations

from urllib.parse import quote

from tidewheel.errors import ClientMistake, ConfigurationError

_SHOWN_CHARACTERS = 80


def text(value: object, field: str) -> str:
    """Return a text; raise `ClientMistake` for a value of another type, with its `field`."""
    if not isinstance(value, str):
        raise ClientMistake(f"{field} is {value!r:.{_SHOWN_CHARACTERS}}: give a text.")
    return value


def namespace_of(value: object) -> str:
    """Return a namespace; raise `ConfigurationError` for one that would reach into another."""
    if not isinstance(value, str) or "%" in value:
        raise ConfigurationError(
            f"namespace is {value!r:.{_SHOWN_CHARACTERS}}: give a text without '%', which ends a namespace."
        )
    return value


def in_path(group: object) -> str:
    """Return a group's name as a part of a path; raise `ClientMistake` for one that no group can have."""
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
