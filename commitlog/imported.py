"""Where our own writing begins in a store that was imported.

An import copies an Apache RocketMQ log as it is, and RocketMQ writes no whole-record CRC unless told to. The
file `imported` names the log offset at which the copied log ended:

    below it         a record without the CRC property is sound when its lengths add up, its body matches its
                     body CRC and it names its own place; what RocketMQ itself checks, and no more is there
    from it on       every record is ours, and one without a right whole-record CRC is damaged

So a flipped bit in a topic or property of a copied record stays unseen, as it did before the copy; nowhere
else does anything become weaker. A copied record that has the CRC property is held to it. The file has the
form of `durable` (see `commitlog.layout`), is written once and synced; a store without it is all our own.
"""

from __future__ import annotations

from typing import Final

from commitlog import layout
from commitlog.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.snapshot import Snapshot

PATH: Final = "imported"


def read(disk: Disk) -> int:
    """Return the log offset from which all records are our own; 0 in a store that was never imported.

    Raise `StoreDamaged` where the file does not say it, or OSError.
    """
    size = disk.size(PATH)
    if size < 0:
        return 0
    offset = layout.parse_durable(disk.read(PATH, 0, size))
    if offset == 0:
        raise StoreDamaged(
            "The file 'imported' does not say where the imported log ended. Restore it from a backup, "
            "or import again into an empty folder."
        )
    return offset


def write(disk: Disk, offset: int) -> None:
    """Write, durably, that the log below `offset` was copied; raise OSError."""
    disk.write(PATH, 0, layout.durable_lines(offset))
    disk.sync(PATH)


def check_start(disk: Disk, start: Snapshot | None) -> None:
    """Raise `StoreDamaged` if a start would have to read what only RocketMQ could have understood."""
    imported_offset = read(disk)
    if imported_offset and (start is None or start.offset < imported_offset):
        raise StoreDamaged(
            "The store was imported and its snapshots are gone: what was delivered, ended or acknowledged "
            "before the import is in no record. Restore snapshots/ from a backup, or import again."
        )
