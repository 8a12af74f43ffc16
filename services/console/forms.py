"""Form fields of a message: its body as text or base64, its keys and its properties.

Submitting a form unchanged returns the same message. `unfit` gives the reason for which a message cannot be
edited in a form. `seen_in` reads what a form of any page showed.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from services.console.page import Asked
from tidewheel.errors import ClientMistake

Rate = TypeVar("Rate", int, float)
TEXT, BASE64 = "text", "base64"
EDITED_CHARACTERS_MAX: Final = 64 * 1024
DIGITS_MAX: Final = 18
SEEN_LEVELS_MAX: Final = 3
"""The number of levels of objects and lists in what a form showed: no form shows more than two."""
NOT_CARRIED: Final = frozenset("\n\r\0")
"""Characters that a field of one line, or a line of a field, does not carry unchanged."""
TEXTS: Final = {"tag": "tag", "message_group": "message group", "lite_topic": "lite topic"}
"""The texts of a message that are fields of one line, with their names in sentences."""


def body_fields(found: dict[str, Any]) -> dict[str, Any]:
    """Return the form fields of a body in an HTTP response.

    If `is_long` is true, the body is too long for the form.
    """
    body, encoding = found.get("body"), TEXT
    if body is None or not is_typed(body):
        encoding = BASE64
        body = found["body_base64"] if body is None else base64.b64encode(body.encode()).decode()
    is_long = len(body) > EDITED_CHARACTERS_MAX
    return {"body": "" if is_long else body, "encoding": encoding, "is_long": is_long}


def is_typed(body: str) -> bool:
    """Return whether a form transmits a text unchanged.

    It must not contain control characters other than LF and tab.
    """
    return all(one.isprintable() or one in "\n\t " for one in body)


def body_of(asked: Asked) -> dict[str, str]:
    """Return the body from the form. CR LF line breaks become LF."""
    if asked.get("encoding", TEXT) == TEXT:
        return {"body": asked.whole("body").replace("\r\n", "\n")}
    try:
        base64.b64decode(asked.get("body"), validate=True)
    except binascii.Error as error:
        raise ClientMistake(f"The body is no base64: {error}.") from error
    return {"body_base64": asked.get("body")}


def rate_of(text: str, parse: Callable[[str], Rate]) -> Rate:
    """Return the rate of a form per second. Raise `ClientMistake`."""
    try:
        return parse(text)
    except ValueError as error:
        raise ClientMistake(f"The rate is {text[:20]!r}: {error}.") from error


def lines_of(text: str) -> list[str]:
    """Return the nonblank lines of a field, which end with LF or CR LF."""
    return [line for line in text.replace("\r\n", "\n").split("\n") if line.strip()]


def pairs_of(text: str) -> dict[str, str]:
    """Parse NAME=VALUE lines. Names are stripped. Raises `ClientMistake` for any other line."""
    pairs = [line.partition("=") for line in lines_of(text)]
    if wrong := [name for name, sign, _ in pairs if not sign or not name.strip()]:
        raise ClientMistake(f"The property {wrong[0][:40]!r} has no value: write NAME=VALUE, one a line.")
    return {name.strip(): value for name, _, value in pairs}


def pairs_text(properties: dict[str, str]) -> str:
    """Return properties as NAME=VALUE lines."""
    return "\n".join(f"{name}={value}" for name, value in properties.items())


def unfit(found: dict[str, Any]) -> str:
    """Return why a form would change a message in an HTTP response, or an empty string if it would not."""
    lines = [(one, found.get(field, "")) for field, one in TEXTS.items()]
    lines += [("key", key) for key in found["keys"]]
    lines += [("property", f"{name}={value}") for name, value in found["properties"].items()]
    for what, text in lines:
        if not NOT_CARRIED.isdisjoint(text) or (text and not text.strip()):
            return f"its {what} {text[:40]!r} is blank, or has a line break or a null character"
    for name in found["properties"]:
        if "=" in name or name != name.strip():
            return f"its property {name[:40]!r} has an equals sign in its name, or blanks around it"
    return ""


def is_count(text: str) -> bool:
    """Return whether a text is a whole number from 0 on, and short enough to be one of this system."""
    return text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX


def seen_in(asked: Asked, field: str) -> dict[str, Any]:
    """Return what a form showed, which it contains as JSON. Raises `ClientMistake`."""
    with suppress(ValueError, RecursionError):
        seen = json.loads(asked.whole(field))
        if isinstance(seen, dict) and has_levels(seen, SEEN_LEVELS_MAX):
            return seen
    raise not_shown()


def has_levels(value: object, most: int) -> bool:
    """Return whether a JSON value has at most as many levels of objects and lists.

    A deeper one could be parsed here, and too deep to be written as JSON further down the stack.
    """
    if not isinstance(value, dict | list):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return most > 0 and all(has_levels(one, most - 1) for one in inner)


def not_shown() -> ClientMistake:
    """Return the error for a form whose hidden fields cannot be what it showed."""
    return ClientMistake("What the form showed is missing. Open the form again, and decide anew.")
