"""Reads the kept records of deleted segments from keep files, as if the log still contained them.

The records are open and expired half messages and held timers, which retention has copied (see
`commitlog.log.keep`). Each record contains its own log offset. Only records from before the start of the log
are read. A record may be in several files, and has one row. Limitation: damaged bytes in a keep file have no
row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from commitlog import layout
from commitlog.log.keep import records
from commitlog.log.published_log import StoreLog
from spark_jobs.log.columns.records import Records
from spark_jobs.log.columns.shapes import Shapes
from spark_jobs.log.kept.timers import KeptTimers
from spark_jobs.log.scan.decode import Wanted, chunk_batches
from spark_jobs.log.scan.walk import Chunk


@dataclass(frozen=True, slots=True)
class Kept:
    """The records in all keep files of a folder with log offsets below `before_offset`.

    Records below `imported_until` may lack a CRC (see `commitlog.log.imported`).
    """

    folder: str
    before_offset: int
    imported_until: int


def kept_parts(store: Path, log: StoreLog, until: int | None = None) -> list[Kept | KeptTimers]:
    """Return the parts to read in addition to the log: kept records and timers from before the log.

    If `until` is given, return only those with log offsets below it. Return an empty list if the log begins
    at offset 0, or if the store is Apache RocketMQ's.
    """
    before_offset = log.first_offset if until is None else min(until, log.first_offset)
    if before_offset <= 0 or not log.ours:
        return []
    parts: list[Kept | KeptTimers] = []
    if _holds_files(store / layout.KEEP):
        parts.append(Kept(str(store / layout.KEEP), before_offset, log.imported_until))
    if _holds_files(store / layout.TIMERS):
        parts.append(KeptTimers(str(store), before_offset, log.imported_until))
    return parts


def _holds_files(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def kept_batches(part: Kept, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Yield the selected kept records, one batch per file.

    A file that is deleted during the read is skipped, because its records are no longer needed.
    """
    seen: set[int] = set()
    for path in sorted(Path(part.folder).iterdir()):
        try:
            stored = path.read_bytes()
        except FileNotFoundError:
            continue
        positions = []
        for physical_offset, position, _ in records(stored, part.imported_until):
            if physical_offset < part.before_offset and physical_offset not in seen:
                seen.add(physical_offset)
                positions.append(position)
        found = Records.at(np.frombuffer(stored, np.uint8), np.array(positions, np.int64))
        yield from chunk_batches(Chunk(found), wanted, Shapes())
