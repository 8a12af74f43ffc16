"""`store repair`: makes again what can be made again, and sets aside what cannot.

    damaged                    done about it
    queues, key index          deleted and made anew from the log, as a start does
    a snapshot                 moved to quarantine; a new one is written
    bytes of the log           copied to `quarantine/<first>-<end>`, so that this damage is known from
                               then on; the log keeps them: what is around them stays where it is
    a keep file                nothing: only a backup has its records

It holds the store's lock, so no broker can run meanwhile. What was in the damaged bytes is lost and told.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from commitlog import layout
from commitlog.lock import StoreLock
from commitlog.real_disk import RealDisk
from commitlog.recovery import Damage
from services.broker.broker import Broker
from services.broker.settings import BrokerSettings
from services.store.findings import Finding
from services.store.keeping import QUARANTINE, damaged_bytes, quarantine_path, quarantined
from services.store.opening import OpenStore, open_store
from services.store.progress import Progress, unseen
from services.store.verify import Verdict, verify

_DERIVED: Final = ("queue", "index")
_REPAIRABLE: Final = ("log", "snapshot", *_DERIVED)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a repair does, and what nobody can do."""

    quarantine: list[Damage]
    bad_snapshots: list[str]
    makes_derived: bool
    lost: list[str]
    hopeless: list[Finding]

    def as_json(self) -> dict[str, Any]:
        """The plan as JSON can hold it."""
        return asdict(self)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.quarantine or self.bad_snapshots or self.makes_derived)


def plan(store: OpenStore, now_ms: int, progress: Progress = unseen) -> Plan:
    """What is to be done about a store."""
    verdict = verify(store, now_ms, progress)
    bad = [one for one in verdict.findings if one.is_damage]
    quarantine = [one for one in verdict.damaged if not quarantined(store, one)]
    return Plan(
        quarantine=quarantine,
        bad_snapshots=[one.path for one in bad if one.part == "snapshot" and store.files.size(one.path) >= 0],
        makes_derived=any(one.part in _DERIVED for one in bad),
        lost=list(_lost(verdict, quarantine)),
        hopeless=[one for one in bad if one.part not in _REPAIRABLE or _is_breach(one, verdict)],
    )


@contextmanager
def locked(root: Path) -> Iterator[OpenStore]:
    """The store in folder `root`, while no broker can open it; raises `StoreLocked`, `StoreError`."""
    open_store(root)
    lock = StoreLock(root)
    lock.acquire()
    try:
        yield open_store(root)
    finally:
        lock.release()


def carry_out(planned: Plan, root: Path, store: OpenStore, now_ms: int) -> None:
    """Does what is planned; the store's lock must be held."""
    disk = RealDisk(root)
    try:
        for damage in planned.quarantine:
            _write(disk, quarantine_path(damage), damaged_bytes(store, damage))
        for path in planned.bad_snapshots:
            _write(disk, f"{QUARANTINE}/{path.replace('/', '-')}", bytes(store.files.view(path)))
            disk.delete(path)
        if planned.makes_derived or planned.bad_snapshots:
            _make_derived(disk, now_ms)
    finally:
        disk.close()


def _make_derived(disk: RealDisk, now_ms: int) -> None:
    """Starts the core once without its derived files, and keeps what that made."""
    disk.delete(layout.CONSUMEQUEUE)
    disk.delete(layout.KEYINDEX)
    Broker.open(disk, BrokerSettings(), now_ms).checkpoint(now_ms).write(disk)


def _write(disk: RealDisk, path: str, content: bytes) -> None:
    disk.delete(path)
    disk.write(path, 0, content)
    disk.sync(path)
    disk.sync_folder(QUARANTINE)


def _lost(verdict: Verdict, quarantine: list[Damage]) -> Iterator[str]:
    for damage in quarantine:
        names = [
            one for one in verdict.findings if one.first_offset == damage.first_offset and one.part == "log"
        ]
        yield f"log {damage.first_offset} to {damage.end_offset}, {names[0].what}"


def _is_breach(finding: Finding, verdict: Verdict) -> bool:
    """Whether the bytes of the log are whole and only contradict each other."""
    damaged = {one.first_offset for one in verdict.damaged}
    return finding.part == "log" and finding.first_offset not in damaged
