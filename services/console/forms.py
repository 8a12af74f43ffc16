"""Fields of forms that say what a message is: its body, as text or in base64, its keys and properties."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any, Final, TypeVar

from services.console.page import Asked
from tidewheel.errors import ClientMistake

Rate = TypeVar("Rate", int, float)
TEXT, BASE64 = "text", "base64"
EDITED_CHARACTERS_MAX: Final = 64 * 1024


def body_fields(found: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a body, as the HTTP interface has it; `is_long`: it is left out of the form."""
    body, encoding = found.get("body"), TEXT
    if body is None or not is_typed(body):
        encoding = BASE64
        body = found["body_base64"] if body is None else base64.b64encode(body.encode()).decode()
    is_long = len(body) > EDITED_CHARACTERS_MAX
    return {"body": "" if is_long else body, "encoding": encoding, "is_long": is_long}


def is_typed(body: str) -> bool:
    """Return whether a form carries a text unchanged: it has no control characters but line feeds, tabs."""
    return all(one.isprintable() or one in "\n\t " for one in body)


def body_of(asked: Asked) -> dict[str, str]:
    """Return the body of the form; line breaks of forms, CR LF, become LF."""
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
    """Return the lines of a field that are not blank."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def pairs_of(text: str) -> dict[str, str]:
    """Return NAME=VALUE lines as properties; raise `ClientMistake`."""
    pairs = [line.partition("=") for line in lines_of(text)]
    if wrong := [name for name, sign, _ in pairs if not sign or not name]:
        raise ClientMistake(f"The property {wrong[0][:40]!r} has no value: write NAME=VALUE, one a line.")
    return {name.strip(): value for name, _, value in pairs}


def pairs_text(properties: dict[str, str]) -> str:
    """Return properties as NAME=VALUE lines."""
    return "\n".join(f"{name}={value}" for name, value in properties.items())
