"""The epoch: how often the right to append to this log has passed on; 0 as long as a store is alone.

Who holds that right, and since when, a shared log decides. Here is what follows from it:

1. A new epoch begins with a record, the first thing its leader appends, so whoever folds the log knows from
   where on it holds. It is higher than the one before: an older leader's late call must not bring it back.
2. A flush is of one epoch, which the sink is told (`commitlog.sink`): what an older one appended was durable
   before, or is dropped with the core that appended it, but is never given out under a newer epoch.
3. Receipt handles name it unless it is 0 (`consumequeue.receipts`): a handle of a newer epoch than one's own
   says that another leads. One of an older epoch, or of none, stays as good as its lease. Recall handles and
   transaction ids name a message, not a right, and do not say it.

The body of a `TW_SYS_EPOCH` record is JSON: {"epoch"}, {"node"}, the node that leads in it, and {"version"},
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
        """The present epoch."""
        return self._log.epoch

    def raise_to(self, number: int, now_ms: int, node: str = "", version: int = OLDEST) -> int:
        """Begin a newer epoch, when all before it is durable; return what must be durable before it counts.

        `node` is the node that leads in it, `version` the cluster's finalized version.

        The caller has found that the right to append is its own: a number that does not ascend is a bug.
        """
        assert number > self.number, f"epoch {number} is not above {self.number}, which has begun"
        assert self._log.is_quiet, "what an older epoch appended is not flushed under a newer one"
        return self._store.append(record_of(EpochBegun(number, node, version)), now_ms).end_offset

    def apply(self, fact: EpochBegun, stamp: Stamp) -> None:
        """Begin an epoch, and apply by its version."""
        self._log.epoch, self._store.version = fact.number, fact.version

    def freeze(self) -> Any:
        """Return what a snapshot keeps."""
        return self.number

    def thaw(self, frozen: Any) -> None:
        """Take a snapshot's part over."""
        self._log.epoch = frozen
