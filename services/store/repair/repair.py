"""`store repair`: rebuilds derived data, and moves unrecoverable data to quarantine.

    damaged                    action
    queues, key index          deleted and rebuilt from the log, as at a start
    snapshot                   moved to quarantine, and a new snapshot is written
    bytes of the log           copied to `quarantine/<first>-<end>`, which marks this damage as known. The
                               log is not changed, so its other records keep their offsets
    files durable, format      rewritten, as at a start
    names or ends of timers    rewritten if all their facts can be read. Otherwise rebuilt from the remaining
                               data, but only on request: see `services.store.repair.facts`
    partition of timers        repaired as by a running broker (`services.broker.timers.timer_repair`):
                               timers in the log or an older file are rebuilt, and the others end as
                               UNREADABLE and are reported
    keep file                  not repaired, because only a backup has its records. The next start rolls back
                               the lost half messages

The store's lock is held, so no broker can run at the same time. Data in damaged bytes is lost, and the loss
is reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from commitlog import layout
from commitlog.disk.disk import Disk
from commitlog.disk.real_disk import RealDisk
from commitlog.lock import StoreLock
from commitlog.log.recovery import Damage
from commitlog.snapshots import snapshot
from consumequeue import dispatch
from consumequeue.runs.sorted_runs import Run
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import DamagedPart
from services.broker.timers.timer_ends import ENDS
from services.store.findings import Finding
from services.store.keeping import damaged_bytes, put_aside, quarantine_path, quarantined, set_aside
from services.store.progress import Progress, unseen
from services.store.read_only.opening import OpenStore, open_store
from services.store.repair.facts import give_up, is_whole, mend
from services.store.verify.facts import PARTS, named_runs
from services.store.verify.partitions import PARTITION
from services.store.verify.timers import sound_snapshots
from services.store.verify.verify import MISSING, Verdict, verify

_DERIVED: Final = ("queue", "index")
_REPAIRABLE: Final = ("log", "snapshot", "store", *_DERIVED)


@dataclass(frozen=True, slots=True)
class Plan:
    """The actions of a repair, and the damage that cannot be repaired."""

    quarantine: list[Damage]
    bad_snapshots: list[str]
    makes_derived: bool
    rewrites: list[str]
    mends: list[Run]
    gives_up: list[Run]
    makes_facts: bool
    mends_timers: bool
    lost: list[str]
    hopeless: list[Finding]

    def as_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        runs = {"mends": [run.path for run in self.mends], "gives_up": [run.path for run in self.gives_up]}
        return asdict(replace(self, mends=[], gives_up=[])) | runs

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        facts = self.mends or self.makes_facts
        is_bad = self.quarantine or self.bad_snapshots or self.makes_derived or self.mends_timers
        return not (is_bad or self.rewrites or facts)


def plan(store: OpenStore, now_ms: int, progress: Progress = unseen, gives_up: bool = False) -> Plan:
    """Return the plan for a store. With `gives_up`, it also gives up names and ends that cannot be read."""
    verdict = verify(store, now_ms, progress)
    bad = [one for one in verdict.findings if one.is_damage]
    mends_timers = any(one.part in (PARTITION, MISSING) for one in bad)
    if any(
        one.part == PARTITION for one in bad
    ):  # data from damaged batches is also missing elsewhere until they are repaired
        bad = [one for one in bad if one.part != "timer" and one.path != ENDS]
    quarantine = [one for one in verdict.damaged if not quarantined(store, one)]
    mends, unread = _damaged_runs(store, bad)
    mended = {run.path for run in mends}
    facts = [one for one in bad if one.part in PARTS.values() and one.path not in mended]
    repaired = mended | ({one.path for one in facts} if gives_up else set())
    return Plan(
        quarantine=quarantine,
        bad_snapshots=[one.path for one in bad if one.part == "snapshot" and store.files.size(one.path) >= 0],
        makes_derived=any(one.part in _DERIVED for one in bad),
        rewrites=[one.path for one in bad if one.part == "store"],
        mends=mends,
        gives_up=unread if gives_up else [],
        makes_facts=gives_up and bool(facts),
        mends_timers=mends_timers,
        lost=[
            *_lost(verdict, quarantine),
            *(_unread(run) for run in unread if gives_up),
            *(one.what for one in bad if one.part == MISSING),
            *(_lost_timers(store, now_ms) if mends_timers else ()),
        ],
        hopeless=[
            one
            for one in bad
            if one.path not in repaired
            and one.part not in (PARTITION, MISSING)
            and (one.part not in _REPAIRABLE or _is_breach(one, verdict))
        ],
    )


@contextmanager
def locked(root: Path) -> Iterator[OpenStore]:
    """Lock the store in folder `root` and yield it. Raises `StoreLocked`, `StoreError`."""
    open_store(root)
    lock = StoreLock(root)
    lock.acquire()
    try:
        yield open_store(root)
    finally:
        lock.release()


def carry_out(planned: Plan, root: Path, store: OpenStore, now_ms: int) -> None:
    """Execute a plan for the store in folder `root`, whose lock must be held."""
    disk = RealDisk(root)
    try:
        carry_out_on(disk, planned, store, now_ms)
    finally:
        disk.close()


def carry_out_on(disk: Disk, planned: Plan, store: OpenStore, now_ms: int) -> None:
    """Execute a plan. If it is interrupted, the next repair plans the remaining actions again."""
    for damage in planned.quarantine:
        put_aside(disk, quarantine_path(damage), damaged_bytes(store, damage))
    for path in planned.bad_snapshots:
        set_aside(disk, path)
    for run in planned.mends:
        mend(run, disk)
    if planned.mends_timers:  # before anything is given up, because rebuilt timers are still pending
        _mend_timers(disk, now_ms)
        _set_aside_all_but_newest(disk)
    if planned.makes_facts:
        give_up(store, disk, planned.gives_up, now_ms)
    if planned.makes_derived or planned.bad_snapshots:
        _make_derived(disk, now_ms)
    elif planned.rewrites:
        Broker.open(disk, BrokerSettings(), now_ms)


def _make_derived(disk: Disk, now_ms: int) -> None:
    """Start the core once without derived files, and write a checkpoint."""
    dispatch.delete_files(disk)
    disk.delete(layout.KEYINDEX)
    Broker.open(disk, BrokerSettings(), now_ms).checkpoint(now_ms).write(disk)


def _mend_timers(disk: Disk, now_ms: int) -> list[DamagedPart]:
    """Have the core repair the damaged timer files, and write a checkpoint. Its clock does not advance."""
    broker = Broker.open(disk, BrokerSettings(), now_ms)
    while broker.timer_repair.has_work:
        broker.repair_files(now_ms)
        while (flush := broker.take_flush()) is not None:
            flush.write()
            broker.complete_flush(flush, now_ms)
    broker.checkpoint(now_ms).write(disk)
    return list(broker.damage)


def _set_aside_all_but_newest(disk: Disk) -> None:
    """Move older snapshots to quarantine, because they name damaged files."""
    for offset in snapshot.offsets(disk)[:-1]:
        set_aside(disk, snapshot.path_of(offset))


def _lost_timers(store: OpenStore, now_ms: int) -> Iterator[str]:
    """Yield the timers that a repair of the timer files must give up."""
    for one in _mend_timers(store.overlay(), now_ms):
        if one.part == PARTITION and one.lost_count:
            yield one.what


def _lost(verdict: Verdict, quarantine: list[Damage]) -> Iterator[str]:
    for damage in quarantine:
        names = [
            one for one in verdict.findings if one.first_offset == damage.first_offset and one.part == "log"
        ]
        yield f"log {damage.first_offset} to {damage.end_offset}, {names[0].what}"


def _damaged_runs(store: OpenStore, bad: list[Finding]) -> tuple[list[Run], list[Run]]:
    """Return the damaged runs of names and ends, separated into those that can be rewritten and the
    others.
    """
    disk = store.overlay()
    paths = {one.path for one in bad if one.part in PARTS.values()}
    damaged = [run for run in named_runs(sound_snapshots(store)) if run.path in paths]
    mends = [run for run in damaged if is_whole(run, disk)]
    return mends, [run for run in damaged if run not in mends]


def _unread(run: Run) -> str:
    return (
        f"{run.path}, some of its {run.entry_count} facts: how timers ended whose records the log does not "
        "hold any more may be unknown; verbs on them say that they came too late, or were never set"
    )


def _is_breach(finding: Finding, verdict: Verdict) -> bool:
    """Return whether a finding is a contradiction between undamaged records of the log."""
    damaged = {one.first_offset for one in verdict.damaged}
    return finding.part == "log" and finding.first_offset not in damaged
