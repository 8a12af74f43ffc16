"""The password of an engine's user, in a file that is read again for each connection.

A password in a URL cannot change while the process runs, and is visible in the process list. A password in a
file can be replaced without a restart: open sessions are not affected, and new sessions use the new password.

Weak spot: between the change in the engine and the change of the file, new sessions are refused; open
sessions continue.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sharedlog.errors import SessionRefused

PARAMETER: Final = "password_file"
"""The URL parameter that holds the path."""
BYTES_MAX: Final = 4096


class PasswordFile:
    """A password in the first line of a file."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def __str__(self) -> str:
        return str(self.path)

    def read(self) -> str:
        """Return the current password; raise `SessionRefused` if none can be read."""
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
