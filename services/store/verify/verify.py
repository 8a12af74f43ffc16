"""`store verify`: verifies the parts of a store against each other and reports damage.

    log         the CRC and the offset of every record, blanks, and the bytes after the end
    invariants  `services.store.verify.invariants`: half messages, timers and their ends, queue offsets
    queues      every entry, compared with its record
    key index   every block of every run, and the number of keys
    timers      every batch and record of the partitions, and every block of names and ends. Each timer of the
                log must be pending in exactly one place or have ended
    snapshots   the CRC, and whether a replay of the log results in the same state
    keep files  every kept record, and whether every pending item has its record

Nothing is written. Damage is distinguished from informational findings. Cost: two passes over the log, of
which the second is only for snapshots.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from commitlog import layout
from commitlog.errors import StoreDamaged
from commitlog.log import imported
from commitlog.log.recovery import Damage, FoundRecord, LogScan
from commitlog.records import record
from commitlog.records.kinds import RETENTION_TOPIC
from commitlog.snapshots import snapshot
from services.broker.start_damage import describe_missing_segments
from services.store.findings import Finding
from services.store.keeping import KeepFiles, quarantined
from services.store.progress import Progress, unseen
from services.store.read_only.opening import OpenStore
from services.store.read_only.state import State, fold
from services.store.verify.index import IndexCheck
from services.store.verify.invariants import Invariants
from services.store.verify.queues import LostEntry, QueueCheck
from services.store.verify.snapshots import check_snapshots
from services.store.verify.timers import check_timer_files, check_waiting

MISSING = "missing"
_FIRST_PASS = "log, queues and index"
_PROGRESS_RECORDS = 5_000
_ZERO_CHUNK_BYTES = 1 << 20


@dataclass(slots=True)
class Verdict:
    """The extent and the findings of a verification."""

    first_offset: int
    durable_offset: int
    record_count: int = 0
    entry_count: int = 0
    unwritten_count: int = 0
    """Number of queue entries for records after the newest snapshot, which a start builds from the log."""
    snapshot_count: int = 0
    kept_count: int = 0
    damaged: list[Damage] = field(default_factory=list)
    lost: list[LostEntry] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    accepted_offset: int | None = None
    """The offset up to which a node has applied accepted records.

    None if the store does not belong to a node.
    """

    @property
    def is_sound(self) -> bool:
        """Whether nothing is damaged."""
        return not any(one.is_damage for one in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {**asdict(self), "sound": self.is_sound}


def verify(store: OpenStore, now_ms: int, progress: Progress = unseen) -> Verdict:
    """Verify all parts of a store."""
    verdict = Verdict(store.first_offset, store.durable_offset, accepted_offset=store.accepted_offset)
    kept = KeepFiles(store)
    scan = store.scan()
    imported_until = imported.read(store.overlay())
    rules = Invariants(scan.first_offset, scan.damaged, imported_until, kept.offsets)
    queues, index, deleted_to = QueueCheck(store), IndexCheck(store), 0
    for found in _records(scan, verdict, progress):
        queues.see(found)
        index.see(found.record)
        deleted_to = max(deleted_to, _deleted_to(found.record))
        verdict.findings += _breaches(found, rules, store)
    verdict.damaged, verdict.lost = scan.damaged, queues.lost(scan.damaged)
    verdict.entry_count, verdict.unwritten_count = queues.entry_count, queues.unwritten_count
    verdict.kept_count = len(kept.offsets)
    verdict.snapshot_count = len(store.snapshot_offsets)
    verdict.findings += _unsound(store)
    verdict.findings += _damage(store, scan.damaged, verdict.lost)
    verdict.findings += _missing(store, deleted_to)
    verdict.findings += kept.findings
    verdict.findings += _tail(store)
    verdict.findings += queues.findings(scan.damaged)
    verdict.findings += index.findings(scan.damaged)
    progress("timers", 0, 0)
    verdict.findings += check_timer_files(store, rules)
    progress("snapshots against the log", 0, 0)
    try:
        verdict.findings += check_snapshots(store, scan.damaged, rules.first_offsets, now_ms)
        verdict.findings += _waiting(fold(store, now_ms), rules, kept, _broker_ms(store, now_ms))
    except StoreDamaged as error:
        verdict.findings.append(Finding("start", "", -1, -1, f"no broker can start: {error.detail}"))
    return verdict


def _records(scan: LogScan, verdict: Verdict, progress: Progress) -> Iterator[FoundRecord]:
    total_bytes = scan.durable_offset - scan.first_offset
    for found in scan:
        if verdict.record_count % _PROGRESS_RECORDS == 0:
            progress(_FIRST_PASS, found.record.physical_offset - scan.first_offset, total_bytes)
        verdict.record_count += 1
        yield found
    progress(_FIRST_PASS, total_bytes, total_bytes)


def _unsound(store: OpenStore) -> Iterator[Finding]:
    """Yield small files whose content is invalid."""
    for path, problem in store.unsound.items():
        yield Finding("store", path, -1, -1, f"{problem}; the next start writes it anew")


def _breaches(found: FoundRecord, rules: Invariants, store: OpenStore) -> Iterator[Finding]:
    offset = found.record.physical_offset
    for breach in rules.see(found.record):
        path, _ = store.segments.place(offset)
        what = f"a record of {found.record.topic} {breach.what}"
        yield Finding("log", path, offset, offset + found.record_bytes, what)


def _damage(store: OpenStore, damaged: list[Damage], lost: list[LostEntry]) -> Iterator[Finding]:
    for one in damaged:
        path, _ = store.segments.place(one.first_offset)
        is_known = quarantined(store, one)
        what = "is damaged, as its copy in quarantine is" if is_known else "is not what was written"
        was = was_there(store, one, lost)
        sentence = f"{one.end_offset - one.first_offset} bytes: {what}; {was}"
        yield Finding("log", path, one.first_offset, one.end_offset, sentence, not is_known)


def _deleted_to(one: record.Record) -> int:
    return int(json.loads(one.body)["cut_offset"]) if one.topic == RETENTION_TOPIC else 0


def _missing(store: OpenStore, deleted_to: int) -> Iterator[Finding]:
    """Yield missing segments at the beginning of the log that were not deleted by retention."""
    newest = snapshot.newest(store.overlay())
    may_begin_at = max(newest.parts["store"]["may_begin_at"] if newest else 0, deleted_to)
    if store.first_offset > may_begin_at:
        what = describe_missing_segments(may_begin_at, store.first_offset)
        yield Finding(MISSING, layout.segment_path(may_begin_at), may_begin_at, store.first_offset, what)


def was_there(store: OpenStore, damage: Damage, lost: list[LostEntry]) -> str:
    """Return the content of a damaged region, according to the queues or to the readable part of
    the region.
    """
    inside = [one for one in lost if damage.first_offset <= one.physical_offset < damage.end_offset]
    if inside:
        names = ", ".join(f"{one.topic} queue {one.queue_id} offset {one.queue_offset}" for one in inside[:3])
        return f"it held {names}{' and more' if len(inside) > 3 else ''}"
    path, position = store.segments.place(damage.first_offset)
    stored = store.files.read(path, position, damage.end_offset - damage.first_offset)
    is_end = damage.end_offset == store.segments.end_of(damage.first_offset)
    if len(stored) == record.BLANK_BYTES or is_end:
        return "it may have been the filler at the end of a segment"
    try:
        found = record.decode(stored)
    except StoreDamaged:
        return "what it held is unknown"
    return f"it looks like {found.topic} queue {found.queue_id} offset {found.queue_offset}"


def _tail(store: OpenStore) -> Iterator[Finding]:
    """Yield the records after the published end that a start would use, and a torn record."""
    if not store.segment_offsets:
        return
    end, segment_bytes = store.durable_offset, store.segment_bytes
    scan = LogScan(store.overlay(), segment_bytes, end)
    count = sum(1 for _ in scan)
    path, _ = store.segments.place(scan.end_offset)
    if count:
        what = (
            f"{count} records lie behind the published end: under way if a broker runs, "
            "else its next start takes them over"
        )
        yield Finding("log", path, end, scan.end_offset, what, False)
    torn_at = next((at for at in store.segment_offsets if not _is_zero(store, at, scan.end_offset)), None)
    if torn_at is not None:
        what = "bytes behind the end are no record; the next start cuts them"
        last = store.segments.end_of(torn_at)
        yield Finding("log", layout.segment_path(torn_at), scan.end_offset, last, what, False)


def _is_zero(store: OpenStore, first_offset: int, end_offset: int) -> bool:
    view = store.files.view(layout.segment_path(first_offset))
    start = max(0, end_offset - first_offset)
    if end_offset >= store.segments.end_of(first_offset):
        return True
    chunks = range(start, len(view), _ZERO_CHUNK_BYTES)
    return not any(bytes(view[at : at + _ZERO_CHUNK_BYTES]).strip(b"\0") for at in chunks)


def _broker_ms(store: OpenStore, now_ms: int) -> int:
    """Return the current time of the store's broker, which may have a virtual clock."""
    return now_ms + (layout.read_clock(store.overlay()) or 0)


def _waiting(state: State, rules: Invariants, kept: KeepFiles, now_ms: int) -> Iterator[Finding]:
    """Yield pending messages without records, and groups beyond the end of their queues."""
    yield from check_waiting(state.timers, rules, kept.offsets, max(now_ms, state.last_store_ms))
    for one in state.halves_in("OPEN", "EXPIRED"):
        offset = one.half_offset
        if not (offset in rules.halves.stored or offset in kept.offsets or rules.is_copied(offset)):
            yield Finding("half", "", offset, offset, "a half waits, but its record cannot be read")
    for group in state.groups:
        if group.committed_offset > group.end_offset:
            what = f"group {group.group} is past the end of {group.topic} queue {group.queue_id}"
            yield Finding("group", "", group.end_offset, group.committed_offset, what)
