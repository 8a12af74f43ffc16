"""What is made from the log and can be made again: the queues and the key index, taken over at a start.

Either is taken over as the snapshot names it, or else made anew from the log up to the snapshot; what lies
behind the snapshot is put into both when the start replays it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, Final, NamedTuple

from commitlog import limits
from commitlog.disk import Disk
from commitlog.recovery import Damage, Found, LogScan
from commitlog.snapshot import Snapshot
from consumequeue.dispatch import firsts_there
from services.broker.spine.store import Store

QUEUES: Final = "queues"
QUEUES_MADE_AT: Final = "queues_made_at"
"""The log offset of the snapshot with which the files of queues began (`consumequeue.dispatch`)."""
QUEUES_RECORDED: Final = "queues_recorded"
"""Where queues begin as records say, of those that begin later."""
KEYS: Final = "key_runs"


def freeze(store: Store) -> dict[str, Any]:
    """Return what a snapshot keeps of the queues; the key index tells its part once its files are written."""
    dispatch = store.dispatch
    return {
        QUEUES: dispatch.freeze(),
        QUEUES_RECORDED: dispatch.freeze_recorded(),
    }


class Adopted(NamedTuple):
    """What a start had to make anew, and why; and the damage of the log below the snapshot that it met then.

    Queues have gaps for the records that were there, which readers step over.
    """

    made_anew: list[str]
    damaged: list[Damage]


def adopt(
    store: Store, disk: Disk, start: Snapshot, others: Iterable[Snapshot], read_topics: Set[str]
) -> Adopted:
    """Take over queues and key index up to a snapshot.

    The files of the key index that other snapshots name are kept for those. The start reads the queues of
    `read_topics`: their files are compared here, while queues can be made anew. Raise OSError.
    """
    missing: list[Callable[[Found], object]] = []
    reasons, damaged = list[str](), list[Damage]()
    made_at, recorded = start.parts[QUEUES_MADE_AT], start.parts[QUEUES_RECORDED]
    firsts = dict(firsts_there(start.parts[QUEUES], store.log.first_offset))
    if not store.dispatch.adopt(start.parts[QUEUES], made_at, read_topics, recorded):
        missing.append(_put_into_queues(store, firsts))
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
        # The end that a scan looks for lies behind the snapshot, whose log it does not read.
        damaged = [Damage(one.first_offset, min(one.end_offset, start.offset)) for one in scan.damaged]
    return Adopted(reasons, [one for one in damaged if one.first_offset < one.end_offset])


def _put_into_queues(store: Store, firsts: Mapping[tuple[str, int], int]) -> Callable[[Found], object]:
    """Return what puts a record into its queue.

    `firsts` are the first offsets of queues (topic, queue id) of which the log had all records: where damage
    has taken the first ones, such a queue begins with a gap.
    """

    def put(found: Found) -> None:
        record = found.record
        first = firsts.get((record.topic, record.queue_id))
        if first is not None and first < record.queue_offset:
            store.dispatch.begin_with_gap(record, first)
        store.dispatch.dispatch(record, found.record_bytes)

    return put


def drop(store: Store) -> None:
    """Delete queues and key index: a start without a snapshot replays the whole log."""
    store.dispatch.drop()
    store.keys.drop()
