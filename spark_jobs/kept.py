"""Records that outlived their segment: what retention copied to keep files, as if the log had them.

They are halves that are open or expired (see `commitlog.keep`). Each names its own log offset, which lies
before the log's first; the same one may be in several files, and counts once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from commitlog import layout
from commitlog.keep import records
from spark_jobs.decode import Wanted, chunk_batches
from spark_jobs.records import Records
from spark_jobs.segments import StoreLog
from spark_jobs.walk import Chunk


@dataclass(frozen=True, slots=True)
class Kept:
    """The kept records from before a log offset, in all keep files of a folder."""

    folder: str
    before_offset: int
    own_from: int


def kept_part(store: Path, log: StoreLog) -> Kept | None:
    """What to read beside the log; None where nothing was kept."""
    folder = store / layout.KEEP
    is_there = log.first_offset > 0 and folder.is_dir() and any(folder.iterdir())
    return Kept(str(folder), log.first_offset, log.own_from) if is_there else None


def kept_batches(part: Kept, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """The kept records that are wanted; a file that goes while it is read is no longer needed."""
    seen: set[int] = set()
    for path in sorted(Path(part.folder).iterdir()):
        try:
            stored = path.read_bytes()
        except FileNotFoundError:
            continue
        positions = []
        for physical_offset, position, _ in records(stored, part.own_from):
            if physical_offset < part.before_offset and physical_offset not in seen:
                seen.add(physical_offset)
                positions.append(position)
        found = Records.at(np.frombuffer(stored, np.uint8), np.array(positions, np.int64))
        yield from chunk_batches(Chunk(found), wanted)
