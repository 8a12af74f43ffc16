"""Reads the password for an engine from a file each time a connection is opened.

A password in a URL is visible in the process list and cannot be changed while the process runs. A password in
a file can be changed without a restart. New sessions use the new password, and existing sessions remain open.

Limitation: after the password has been changed in the engine, new sessions are rejected until the password in
the file is changed too. Existing sessions are not affected.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sharedlog.errors import SessionRefused

PARAMETER: Final = "password_file"
"""The URL parameter that specifies the path of the file."""
BYTES_MAX: Final = 4096


class PasswordFile:
    """A file with a password on the first line."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def __str__(self) -> str:
        return str(self.path)

    def read(self) -> str:
        """Return the password on the first line of the file.

        Raise `SessionRefused` if the file cannot be read or the first line is empty.
        """
        try:
            with self.path.open("rb") as file:
                line = file.read(BYTES_MAX).partition(b"\n")[0].removesuffix(b"\r").decode()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
            raise SessionRefused(
                f"Its {PARAMETER} {self.path} cannot be read: {reason}. Put the password there; it is read "
                "again for each connection."
            ) from error
        if not line:
            raise SessionRefused(f"Its {PARAMETER} {self.path} has no password in its first line.")
        return line
