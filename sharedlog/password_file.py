"""Reads an engine's password from a file each time a connection is opened.

A password in a URL is visible in the process list and cannot change while the process runs. A password in a
file can change without a restart: new sessions use the new password, and open sessions continue.

Limitation: after a password change in the engine, new sessions are rejected until the file is also changed.
Open sessions stay open.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sharedlog.errors import SessionRefused

PARAMETER: Final = "password_file"
"""URL parameter for the file path."""
BYTES_MAX: Final = 4096


class PasswordFile:
    """A file that contains a password on its first line."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def __str__(self) -> str:
        return str(self.path)

    def read(self) -> str:
        """Return the password.

        Raise `SessionRefused` if the file cannot be read or its first line is empty.
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
