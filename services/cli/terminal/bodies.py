"""Message bodies on the command line: a text, @FILE, or - for stdin.

The content of a file or stdin is used unchanged, including a trailing line break. @@ begins a text that
begins with @.
"""

from __future__ import annotations

import shlex
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO, Final

from commitlog import limits
from services.settings.errors import InputUnreadable
from tidewheel.errors import BodyTooLarge
from tidewheel.message_rules import ELSEWHERE

_TEXT_CHARACTERS_MAX: Final = 256 * 1024
STDIN: Final = "stdin"
RAW: Final = "http://HOST:PORT/api/topics/TOPIC/messages"
"""Where messages of any bytes are sent, which no JSON contains."""
HELP = "The text, @FILE, or - for stdin; @@ is an @."


class NoText(InputUnreadable):
    """The content of a file or stdin is not UTF-8."""


def body_fields(said: str) -> dict[str, str]:
    """Return the body fields of a request. A long text is sent in base64, which limits its encoded size.

    Raises `InputUnreadable` or `BodyTooLarge`. If a file is no text, the error names the call that sends it.
    """
    try:
        text = body_text(said)
    except NoText as error:
        file = shlex.quote("@-" if said == "-" else said)
        sent = f"curl -H content-type:application/octet-stream --data-binary {file} {RAW}"
        raise InputUnreadable(f"{error.detail} Or send its bytes over HTTP:  {sent}") from error
    if len(text) <= _TEXT_CHARACTERS_MAX:
        return {"body": text}
    return {"body_base64": b64encode(text.encode()).decode()}


def body_text(said: str, bytes_max: int = limits.BODY_BYTES_MAX) -> str:
    """Return the body as text. Raises `NoText`, `InputUnreadable` or `BodyTooLarge`."""
    if said.startswith("@@"):
        return said[1:]
    if said in ("-", "@-"):
        return decoded(read(nullcontext(sys.stdin.buffer), STDIN, bytes_max), STDIN, bytes_max)
    if said.startswith("@"):
        path = said[1:]
        return decoded(read(opened(path), path, bytes_max), path, bytes_max)
    return said


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """Open a file."""
    with Path(path).open("rb") as file:
        yield file


def read(source: AbstractContextManager[BinaryIO], where: str, bytes_max: int) -> bytes:
    """Return the content of a file or stdin, up to one byte more than the limit."""
    try:
        with source as file:
            return file.read(bytes_max + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        hint = "" if where == STDIN else " A text that begins with @ is written @@."
        raise InputUnreadable(f"{where}: {reason}.{hint}") from error


def decoded(body: bytes, where: str, bytes_max: int) -> str:
    """Decode a body as UTF-8. Raises `NoText` or `BodyTooLarge`."""
    if len(body) > bytes_max:
        raise BodyTooLarge(f"{where} is longer than {bytes_max} bytes. {ELSEWHERE}")
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise NoText(f"{where} is no UTF-8 text (byte {error.start}). Give it in UTF-8.") from error
