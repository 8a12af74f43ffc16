"""The log of an Apache RocketMQ store, read where it lies; nothing in it is written.

RocketMQ publishes no durable offset: its log ends where no sound record follows. Bytes that are no record
with sound ones behind them are damage, and reading goes on behind it (RocketMQ itself would cut there). One
exception: after it cuts a torn tail RocketMQ leaves the old bytes in place and writes over them, so whole old
records can lie behind the end. They were stored before what now precedes them, and by that they are told.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from commitlog import layout
from commitlog.errors import NotAStore, StoreError, StoreLocked
from commitlog.limits import SEGMENT_BYTES_DEFAULT
from commitlog.log import imported
from commitlog.log.recovery import Damage, FoundRecord, LogScan
from services.store.read_only.reading import Overlay, StoreFiles


@dataclass(slots=True)
class RocketmqLog:
    """A log of whole segments; `end_offset` and `damaged` hold once `records` has run to its end."""

    files: StoreFiles
    segment_offsets: list[int]
    segment_bytes: int
    end_offset: int = 0
    damaged: list[Damage] = field(default_factory=list)

    @property
    def first_offset(self) -> int:
        """Where the kept log starts."""
        return self.segment_offsets[0] if self.segment_offsets else 0

    def records(self) -> Iterator[FoundRecord]:
        """Yield every sound record, in log order."""
        scan = self._scan()
        self.end_offset = self.first_offset
        newest_ms = 0
        for found in scan:
            if found.record.physical_offset > self.end_offset and found.record.store_ms < newest_ms:
                break
            self.end_offset = found.record.physical_offset + found.record_bytes
            newest_ms = max(newest_ms, found.record.store_ms)
            yield found
        self.damaged = [one for one in scan.damaged if one.end_offset <= self.end_offset]

    def _scan(self) -> LogScan:
        """Return all that lies in the segments counts as durable, so that damage is told from the end."""
        behind = self.segment_offsets[-1] + self.segment_bytes if self.segment_offsets else 0
        disk = Overlay(self.files)
        if behind:
            imported.write(disk, behind)
        layout.reset_durable(disk, behind)
        return LogScan(disk, self.segment_bytes)


def open_log(root: Path) -> RocketmqLog:
    """Return the log of the RocketMQ store in folder `root`; raise a `StoreError` that says what is wrong."""
    if not root.is_dir():
        raise NotAStore(f"{root} is no folder. Give the folder that holds a broker's commitlog.")
    files = StoreFiles(root)
    if files.size(layout.FORMAT) >= 0:
        raise NotAStore(f"{root} is a store of Tidewheel already. Copy it with: tidewheel store snapshot")
    if layout.COMMITLOG not in files.list(""):
        raise NotAStore(f"{root} holds no commitlog. Give the folder that a broker calls storePathRootDir.")
    refuse_if_live(root)
    return _whole_segments(files)


def _whole_segments(files: StoreFiles) -> RocketmqLog:
    """Return all segments but an empty last one, which RocketMQ would delete."""
    offsets = layout.segment_offsets(Overlay(files))
    sizes = {offset: files.size(layout.segment_path(offset)) for offset in offsets}
    if offsets and sizes[offsets[-1]] == 0:
        del sizes[offsets.pop()]
    segment_bytes = sizes[offsets[0]] if offsets else SEGMENT_BYTES_DEFAULT
    for offset, size in sizes.items():
        if size != segment_bytes or segment_bytes == 0 or offset % segment_bytes:
            raise StoreError(
                f"{layout.segment_path(offset)} has {size} bytes, the first {segment_bytes}, and each "
                "must begin at a multiple of that. Restore it from a backup; nothing was changed."
            )
    for offset, following in pairwise(offsets):
        if following != offset + segment_bytes:
            missing = layout.segment_path(offset + segment_bytes)
            raise StoreError(f"{missing} is missing. Restore it from a backup; nothing was changed.")
    return RocketmqLog(files, offsets, segment_bytes)


def refuse_if_live(root: Path) -> None:
    """Raise `StoreLocked` if a broker holds the store; a shared lock on the byte it locks cannot be had."""
    path = root / "lock"
    if not path.exists():
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0)
    except OSError as error:
        raise StoreLocked(f"A broker runs on {root}. Stop it, then try again.") from error
    finally:
        os.close(descriptor)
