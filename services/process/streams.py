"""The standard streams of a process: always there, and their failures told by errors of ours.

descriptor        where it is closed
0, 1, 2           opened on /dev/null the wrong way round, so that no file, socket or pipe of ours gets the
                  number (a child would write into it, and libuv aborts), and its use fails as before

stream            a write that fails
sys.stdout        raises `StdoutFailed` once, for a pipe that nobody reads BrokenPipeError; what follows is
                  dropped, so that the end of the process, which flushes, does not fail again
sys.stderr        is dropped: there is nobody to tell
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
    """A stream that drops what cannot be written: the terminal is gone, or the disk of a log file is full."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text, if it can be."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush what was written, if it can be."""
        with suppress(OSError):
            self._stream.flush()


class Failing:
    """A stream of results: raises `StdoutFailed` when they cannot be written, and drops what follows."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text; raise `StdoutFailed`, or BrokenPipeError."""
        with self._failing():
            return self._stream.write(text)

    def flush(self) -> None:
        """Flush what was written; raise `StdoutFailed`, or BrokenPipeError."""
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
        """Let what the stream holds and gets from now on go nowhere."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


@contextmanager
def standard_streams() -> Iterator[None]:
    """Have the standard streams behave as described above."""
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
    """Open the standard descriptors that are closed, so that nothing else gets their numbers."""
    for descriptor, mode in _UNUSABLE:
        try:
            os.fstat(descriptor)
        except OSError:
            got = os.open(os.devnull, mode)  # the lowest that is free
            os.set_inheritable(descriptor, True)
            assert got == descriptor, "a lower descriptor was free"
