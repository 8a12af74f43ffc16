"""The receipts of halves that were sent lately, so that a client's own retry does not make a second one.

A half whose topic and message id were stored within `dedupe_ms` stores nothing and gets the first receipt.
A row says where the half lies; the rest of the receipt is made when it is asked for. The oldest rows go when
a half is stored: those older than `DEDUPE_MS` by then, and those beyond `HALF_RECEIPTS_KEPT_MAX`.
"""

from __future__ import annotations

from typing import Any

from commitlog import limits, properties
from commitlog.record import Record
from commitlog.snapshot import Rows
from services.broker import recall
from services.broker.settings import BrokerSettings
from services.broker.values import SendReceipt
from txn import half

_AT_ONCE = -1


class HalfReceipts:
    """Rows (store time, physical offset, queue offset, due time or -1) by topic and message id."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._rows: dict[tuple[str, str], tuple[int, int, int, int]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def known(self, topic: str, message_id: str, now_ms: int) -> SendReceipt | None:
        """The receipt of a half that was sent within `dedupe_ms`."""
        row = self._rows.get((topic, message_id))
        is_known = row is not None and row[0] > now_ms - self._settings.dedupe_ms
        return self.receipt(topic, message_id) if is_known else None

    def receipt(self, topic: str, message_id: str) -> SendReceipt:
        """The receipt of a half that has a row; raises KeyError."""
        _, offset, queue_offset, due_ms = self._rows[(topic, message_id)]
        return SendReceipt(
            message_id=message_id,
            queue_offset=queue_offset,
            physical_offset=offset,
            transaction_id=half.transaction_id(offset, message_id),
            recall_handle=""
            if due_ms == _AT_ONCE
            else recall.encode(topic, due_ms, message_id, self._settings.broker_name),
            durable_at=offset + 1,
        )

    def apply(self, record: Record) -> None:
        """Remembers a half that was appended."""
        stored = record.properties
        name = properties.value_of(stored, properties.REAL_TOPIC), _message_id(record)
        due_ms = int(properties.value_of(stored, properties.DUE_MS) or _AT_ONCE)
        self._rows.pop(name, None)  # it is the newest now
        self._rows[name] = (record.store_ms, record.physical_offset, record.queue_offset, due_ms)
        while self._is_over(record.store_ms):
            del self._rows[next(iter(self._rows))]

    def freeze(self) -> Any:
        """What a snapshot keeps: every row."""
        return Rows(self._rows, lambda name, row: (*name, *row))

    def thaw(self, frozen: Any) -> None:
        """Takes a snapshot's part over; older versions kept whole receipts."""
        for topic, *kept in frozen:
            message_id, *row = kept if len(kept) > 2 else _row_of(*kept)
            self._rows[(topic, message_id)] = tuple(row)

    def _is_over(self, store_ms: int) -> bool:
        oldest_ms, *_ = next(iter(self._rows.values()))
        return oldest_ms <= store_ms - limits.DEDUPE_MS or len(self._rows) > limits.HALF_RECEIPTS_KEPT_MAX


def _message_id(record: Record) -> str:
    return properties.value_of(record.properties, properties.MESSAGE_ID)


def _row_of(stored_ms: int, receipt: dict[str, Any]) -> tuple[str, int, int, int, int]:
    handle = receipt["recall_handle"]
    due_ms = recall.decode(handle).due_ms if handle else _AT_ONCE
    return receipt["message_id"], stored_ms, receipt["physical_offset"], receipt["queue_offset"], due_ms
