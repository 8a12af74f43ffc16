"""Loading of the derived files (the consume queues and the key index) at startup.

The files that the snapshot lists are used if they are intact. If a listed file is missing or damaged, the
queues or the key index are rebuilt from the log up to the offset of the snapshot. Log replay then adds the
later records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, Final, NamedTuple

from commitlog import limits
from commitlog.disk.disk import Disk
from commitlog.log.recovery import Damage, FoundRecord, LogScan
from commitlog.snapshots.snapshot import Snapshot
from consumequeue.dispatch import existing_first_offsets
from services.broker.spine.store import Store

QUEUES: Final = "queues"
QUEUES_MADE_AT: Final = "queues_made_at"
"""The log offset of the snapshot that was written when the queue files were created."""
QUEUES_RECORDED: Final = "queues_recorded"
"""The recorded first offsets of queues whose current first offsets are higher."""
KEYS: Final = "key_runs"


def freeze(store: Store) -> dict[str, Any]:
    """Return the state of the queues for a snapshot.

    The checkpoint adds the state of the key index.
    """
    dispatch = store.dispatch
    return {
        QUEUES: dispatch.freeze(),
        QUEUES_RECORDED: dispatch.freeze_recorded(),
    }


class AdoptionResult(NamedTuple):
    """The files rebuilt at startup, with reasons, and the damaged log ranges below the snapshot offset.

    Damaged records leave gaps in the queues, which readers skip.
    """

    rebuilt_files: list[str]
    damaged: list[Damage]


def adopt(
    store: Store, disk: Disk, start: Snapshot, others: Iterable[Snapshot], read_topics: Set[str]
) -> AdoptionResult:
    """Load or rebuild the queues and the key index up to the offset of a snapshot.

    Key index files that other snapshots list are kept. The queue files of `read_topics` are verified here,
    because startup reads them later, when the queues can no longer be rebuilt. Raise OSError if the disk
    fails.
    """
    missing: list[Callable[[FoundRecord], object]] = []
    reasons, damaged = list[str](), list[Damage]()
    made_at, recorded = start.parts[QUEUES_MADE_AT], start.parts[QUEUES_RECORDED]
    firsts = dict(existing_first_offsets(start.parts[QUEUES], store.log.first_offset))
    if not store.dispatch.adopt(start.parts[QUEUES], made_at, read_topics, recorded):
        missing.append(_make_queue_adder(store, firsts))
        reasons.append("the consume queues: their files are not whole")
    why_not = store.keys.adopt(start.parts[KEYS], [other.parts[KEYS] for other in others])
    if why_not:
        missing.append(store.index_keys)
        reasons.append(f"the key index: {why_not}")
    if missing:
        scan = LogScan(disk, store.log.segment_bytes, stop_at=start.offset)
        for number, found in enumerate(scan):
            for put in missing:
                put(found)
            if number % limits.REPLAYED_BETWEEN_SPILLS == 0:
                store.dispatch.write()
        store.dispatch.complete(start.parts[QUEUES], start.offset, recorded, firsts)
        # The scan ends at the offset of the snapshot, but a damaged range may extend beyond it.
        damaged = [Damage(one.first_offset, min(one.end_offset, start.offset)) for one in scan.damaged]
    return AdoptionResult(reasons, [one for one in damaged if one.first_offset < one.end_offset])


def _make_queue_adder(store: Store, firsts: Mapping[tuple[str, int], int]) -> Callable[[FoundRecord], object]:
    """Return a function that adds a record to its queue.

    `firsts` maps (topic, queue id) to the first offset that the queue would have in an undamaged log. A queue
    whose first records are damaged begins with a gap.
    """

    def put(found: FoundRecord) -> None:
        record = found.record
        first = firsts.get((record.topic, record.queue_id))
        if first is not None and first < record.queue_offset:
            store.dispatch.begin_with_gap(record, first)
        store.dispatch.dispatch(record, found.record_bytes)

    return put


def drop(store: Store) -> None:
    """Delete the queues and the key index. A store without a snapshot replays the whole log."""
    store.dispatch.drop()
    store.keys.drop()
