"""What tasks read a log in: slices of it, records by the queues' index, kept records, and holes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from commitlog.recovery import Damage
from spark_jobs.log.decode import Wanted, batches, damage_batch
from spark_jobs.log.kept import Kept, kept_batches
from spark_jobs.log.kept_timers import KeptTimers, timer_batches
from spark_jobs.log.queue_index import Indexed, indexed_batches
from spark_jobs.log.slices import Slice

Part = Slice | Indexed | Kept | KeptTimers | tuple[Damage, ...]
"""Damage as a part of its own: log offsets that no segment file covers."""

NO_SEGMENT: Final = "no segment file covers these bytes"


def part_batches(part: Part, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of one part, as batches of `wanted.schema`."""
    if isinstance(part, Slice):
        yield from batches(part, wanted)
    elif isinstance(part, Indexed):
        yield from indexed_batches(part, wanted)
    elif isinstance(part, Kept):
        yield from kept_batches(part, wanted)
    elif isinstance(part, KeptTimers):
        yield from timer_batches(part, wanted)
    elif "damage" in wanted.kinds:
        yield damage_batch(part, wanted.schema, NO_SEGMENT)
