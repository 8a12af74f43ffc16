"""Sets aside folders of derived files that cannot be deleted or written.

The folder is renamed, and its files are rebuilt from the log in a new folder. A folder set aside is never
read. The next startup deletes it if possible.
"""

from __future__ import annotations

from commitlog.disk.descriptors import OUT_OF_DESCRIPTORS
from commitlog.disk.disk import Disk, SyncFailed
from commitlog.errors import NO_ROOM
from commitlog.layout import is_aside


def put_aside(disk: Disk, folder: str, prefix: str) -> None:
    """Rename a folder to `prefix` plus a number.

    If this fails, raise OSError with advice for the operator.
    """
    names, number = {*disk.list("")}, 1
    while (free := f"{prefix}{number}") in names:
        number += 1
    try:
        disk.rename(folder, free)
    except SyncFailed:
        raise
    except OSError as error:
        what = (
            f"{folder} cannot be renamed to {free} ({error.strerror or error}). Delete the folder {folder} "
            "of the store, as root if need be: all in it is made anew from the log"
        )
        raise OSError(error.errno, what, folder) from error


def delete_aside(disk: Disk) -> None:
    """Delete the folders set aside. Ignore errors other than `SyncFailed`."""
    for name in filter(is_aside, disk.list("")):
        try:
            disk.delete(name)
        except SyncFailed:
            raise
        except OSError:  # The next startup retries the deletion.
            continue


def is_unusable(disk: Disk, folder: str) -> bool:
    """Return whether no file can be created in a folder, for a reason specific to that folder.

    Raise `SyncFailed` if a sync fails.
    """
    probe = f"{folder}/unfinished"
    try:
        disk.delete(probe)
        disk.write(probe, 0, b"-")
        disk.delete(probe)
    except SyncFailed:
        raise
    except OSError as error:
        return error.errno not in OUT_OF_DESCRIPTORS and error.errno not in NO_ROOM
    return False
