"""Reads the password of an engine user from a file. The file is read for each new connection.

A password in a URL cannot be changed while the process is running, and is visible in the process list. A
password in a file can be changed without a restart. New sessions use the new password, and open sessions are
not affected.

Weak spot: After the password has been changed in the engine, the engine refuses new sessions until the file
has been changed as well. Open sessions are not closed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sharedlog.errors import SessionRefused

PARAMETER: Final = "password_file"
"""The URL parameter that specifies the path of the file."""
BYTES_MAX: Final = 4096


class PasswordFile:
    """A file whose first line contains a password."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def __str__(self) -> str:
        return str(self.path)

    def read(self) -> str:
        """Return the password from the file.

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
