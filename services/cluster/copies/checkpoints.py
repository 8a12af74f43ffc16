"""Announcement of a node's copy in the shared log, and lookup of the copies that other nodes have announced.

    own copy       checkpoint on disk --read back, with the log written since the last--> CHECKPOINT record
    other copies   the untrimmed CHECKPOINT records of the shared log (`sharedlog.holdings`)

Rules
1. An announced copy is known to be valid: the node has read back the snapshot file and every log record
   before the snapshot, and all CRCs match. Records that were verified for an earlier announcement are not
   read again.
2. A node repeats its announcement as long as the shared log contains a different announcement from that node,
   because a record may be delayed or lost.
3. Instead of announcing a damaged copy, a node fetches the copy of another node (`StoreDamaged`, see
   `copying`).

Cost: a worker thread reads back each byte of the log once. Reading back a 1 KB record takes 2 us.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import Any, Final, NamedTuple

from commitlog import snapshot
from commitlog.disk import Disk
from commitlog.errors import StoreDamaged
from services.cluster import holes
from services.cluster.replica import Replica
from sharedlog.engine import Engine
from sharedlog.engines import Beginning
from sharedlog.fold import update_leader_facts
from sharedlog.holdings import Holding, Holdings, Unreadable
from sharedlog.reading import records
from sharedlog.record import NOBODY, Kind, SharedRecord, encode, encode_facts
from sharedlog.versions import OLDEST, SUPPORTED

TELL_AGAIN_MS: Final = 10_000
"""The time, in ms, after which a node repeats an announcement that has not appeared in the shared log."""
_SECRET_BYTES: Final = 16


class OwnCopy:
    """The copy of the node `name`, which other nodes fetch from the URL `http` with the given certificate."""

    def __init__(
        self, name: str, http: str, began: Beginning, disk: Disk, certificate: Callable[[], str]
    ) -> None:
        self._name, self._http, self._began, self._disk = name, http, began, disk
        self._certificate = certificate
        self.secret = secrets.token_hex(_SECRET_BYTES)
        """The secret that another node must present to fetch the copy. Each process generates a new secret.
        """
        self._told: Holding | None = None
        self._told_ms = 0
        self._checked_end = 0
        self._lock, self.number = Lock(), 0
        """The number of the copy, which is used to detect that a check refers to a discarded copy."""

    def checkpoint_announcement(self, replica: Replica, now_ms: int) -> bytes | None:
        """Return a record that announces the newest checkpoint, or None if no announcement is due.

        The announcement of a node without a checkpoint states that the node needs the whole shared log. A new
        checkpoint is read back before it is announced. Raise `StoreDamaged` if the checkpoint is damaged, or
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
        if known == found or (self._told == found and now_ms < self._told_ms + TELL_AGAIN_MS):
            return None
        if self._told != found and not self._read_back(replica, known, end):
            return None
        with self._lock:
            if self.number != number:
                return None
            self._told, self._told_ms, self._checked_end = found, now_ms, max(self._checked_end, end)
        return self._record(Kind.CHECKPOINT, found)

    def record_verified_end(self, end: int) -> None:
        """Record that the log of this node has been verified up to the offset `end`."""
        self._checked_end = end

    def copy_withdrawal(
        self, next_record: int, finalized: int = OLDEST, unreadable: Unreadable | None = None
    ) -> bytes:
        """Return a record stating that this node has no copy and needs all records from `next_record` onward.

        If `unreadable` is given, the returned record also reports this unreadable record.
        """
        with self._lock:
            self.number += 1
            self._told, self._checked_end = None, 0
        return self._record(
            Kind.HOLD, self._holding_without_copy(next_record, finalized), _unreadable_facts(unreadable)
        )

    def _holding_without_copy(self, next_record: int, finalized: int) -> Holding:
        """Return the holding that this node announces if it has no copy."""
        return Holding(
            next_record,
            http=self._http,
            certificate=self._certificate(),
            supports=SUPPORTED,
            finalized=finalized,
        )

    def complaint(self, known: Holding, epoch: int, number: int) -> bytes:
        """Return a record with this node's holding and a complaint that the leader is unreachable."""
        kind = Kind.HOLD if known.end is None else Kind.CHECKPOINT
        return self._record(kind, known, {"unreached": [epoch, number]})

    def unreadable_report(self, known: Holding, where: Unreadable) -> bytes:
        """Return a record with this node's holding and a report of an unreadable record."""
        return self._record(
            Kind.HOLD if known.end is None else Kind.CHECKPOINT, known, _unreadable_facts(where)
        )

    def _read_back(self, replica: Replica, known: Holding | None, end: int) -> bool:
        """Read back a checkpoint and the log that was written since the last announcement.

        Raise `StoreDamaged` if either is damaged. Return False if newer checkpoints have replaced this one.
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
    """Return the additional facts that report an unreadable record, or {} if `unreadable` is None."""
    return {} if unreadable is None else {"unreadable": list(unreadable)}


class LogFacts(NamedTuple):
    """The information in the shared log that a node needs to fetch a copy.

    `first` is the offset of the first record in the log. `copies` lists the usable copies of other nodes,
    beginning with the newest. A copy is usable if the log still contains all later records. `epoch` is the
    newest EPOCH record in the log, updated with the leader's current certificate. `finalized` is the newest
    cluster version in the holdings, and `own` is this node's holding.
    """

    first: int
    copies: list[tuple[str, Holding]]
    epoch: SharedRecord | None
    finalized: int
    own: Holding | None


def find_copies(engine: Engine, cluster: bytes, name: str, beyond: int = -1) -> LogFacts:
    """Return the information that `name` needs to fetch a copy that extends past the record `beyond`.

    Raise `Unknown` if the engine does not respond.
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


def copies_view(holdings: Holdings) -> dict[str, dict[str, Any]]:
    """Return the holding of each node, without its secret, as a JSON-serializable dictionary."""
    return {
        node: {
            "next_record": one.next_record,
            "end_offset": one.end,
            "http": one.http,
            "supports": one.supports,
        }
        for node, one in holdings.all().items()
    }
