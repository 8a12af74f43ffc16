"""The file `imported`, which holds the log offset where an imported log ends.

An import copies an Apache RocketMQ log unchanged. By default, RocketMQ records have no CRC that covers the
whole record. The `imported` file holds the end offset of the copied log:

    below it         a record without the CRC property is intact if its length fields are consistent, its body
                     matches the body CRC, and its offset is correct, as in RocketMQ's own checks
    from it on       all records were written by Tidewheel; a record without a correct CRC is damaged

A flipped bit in the topic or properties of a copied record is thus not detected if the record has no CRC
property. RocketMQ does not detect it either. All other checks also apply to copied records, and a CRC
property is verified if present. The file has the same format as `durable` (see `commitlog.layout`) and is
written once and synced. If the file is missing, all records in the store were written by Tidewheel.
"""

from __future__ import annotations

from typing import Final

from commitlog import layout
from commitlog.disk.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.snapshots.snapshot import Snapshot

PATH: Final = "imported"


def read(disk: Disk) -> int:
    """Return the log offset where Tidewheel's own records begin.

    Return 0 if the store was not imported. Raise `StoreDamaged` if the file has no valid offset, or OSError
    if the disk fails.
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
    """Durably record that the log below `offset` was imported. Raise OSError if the disk fails."""
    disk.write(PATH, 0, layout.durable_lines(offset))
    disk.sync(PATH)


def check_start(disk: Disk, start: Snapshot | None) -> None:
    """Raise `StoreDamaged` if recovery would need records that only RocketMQ can interpret."""
    imported_offset = read(disk)
    if imported_offset and (start is None or start.offset < imported_offset):
        raise StoreDamaged(
            "The store was imported and its snapshots are gone: what was delivered, ended or acknowledged "
            "before the import is in no record. Restore snapshots/ from a backup, or import again."
        )
