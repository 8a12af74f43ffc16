"""What this node's copy is worth to others, and what theirs are to this one.

    own copy   a checkpoint is on disk --read back, from the place told before--> CHECKPOINT, for all to read
    others'    the CHECKPOINTs in the shared log, as far as it reaches back (`sharedlog.holdings`)

Rules
1. What is told is true: the snapshot's file and every record of the log up to it were read from the disk
   again and match their CRCs. What was read for an earlier word is not read once more.
2. It is told again when the log says something else of this node: a record may come late, or be lost.
3. Damage is no copy: `StoreDamaged`, and the node gets another's (`services.cluster.node`).

Cost: each byte of the log is read once more than it was written, in a worker thread: 2 us a record of 1 KB.
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
from sharedlog.fold import told_anew
from sharedlog.holdings import Holding, Holdings, Unreadable
from sharedlog.reading import records
from sharedlog.record import NOBODY, Kind, SharedRecord, body_of, encode
from sharedlog.versions import OLDEST, SUPPORTED

TELL_AGAIN_MS: Final = 10_000
"""How long a word may be on its way before it is said again."""
_SECRET_BYTES: Final = 16


class OwnCopy:
    """The copy of the node `name`, which gives it away at the URL `http` and shows `certificate` there."""

    def __init__(
        self, name: str, http: str, began: Beginning, disk: Disk, certificate: Callable[[], str]
    ) -> None:
        self._name, self._http, self._began, self._disk = name, http, began, disk
        self._certificate = certificate
        self.secret = secrets.token_hex(_SECRET_BYTES)
        """What another node must say to get the copy; drawn anew by each process."""
        self._told: Holding | None = None
        self._told_ms = 0
        self._checked_end = 0
        self._lock, self.number = Lock(), 0
        """The number of the copy: a look at one that was given up meanwhile says nothing of the next."""

    def to_tell(self, replica: Replica, now_ms: int) -> bytes | None:
        """Return the record that tells of the newest checkpoint; None if the log has it.

        A node without a checkpoint tells that it needs the whole log. Read the checkpoint back; raise
        `StoreDamaged` if it is not what was written, or OSError.
        """
        number, shared = self.number, replica.core.shared_in_checkpoint
        known = replica.fold.holdings.of(self._name)
        finalized = replica.fold.finalized
        if shared is None:
            held = self._held(0, finalized)
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

    def checked(self, end: int) -> None:
        """Note that the log was read through up to `end`."""
        self._checked_end = end

    def hold(self, next_record: int, finalized: int = OLDEST, unreadable: Unreadable | None = None) -> bytes:
        """Return the record that tells that this node has no copy, and will read on from `next_record`.

        It tells, too, where the node cannot read on, until it has the copy.
        """
        with self._lock:
            self.number += 1
            self._told, self._checked_end = None, 0
        return self._record(Kind.HOLD, self._held(next_record, finalized), _beside(unreadable))

    def _held(self, next_record: int, finalized: int) -> Holding:
        """Return what a node without a copy tells: where it serves all the same, for who looks for nodes."""
        return Holding(
            next_record,
            http=self._http,
            certificate=self._certificate(),
            supports=SUPPORTED,
            finalized=finalized,
        )

    def complaint(self, known: Holding, epoch: int, number: int) -> bytes:
        """Return the record that repeats what the log knows of this node, and that it reaches no leader."""
        kind = Kind.HOLD if known.end is None else Kind.CHECKPOINT
        return self._record(kind, known, {"unreached": [epoch, number]})

    def unreadable(self, known: Holding, where: Unreadable) -> bytes:
        """Return the record that repeats what the log knows of this node, and that it cannot read on."""
        return self._record(Kind.HOLD if known.end is None else Kind.CHECKPOINT, known, _beside(where))

    def _read_back(self, replica: Replica, known: Holding | None, end: int) -> bool:
        """Read what a checkpoint rests on, from what was told before; raise `StoreDamaged`.

        Return False if newer checkpoints have taken its place meanwhile.
        """
        if end not in snapshot.offsets(self._disk):
            return False
        if not snapshot.is_sound(self._disk, end):
            if end in snapshot.offsets(self._disk):
                raise StoreDamaged(f"The snapshot at {end} is not what was written.")
            return False
        since = min(max(self._checked_end, (known and known.end) or 0), end)
        damaged = holes.damage_beside(self._disk, replica.core.segment_bytes, since, end)
        first_offset = replica.core.store.log.first_offset  # retention may have gone on meanwhile
        for one in damaged:
            if one.end_offset > first_offset:
                raise StoreDamaged(
                    f"Bytes {one.first_offset} to {one.end_offset} of the log are not what was written."
                )
        return True

    def _record(self, kind: Kind, holding: Holding, beside: dict[str, Any] | None = None) -> bytes:
        facts = body_of(holding.facts(self._name) | (beside or {}))
        return encode(SharedRecord(self._began.cluster, kind, 0, NOBODY, holding.end or 0, 0, facts))


def _beside(unreadable: Unreadable | None) -> dict[str, Any]:
    """Return what is said of where a node cannot read on, beside what it holds."""
    return {} if unreadable is None else {"unreadable": list(unreadable)}


class Found(NamedTuple):
    """What the shared log tells a node without a fold.

    The first record that is left, the copies of others from which the log can be read on (the newest first),
    the newest EPOCH, if it is left (with the certificate that its leader has told since), the cluster's
    version, as far as a node with a copy knew it, and what the node itself has said that it holds.
    """

    first: int
    copies: list[tuple[str, Holding]]
    epoch: SharedRecord | None
    finalized: int
    own: Holding | None


def look_for_copies(engine: Engine, cluster: bytes, name: str, beyond: int = -1) -> Found:
    """Return what the shared log tells the node `name`, whose copy is to reach beyond a record.

    Raise `Unknown`.
    """
    first, _ = engine.bounds()
    holdings, epoch = Holdings(), None
    for record in records(engine, cluster):
        if record.kind in (Kind.CHECKPOINT, Kind.HOLD):
            holdings.told(record.facts)
        elif record.kind == Kind.EPOCH and (epoch is None or record.epoch > epoch.epoch):
            epoch = record
        elif epoch is not None and record.kind == Kind.BEAT and told_anew({}, record.facts):
            if record.holder != epoch.holder:
                continue
            epoch = replace(epoch, body=body_of(told_anew(epoch.facts, record.facts)))
    finalized = max((one.finalized for one in holdings.all().values()), default=OLDEST)
    copies = holdings.copies(name, max(first, beyond + 1))
    return Found(first, copies, epoch, finalized, holdings.of(name))


def copies_told(holdings: Holdings) -> dict[str, dict[str, Any]]:
    """Return what each node holds, as JSON can hold it; secrets left out."""
    return {
        node: {
            "next_record": one.next_record,
            "end_offset": one.end,
            "http": one.http,
            "supports": one.supports,
        }
        for node, one in holdings.all().items()
    }
