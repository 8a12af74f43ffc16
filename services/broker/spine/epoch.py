"""The epoch of a log. It increases with each new leader, and is 0 outside a cluster.

The shared log determines the leader and its epoch.

1. A new leader's first record begins a new epoch, so every reader of the log sees where the epoch starts.
   Epoch numbers only ever increase, so a delayed call from a former leader cannot restore an older epoch.
2. Each flush belongs to exactly one epoch, which is passed to the sink (`commitlog.log.sink`). Records from
   an older epoch are either made durable before the new epoch begins or discarded with their core. They are
   never flushed in a newer epoch.
3. Receipt handles contain the epoch unless it is 0 (`consumequeue.groups.receipts`). A node that receives a
   handle with a newer epoch is no longer the leader. A handle with an older epoch or no epoch is valid until
   its lease expires. Recall handles and transaction ids contain no epoch, because they only identify a
   message.

The body of a `TW_SYS_EPOCH` record is a JSON object with "epoch", "node" (the leader), and "version" (the
finalized version; see `sharedlog.versions`). The version determines how this record and all later records are
applied (`commitlog.applied_limits`).
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
        """Begin a newer epoch. All records from the previous epoch must be durable.

        Return the offset up to which the log must be durable before the epoch is used. `node` is the epoch's
        leader, and `version` is the cluster's finalized version. The caller must have verified that the node
        is the leader, so an epoch that is not higher indicates a bug.
        """
        assert number > self.number, f"epoch {number} is not above {self.number}, which has begun"
        assert self._log.is_quiet, "what an older epoch appended is not flushed under a newer one"
        return self._store.append(record_of(EpochBegun(number, node, version)), now_ms).end_offset

    def apply(self, fact: EpochBegun, stamp: Stamp) -> None:
        """Begin an epoch with the version in the epoch record."""
        self._log.epoch, self._store.version = fact.number, fact.version

    def freeze(self) -> Any:
        """Return the epoch for a snapshot."""
        return self.number

    def thaw(self, frozen: Any) -> None:
        """Restore the epoch from a snapshot."""
        self._log.epoch = frozen
