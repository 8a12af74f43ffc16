"""The epoch of a log, which increases with each new leader and is 0 if the store is not part of a cluster.

The leader and its epoch are determined by the shared log. The following rules apply to epochs:

1. The first record that a new leader appends begins a new epoch, so that the start of the epoch is visible to
   every reader of the log. Epoch numbers always increase, so that a delayed call from an earlier leader
   cannot restore an older epoch.
2. Each flush belongs to a single epoch, which is passed to the sink (`commitlog.sink`). Records of an older
   epoch either become durable before the new epoch begins, or are discarded together with the core that
   appended them. Records are never flushed as part of a newer epoch.
3. Receipt handles contain the epoch, unless the epoch is 0 (`consumequeue.receipts`). If a receipt handle
   contains a newer epoch than the epoch of the node, the node is no longer the leader. A receipt handle with
   an older epoch, or without an epoch, is valid until its lease expires. Recall handles and transaction ids
   do not contain an epoch, because they identify only a message.

The body of a `TW_SYS_EPOCH` record is a JSON object with the members "epoch", "node" (the leader of the
epoch), and "version" (the finalized version; see `sharedlog.versions`). The "version" determines the rules by
which the epoch record and all subsequent records are applied (`commitlog.applied_limits`).
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
        """The number of the current epoch."""
        return self._log.epoch

    def raise_to(self, number: int, now_ms: int, node: str = "", version: int = OLDEST) -> int:
        """Begin a newer epoch after all records of the previous epoch have become durable.

        Return the offset up to which the log must be durable before the epoch is used. `node` is the leader
        of the epoch, and `version` is the finalized version of the cluster.

        The caller must have verified that the node is the leader. A number that is not higher than the
        current epoch therefore indicates a bug.
        """
        assert number > self.number, f"epoch {number} is not above {self.number}, which has begun"
        assert self._log.is_quiet, "what an older epoch appended is not flushed under a newer one"
        return self._store.append(record_of(EpochBegun(number, node, version)), now_ms).end_offset

    def apply(self, fact: EpochBegun, stamp: Stamp) -> None:
        """Begin an epoch, and adopt the version in the epoch record."""
        self._log.epoch, self._store.version = fact.number, fact.version

    def freeze(self) -> Any:
        """Return the epoch for inclusion in a snapshot."""
        return self.number

    def thaw(self, frozen: Any) -> None:
        """Restore the epoch from a snapshot."""
        self._log.epoch = frozen
