"""Defines the errors that concern the files of a store or the disk.

    StoreError
    |-- NoRecords                              the store has no records yet
    |-- StoreLocked, NotAStore, StoreTooNew, StoreTooOld    the broker must not open the folder
    |-- StoreDamaged                           the store contains damaged bytes
    |-- DiskFailed, NoRoom                     the disk is full or fails
    ConfigurationError
    |-- AssertionsOff                          Python runs without assertions

The groups of errors and the rules for them are described in `tidewheel/errors.py`.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from tidewheel.errors import ConfigurationError, TidewheelError

NO_ROOM: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
"""The error numbers for a full disk and an exceeded quota."""


class StoreError(TidewheelError):
    """The store cannot be used."""

    code, exit_code = "TW-110", 5


class NoRecords(StoreError):
    """The store cannot be used."""


class StoreLocked(StoreError):
    """The store is open in another broker."""

    code, exit_code = "TW-102", 3


class StoreOfCluster(StoreError):
    """The store belongs to a node of a cluster."""

    code, exit_code = "TW-107", 2


class StoreDamaged(StoreError):
    """The store contains damaged bytes."""

    code = "TW-111"


class StoreTooNew(StoreError):
    """The store was written by a newer version."""

    code = "TW-105"


class StoreTooOld(StoreError):
    """The store was written by a version that is no longer supported."""

    code = "TW-108"


class NotAStore(StoreError):
    """The folder is not a Tidewheel store."""

    code = "TW-104"


class NoRoom(StoreError):
    """The disk of the store has no room."""

    code = "TW-222"


class DiskFailed(StoreError):
    """The disk of the store failed."""

    code = "TW-221"


class AssertionsOff(ConfigurationError):
    """Tidewheel does not run without Python's assertions."""

    code, exit_code = "TW-128", 3


def disk_error(error: OSError, doing: str, then: str) -> StoreError:
    """Return the error for a failed system call.

    The error contains the operation, the path, the reason, and advice. `then` is the advice that applies
    after the disk has been repaired.
    """
    place = f" at {os.fspath(error.filename)!s}" if error.filename is not None else ""
    reason = f"{doing}{place} failed: {error.strerror or error} (errno {error.errno})."
    if error.errno in NO_ROOM:
        return NoRoom(f"{reason} Free some space. {then}")
    return DiskFailed(f"{reason} The system's log (dmesg) says more. {then}")
