"""Announces this node's copy in the shared log, and finds the copies announced by other nodes.

    own copy       checkpoint on disk --read back, with the log written since the last--> CHECKPOINT record
    other copies   the untrimmed CHECKPOINT records of the shared log (`sharedlog.holdings`)

Rules
1. A node verifies its copy before announcing it. It reads back the snapshot file and all preceding log
   records, and checks the CRCs. Each log record is read back only once.
2. A node repeats its announcement until it appears in the shared log, because records can be delayed or lost.
3. A node never announces a damaged copy. Instead, it fetches another node's copy (`StoreDamaged`, see
   `copying`).

Cost: a worker thread reads each byte of the log once. Each 1 KB record takes 2 us.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import Any, Final, NamedTuple

from commitlog.disk.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.snapshots import snapshot
from services.cluster import holes
from services.cluster.replica import Replica
from sharedlog.engine import Engine
from sharedlog.engines import Beginning
from sharedlog.fold import update_leader_facts
from sharedlog.holdings import Holding, Holdings, Unreadable
from sharedlog.reading import records
from sharedlog.record import NOBODY, Kind, SharedRecord, encode, encode_facts
from sharedlog.versions import OLDEST, SUPPORTED

ANNOUNCEMENT_INTERVAL_MS: Final = 10_000
"""Milliseconds before an announcement missing from the shared log is repeated."""
_SECRET_BYTES: Final = 16


class OwnCopy:
    """This node's copy. Other nodes fetch the copy from the URL `http` with the given certificate."""

    def __init__(
        self, name: str, http: str, began: Beginning, disk: Disk, certificate: Callable[[], str]
    ) -> None:
        self._name, self._http, self._began, self._disk = name, http, began, disk
        self._certificate = certificate
        self.secret = secrets.token_hex(_SECRET_BYTES)
        """The secret required to fetch the copy. Each process generates a new one.
        """
        self._announced: Holding | None = None
        self._announced_ms = 0
        self._checked_end = 0
        self._lock, self.number = Lock(), 0
        """The copy number. A check with an older number refers to a discarded copy."""

    def checkpoint_announcement(self, replica: Replica, now_ms: int) -> bytes | None:
        """Return a record announcing the newest checkpoint, or None if no announcement is due.

        If the node has no checkpoint, announce that it needs the whole shared log. A new checkpoint is read
        back first. Raise `StoreDamaged` if the checkpoint is damaged, or OSError if the disk fails.
        """
        number, shared = self.number, replica.core.shared_in_checkpoint
        known = replica.fold.holdings.of(self._name)
        finalized = replica.fold.finalized
        if shared is None:
            held = self._holding_without_copy(0, finalized)
            told = known is not None and replace(known, next_record=0) == held
            return None if told else self._record(Kind.HOLD, held)
        end = int(shared["end"])
        found = Holding(
            *(int(shared["next_offset"]), end, self._http, self.secret, self._began.facts),
            *(self._certificate(), SUPPORTED, finalized),
        )
        if known == found or (
            self._announced == found and now_ms < self._announced_ms + ANNOUNCEMENT_INTERVAL_MS
        ):
            return None
        if self._announced != found and not self._verify_checkpoint(replica, known, end):
            return None
        with self._lock:
            if self.number != number:
                return None
            self._announced, self._announced_ms, self._checked_end = (
                found,
                now_ms,
                max(self._checked_end, end),
            )
        return self._record(Kind.CHECKPOINT, found)

    def record_verified_end(self, end: int) -> None:
        """Record that the log has been verified up to the offset `end`."""
        self._checked_end = end

    def copy_withdrawal(
        self, next_record: int, finalized: int = OLDEST, unreadable: Unreadable | None = None
    ) -> bytes:
        """Return a record stating that this node has no copy and needs the log from `next_record` on.

        If `unreadable` is given, the record also reports it.
        """
        with self._lock:
            self.number += 1
            self._announced, self._checked_end = None, 0
        return self._record(
            Kind.HOLD, self._holding_without_copy(next_record, finalized), _unreadable_facts(unreadable)
        )

    def _holding_without_copy(self, next_record: int, finalized: int) -> Holding:
        """Return the `Holding` to announce if this node has no copy."""
        return Holding(
            next_record,
            http=self._http,
            certificate=self._certificate(),
            supports=SUPPORTED,
            finalized=finalized,
        )

    def complaint(self, known: Holding, epoch: int, number: int) -> bytes:
        """Return this node's `Holding` with a complaint that the leader is unreachable."""
        kind = Kind.HOLD if known.end is None else Kind.CHECKPOINT
        return self._record(kind, known, {"unreached": [epoch, number]})

    def unreadable_report(self, known: Holding, where: Unreadable) -> bytes:
        """Return this node's `Holding` with a report of an unreadable record."""
        return self._record(
            Kind.HOLD if known.end is None else Kind.CHECKPOINT, known, _unreadable_facts(where)
        )

    def _verify_checkpoint(self, replica: Replica, known: Holding | None, end: int) -> bool:
        """Read back a checkpoint and the log written since the last announcement.

        Return False if the checkpoint has been replaced. Raise `StoreDamaged` if the data is damaged.
        """
        if end not in snapshot.offsets(self._disk):
            return False
        if not snapshot.is_sound(self._disk, end):
            if end in snapshot.offsets(self._disk):
                raise StoreDamaged(f"The snapshot at {end} is not what was written.")
            return False
        since = min(max(self._checked_end, (known and known.end) or 0), end)
        damaged = holes.damage_outside_holes(self._disk, replica.core.segment_bytes, since, end)
        first_offset = replica.core.store.log.first_offset  # retention may have deleted segments
        for one in damaged:
            if one.end_offset > first_offset:
                raise StoreDamaged(
                    f"Bytes {one.first_offset} to {one.end_offset} of the log are not what was written."
                )
        return True

    def _record(self, kind: Kind, holding: Holding, beside: dict[str, Any] | None = None) -> bytes:
        facts = encode_facts(holding.facts(self._name) | (beside or {}))
        return encode(SharedRecord(self._began.cluster, kind, 0, NOBODY, holding.end or 0, 0, facts))


def _unreadable_facts(unreadable: Unreadable | None) -> dict[str, Any]:
    """Return the facts for reporting an unreadable record, or {} if there is none."""
    return {} if unreadable is None else {"unreadable": list(unreadable)}


class LogFacts(NamedTuple):
    """The information from the shared log that a node needs to fetch a copy.

    `first` is the offset of the first record in the log. `copies` lists the usable copies of other nodes,
    newest first. A copy is usable if the log still contains all records that follow it. `epoch` is the newest
    EPOCH record, updated with the leader's current certificate. `finalized` is the newest cluster version in
    any `Holding`, and `own` is this node's `Holding`.
    """

    first: int
    copies: list[tuple[str, Holding]]
    epoch: SharedRecord | None
    finalized: int
    own: Holding | None


def find_copies(engine: Engine, cluster: bytes, name: str, beyond: int = -1) -> LogFacts:
    """Find copies that node `name` can fetch. The copies must extend past the record `beyond`.

    Raise `EngineUnavailable` if the engine does not respond.
    """
    first, _ = engine.bounds()
    holdings, epoch = Holdings(), None
    for record in records(engine, cluster):
        if record.kind in (Kind.CHECKPOINT, Kind.HOLD):
            holdings.apply_record(record.facts)
        elif record.kind == Kind.EPOCH and (epoch is None or record.epoch > epoch.epoch):
            epoch = record
        elif epoch is not None and record.kind == Kind.BEAT and update_leader_facts({}, record.facts):
            if record.holder != epoch.holder:
                continue
            epoch = replace(epoch, body=encode_facts(update_leader_facts(epoch.facts, record.facts)))
    finalized = max((one.finalized for one in holdings.all().values()), default=OLDEST)
    copies = holdings.copies(name, max(first, beyond + 1))
    return LogFacts(first, copies, epoch, finalized, holdings.of(name))


def holdings_view(holdings: Holdings) -> dict[str, dict[str, Any]]:
    """Return the `Holding` of each node as a JSON-serializable dictionary without secrets."""
    return {
        node: {
            "next_record": one.next_record,
            "end_offset": one.end,
            "http": one.http,
            "supports": one.supports,
        }
        for node, one in holdings.all().items()
    }
