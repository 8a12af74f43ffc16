"""Receipts for recent half messages, which prevent duplicates when a client retries a send.

If a half message with the same topic, message id, and content was stored within the last `dedupe_ms`
milliseconds, the sender receives the original receipt. Each row contains the offset of the half message, from
which the receipt is computed. When a half message is stored, a few of the oldest rows are removed if they
have expired or the table is full. `commitlog.applied_limits` defines the limits. Rows are kept in insertion
order (`commitlog.snapshots.table`).
"""

from __future__ import annotations

from typing import Any, Final

from commitlog.facts.facts import HalfStored, facts_of
from commitlog.records.record import Record
from commitlog.snapshots.table import Table
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.store import Store
from services.broker.spine.values import SendReceipt
from services.broker.timers import recall
from txn import half

NO_DUE_TIME: Final = -1
"""The stored value for a half message without a due time."""
_SEPARATOR: Final = "\x00"
"""The separator between topic and message id in a key. Message ids never contain this character."""

Row = tuple[int, ...]
"""The store time, physical offset, queue offset, and due time (or -1) of a half message."""


class HalfReceipts:
    """Recently stored half messages, keyed by topic and message id."""

    def __init__(self, store: Store, settings: BrokerSettings) -> None:
        self._store, self._settings = store, settings
        self._rows: Table[str] = Table()

    def __len__(self) -> int:
        return len(self._rows)

    def find_receipt(self, topic: str, message_id: str, now_ms: int) -> SendReceipt | None:
        """Return the receipt for a half message stored within the last `dedupe_ms` milliseconds, or None."""
        row = self._rows.get(f"{topic}{_SEPARATOR}{message_id}")
        if row is None or row[0] <= now_ms - self._settings.dedupe_ms:
            return None
        return self.build_receipt(topic, message_id, half.id_crc(message_id), row)

    def build_receipt(self, topic: str, message_id: str, id_crc: int, row: Row) -> SendReceipt:
        """Return the receipt for the half message in a row."""
        _, offset, queue_offset, due_ms = row
        handle = ""
        if due_ms != NO_DUE_TIME:
            handle = recall.encode(topic, due_ms, message_id, self._settings.broker_name)
        transaction_id = half.transaction_id_of(offset, id_crc)
        return SendReceipt(message_id, queue_offset, offset, transaction_id, handle, offset + 1)

    def receipt_of(self, record: Record) -> SendReceipt:
        """Return the receipt for the half message in a record."""
        (fact,) = (one for one in facts_of(record) if isinstance(one, HalfStored))
        row = row_of(fact, record.store_ms, record.physical_offset, record.queue_offset)
        return self.build_receipt(fact.topic, fact.message_id, half.id_crc(fact.message_id), row)

    def add_half(self, topic: str, message_id: str, row: Row) -> None:
        """Add a row for an appended half message. Remove a few rows that have expired or exceed the limit."""
        self._put(topic, message_id, row)
        bounds = self._store.applied
        for _ in range(bounds.half_receipts_dropped_max):
            first = self._rows.first()
            is_old = first is not None and first[1][0] <= row[0] - bounds.half_receipts_kept_ms
            if first is None or not (is_old or len(self._rows) > bounds.half_receipts_max):
                break
            self._rows.pop(first[0])

    def freeze(self) -> Any:
        """Return all rows for a snapshot."""
        return self._rows.freeze(lambda key, row: (*key.split(_SEPARATOR, 1), *row))

    def thaw(self, frozen: Any) -> None:
        """Restore the rows from a snapshot."""
        for topic, message_id, *row in frozen:
            self._put(topic, message_id, tuple(row))

    def _put(self, topic: str, message_id: str, row: Row) -> None:
        """Add the newest row. Replace any row with the same key."""
        key = f"{topic}{_SEPARATOR}{message_id}"
        self._rows.pop(key)
        self._rows.put(key, row)


def row_of(fact: HalfStored, store_ms: int, offset: int, queue_offset: int) -> Row:
    """Return the row for a half message."""
    return store_ms, offset, queue_offset, NO_DUE_TIME if fact.due_ms is None else fact.due_ms
