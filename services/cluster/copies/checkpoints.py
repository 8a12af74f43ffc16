"""Announces the checkpoints of this node in the shared log, and finds the copies of other nodes.

    own copy       checkpoint on disk --read back with the preceding log--> CHECKPOINT record
    other copies   the CHECKPOINT records that the shared log still contains (`sharedlog.holdings`)

Rules
1. A node announces a checkpoint only after verifying it. The snapshot file and all preceding log records are
   read back, and their CRCs are verified. Each log record is read back only once.
2. A node repeats an announcement until it appears in the shared log, because appends can be delayed or lost.
3. A node never announces a damaged checkpoint. Instead, it fetches a copy from another node (`StoreDamaged`,
   see `copying`).

Cost: a worker thread reads each byte of the log once, which takes 2 us per record of 1 KB.
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
"""Time in milliseconds after which an announcement is repeated if the shared log does not contain it."""
_SECRET_BYTES: Final = 16


class OwnCopy:
    """The copy of the store that this node provides to other nodes at the URL `http`."""

    def __init__(
        self, name: str, http: str, began: Beginning, disk: Disk, certificate: Callable[[], str]
    ) -> None:
        self._name, self._http, self._began, self._disk = name, http, began, disk
        self._certificate = certificate
        self.secret = secrets.token_hex(_SECRET_BYTES)
        """The secret that other nodes need to fetch the copy. Each process generates a new secret."""
        self._announced: Holding | None = None
        self._announced_ms = 0
        self._checked_end = 0
        self._lock, self.number = Lock(), 0
        """The number of the current copy. A check with a lower number applies to a discarded copy."""

    def checkpoint_announcement(self, replica: Replica, now_ms: int) -> bytes | None:
        """Return a record that announces the newest checkpoint, or None if no announcement is due.

        If the node has no checkpoint, the record announces that it needs the whole shared log. A new
        checkpoint is read back before the announcement. Raise `StoreDamaged` if the checkpoint is damaged, or
        OSError if the disk fails.
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
        """Record that the log was verified up to the offset `end`."""
        self._checked_end = end

    def copy_withdrawal(
        self, next_record: int, finalized: int = OLDEST, unreadable: Unreadable | None = None
    ) -> bytes:
        """Return a HOLD record for a node that has no copy and needs the log from `next_record` on.

        The record also reports the unreadable record `unreadable`, if given. Earlier copies of this node
        become invalid.
        """
        with self._lock:
            self.number += 1
            self._announced, self._checked_end = None, 0
        return self._record(
            Kind.HOLD, self._holding_without_copy(next_record, finalized), _unreadable_facts(unreadable)
        )

    def _holding_without_copy(self, next_record: int, finalized: int) -> Holding:
        """Return the `Holding` that a node without a copy announces."""
        return Holding(
            next_record,
            http=self._http,
            certificate=self._certificate(),
            supports=SUPPORTED,
            finalized=finalized,
        )

    def complaint(self, known: Holding, epoch: int, number: int) -> bytes:
        """Return a record with the `Holding` of this node and a complaint about an unreachable leader."""
        kind = Kind.HOLD if known.end is None else Kind.CHECKPOINT
        return self._record(kind, known, {"unreached": [epoch, number]})

    def unreadable_report(self, known: Holding, where: Unreadable) -> bytes:
        """Return a record with the `Holding` of this node and a report of an unreadable record."""
        return self._record(
            Kind.HOLD if known.end is None else Kind.CHECKPOINT, known, _unreadable_facts(where)
        )

    def _verify_checkpoint(self, replica: Replica, known: Holding | None, end: int) -> bool:
        """Read back a checkpoint and the part of the log that was written after the last announcement.

        Return False if the checkpoint was replaced. Raise `StoreDamaged` if the checkpoint or the log is
        damaged.
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
    """Return the fields that report an unreadable record, or {} if there is none."""
    return {} if unreadable is None else {"unreadable": list(unreadable)}


class LogFacts(NamedTuple):
    """The state of the shared log that a node needs to fetch a copy.

    `first` is the offset of the first record in the shared log. `copies` contains the usable copies of other
    nodes, newest first. A copy is usable if the shared log still contains all records after the copy. `epoch`
    is the newest EPOCH record, updated with the leader's current certificate. `finalized` is the newest
    cluster version in any `Holding`, and `own` is the `Holding` of this node.
    """

    first: int
    copies: list[tuple[str, Holding]]
    epoch: SharedRecord | None
    finalized: int
    own: Holding | None


def find_copies(engine: Engine, cluster: bytes, name: str, beyond: int = -1) -> LogFacts:
    """Find the copies that the node `name` can fetch and that extend past the record `beyond`.

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
    """Return the `Holding` of each node, without secrets, as a JSON-serializable dictionary."""
    return {
        node: {
            "next_record": one.next_record,
            "end_offset": one.end,
            "http": one.http,
            "supports": one.supports,
        }
        for node, one in holdings.all().items()
    }
