"""Store the epoch of a log, which increases with each new leader and is 0 outside a cluster.

The shared log determines the leader and the epoch number.

1. The first record of a new leader begins a new epoch, and marks its start for every reader of the log.
   Epoch numbers only increase. A delayed call from a former leader therefore cannot restore an older epoch.
2. Each flush belongs to exactly one epoch, which is passed to the sink (`commitlog.log.sink`). The records of
   an older epoch are either made durable before the new epoch begins, or discarded with the core that
   appended them. A record is never flushed in a later epoch.
3. A receipt handle contains the epoch unless the epoch is 0 (`consumequeue.groups.receipts`). A node that
   receives a handle with a newer epoch is no longer the leader. A handle with an older epoch or without an
   epoch is valid until the lease expires. Recall handles and transaction ids contain no epoch, because they
   only identify a message.

The body of a `TW_SYS_EPOCH` record is a JSON object with "epoch", "node" (the leader), and "version" (the
finalized version; see `sharedlog.versions`). The version determines how the epoch record and all later
records are applied (`commitlog.applied_limits`).
"""

from __future__ import annotations

from typing import Any

from commitlog.applied_limits import OLDEST
from commitlog.facts.facts import EpochBegun, Stamp, record_of
from services.broker.spine.store import Store


class Epoch:
    """The epoch of a broker's log."""

    def __init__(self, store: Store) -> None:
        self._store, self._log = store, store.log

    @property
    def number(self) -> int:
        """The current epoch number."""
        return self._log.epoch

    def raise_to(self, number: int, now_ms: int, node: str = "", version: int = OLDEST) -> int:
        """Begin a newer epoch. All records of the previous epoch must be durable.

        Return the offset up to which the log must be durable before the epoch is used. `node` is the leader
        of the epoch, and `version` is the finalized version of the cluster. The caller must have verified
        that the node is the leader. A `number` that is not above the current epoch therefore indicates a bug.
        """
        assert number > self.number, f"epoch {number} is not above {self.number}, which has begun"
        assert self._log.is_quiet, "what an older epoch appended is not flushed under a newer one"
        return self._store.append(record_of(EpochBegun(number, node, version)), now_ms).end_offset

    def apply(self, fact: EpochBegun, stamp: Stamp) -> None:
        """Set the epoch and the version to those in the epoch record."""
        self._log.epoch, self._store.version = fact.number, fact.version

    def freeze(self) -> Any:
        """Return the epoch for a snapshot."""
        return self.number

    def thaw(self, frozen: Any) -> None:
        """Restore the epoch from a snapshot."""
        self._log.epoch = frozen
