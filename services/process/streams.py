"""The standard streams of a process: closed streams are opened, and write failures are handled.

descriptor        if it is closed
0, 1, 2           opened on /dev/null in the opposite mode. No other file gets the number (a child would write
                  into it, and libuv aborts), and its use fails as before.

stream            if a write fails
sys.stdout        raises `StdoutFailed` once, or BrokenPipeError for a closed pipe. Further output is
                  discarded, so that the flush at the end of the process does not fail again.
sys.stderr        the text is discarded
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TextIO, cast

from services.process.errors import StdoutFailed

STDIN, STDOUT, STDERR = 0, 1, 2
_UNUSABLE: Final = ((STDIN, os.O_WRONLY), (STDOUT, os.O_RDONLY), (STDERR, os.O_RDONLY))


class Unfailing:
    """A stream that discards text that cannot be written, for example because the terminal is closed or the
    disk is full.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text, ignoring errors."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream, ignoring errors."""
        with suppress(OSError):
            self._stream.flush()


class Failing:
    """A stream for results. After a write failure, it raises `StdoutFailed` and discards further output."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text. Raises `StdoutFailed`, or BrokenPipeError."""
        with self._failing():
            return self._stream.write(text)

    def flush(self) -> None:
        """Flush the stream. Raises `StdoutFailed`, or BrokenPipeError."""
        with self._failing():
            self._stream.flush()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._drop()
            if isinstance(error, BrokenPipeError):
                raise
            raise StdoutFailed(
                f"{error.strerror}. See where it goes. What the command was to change may be changed: look "
                "before you repeat it."
            ) from None

    def _drop(self) -> None:
        """Redirect the stream to /dev/null."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


@contextmanager
def standard_streams() -> Iterator[None]:
    """Install the standard streams described above."""
    open_closed()
    stdin, stdout, stderr = sys.stdin, sys.stdout, sys.stderr
    sys.stdin = stdin or os.fdopen(STDIN, closefd=False)
    sys.stdout = cast(TextIO, Failing(stdout or os.fdopen(STDOUT, "w", closefd=False)))
    sys.stderr = cast(TextIO, Unfailing(stderr or os.fdopen(STDERR, "w", closefd=False)))
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = stdin, stdout, stderr


def open_closed() -> None:
    """Open closed standard descriptors, so that no other file gets their numbers."""
    for descriptor, mode in _UNUSABLE:
        try:
            os.fstat(descriptor)
        except OSError:
            got = os.open(os.devnull, mode)  # the lowest free descriptor
            os.set_inheritable(descriptor, True)
            assert got == descriptor, "a lower descriptor was free"
