"""The error for a file that the disk cannot read, for tools that examine a store."""

from __future__ import annotations

from commitlog.errors import StoreError


class FileUnreadable(StoreError, OSError):
    """The disk cannot read a file of the store."""

    def __init__(self, detail: str, error: OSError | None = None) -> None:
        """`error` is the error of the operating system, for the core, which can start without some files."""
        super().__init__(detail)
        if error is not None:
            self.errno, self.strerror, self.filename = error.errno, error.strerror, error.filename

    def __str__(self) -> str:
        return str(self.args[0])
