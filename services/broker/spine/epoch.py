"""The epoch of a log: a counter of leadership changes, which is 0 while the store is not in a cluster.

The shared log determines the leader and the epoch in which its leadership begins. Rules of the epoch:

1. An epoch begins with a record, the first one that the new leader appends, so that every reader of the log
   can see where the epoch begins. Epoch numbers ascend, so a delayed call of an earlier leader cannot restore
   an older epoch.
2. Each flush belongs to one epoch, which is passed to the sink (`commitlog.sink`). Records of an older epoch
   either become durable before the new epoch begins, or are discarded with the core that appended the
   records. Records are never flushed under a newer epoch.
3. A receipt handle contains the epoch unless the epoch is 0 (`consumequeue.receipts`). A receipt handle with
   a newer epoch than that of the node proves that another node leads. A receipt handle with an older epoch,
   or without an epoch, is valid as long as its lease. Recall handles and transaction ids only identify a
   message, and contain no epoch.

The body of a `TW_SYS_EPOCH` record is JSON with the members "epoch", "node" (the leader of the epoch), and
"version" (the finalized version of `sharedlog.versions`). The epoch record and all records after it are
applied by the rules of the "version" (`commitlog.applied_limits`).
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
        """The current epoch."""
        return self._log.epoch

    def raise_to(self, number: int, now_ms: int, node: str = "", version: int = OLDEST) -> int:
        """Begin a newer epoch after all earlier records have become durable.

        Return the offset that must be durable before the epoch is used. `node` is the leader of the epoch,
        and `version` is the finalized version of the cluster.

        The caller has verified that the node leads, so a number that is not above the current epoch is a bug.
        """
        assert number > self.number, f"epoch {number} is not above {self.number}, which has begun"
        assert self._log.is_quiet, "what an older epoch appended is not flushed under a newer one"
        return self._store.append(record_of(EpochBegun(number, node, version)), now_ms).end_offset

    def apply(self, fact: EpochBegun, stamp: Stamp) -> None:
        """Begin an epoch, and adopt the version in its record."""
        self._log.epoch, self._store.version = fact.number, fact.version

    def freeze(self) -> Any:
        """Return the snapshot part."""
        return self.number

    def thaw(self, frozen: Any) -> None:
        """Restore the snapshot part."""
        self._log.epoch = frozen
