"""The epoch: a counter of leadership changes over this log; 0 while a store is not in a cluster.

A shared log decides which node leads, and from which epoch on. Rules that follow:

1. A new epoch begins with a record, the first that its leader appends, so each reader of the log knows where
   the epoch begins. Epochs ascend: a late call of an older leader must not restore its epoch.
2. A flush belongs to one epoch, which is passed to the sink (`commitlog.sink`): records of an older epoch are
   durable before, or are dropped with the core that appended them, but never flushed under a newer epoch.
3. Receipt handles contain the epoch unless it is 0 (`consumequeue.receipts`): a handle of an epoch newer than
   the node's own proves that another node leads. A handle of an older epoch, or of none, is valid as long as
   its lease. Recall handles and transaction ids name a message, not a right, and contain no epoch.

The body of a `TW_SYS_EPOCH` record is JSON: {"epoch"}, {"node"}, the leader of the epoch, and {"version"},
the finalized version (`sharedlog.versions`), by which records are applied from this one on
(`commitlog.applied_limits`).
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
        """Begin a newer epoch, once all earlier records are durable; return the offset to make durable first.

        `node` is the leader of the epoch, `version` the cluster's finalized version.

        The caller has established that this node leads: a number that does not ascend is a bug.
        """
        assert number > self.number, f"epoch {number} is not above {self.number}, which has begun"
        assert self._log.is_quiet, "what an older epoch appended is not flushed under a newer one"
        return self._store.append(record_of(EpochBegun(number, node, version)), now_ms).end_offset

    def apply(self, fact: EpochBegun, stamp: Stamp) -> None:
        """Begin an epoch, and adopt its version."""
        self._log.epoch, self._store.version = fact.number, fact.version

    def freeze(self) -> Any:
        """Return the snapshot part."""
        return self.number

    def thaw(self, frozen: Any) -> None:
        """Restore the snapshot part."""
        self._log.epoch = frozen
