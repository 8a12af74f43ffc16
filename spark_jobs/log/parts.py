"""Parts of a log for tasks: slices, indexed records, kept records, holes, and losses of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from commitlog.log.recovery import Damage
from spark_jobs.log.index.queue_index import Indexed, indexed_batches
from spark_jobs.log.kept.kept import Kept, kept_batches
from spark_jobs.log.kept.timers import KeptTimers, timer_batches
from spark_jobs.log.scan.decode import Wanted, batches, damage_batch
from spark_jobs.log.scan.slices import Slice


@dataclass(frozen=True, slots=True)
class Gone:
    """Log offsets that a stream has not read and that the store no longer contains.

    The range is empty if their number is unknown.
    """

    damage: Damage
    why: str


Part = Slice | Indexed | Kept | KeptTimers | Gone | tuple[Damage, ...]
"""A tuple of `Damage` holds log offsets that no segment file covers."""

NO_SEGMENT: Final = "no segment file covers these bytes"


def part_batches(part: Part, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Yield the selected rows of a part as batches of `wanted.schema`."""
    if isinstance(part, Slice):
        yield from batches(part, wanted)
    elif isinstance(part, Indexed):
        yield from indexed_batches(part, wanted)
    elif isinstance(part, Kept):
        yield from kept_batches(part, wanted)
    elif isinstance(part, KeptTimers):
        yield from timer_batches(part, wanted)
    elif "damage" in wanted.kinds:
        damaged, why = ((part.damage,), part.why) if isinstance(part, Gone) else (part, NO_SEGMENT)
        yield damage_batch(damaged, wanted.schema, why)
