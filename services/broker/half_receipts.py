"""The receipts of halves that were sent lately, so that a client's own retry does not make a second one.

A half whose topic and message id were stored within `dedupe_ms` stores nothing and gets the first receipt.
A row says where the half lies; the rest of the receipt is made when it is asked for. The oldest rows go when
a half is stored: those older than `DEDUPE_MS` by then, and those beyond `HALF_RECEIPTS_KEPT_MAX`.

The rows lie in runs of `_RUN_ROWS_MAX`, in the order in which they came. Only the first run, which loses its
oldest rows, and the last are changed; another is replaced. So a checkpoint copies two of them.

Cost: a look into each run for each half that is sent, 1 us with 200,000 rows.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from commitlog import limits, properties
from commitlog.record import Record
from commitlog.snapshot import Rows
from services.broker import recall
from services.broker.settings import BrokerSettings
from services.broker.values import SendReceipt
from txn import half

AT_ONCE: Final = -1
"""In place of the due time of a half that has none."""
_RUN_ROWS_MAX: Final = 8_192

Name = tuple[str, str]
Row = tuple[int, ...]
"""Store time, physical offset, queue offset, due time or -1."""


class HalfReceipts:
    """Rows by topic and message id."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._runs: deque[dict[Name, Row]] = deque([{}])
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def known(self, topic: str, message_id: str, now_ms: int) -> SendReceipt | None:
        """The receipt of a half that was sent within `dedupe_ms`."""
        name = topic, message_id
        for run in self._runs:
            if (row := run.get(name)) is not None and row[0] > now_ms - self._settings.dedupe_ms:
                return self.receipt(topic, message_id, half.id_crc(message_id), row)
        return None

    def receipt(self, topic: str, message_id: str, id_crc: int, row: Row) -> SendReceipt:
        """The receipt of a half of which a row says this."""
        _, offset, queue_offset, due_ms = row
        handle = ""
        if due_ms != AT_ONCE:
            handle = recall.encode(topic, due_ms, message_id, self._settings.broker_name)
        transaction_id = half.transaction_id_of(offset, id_crc)
        return SendReceipt(message_id, queue_offset, offset, transaction_id, handle, offset + 1)

    def apply(self, record: Record) -> None:
        """Remembers a half that was appended."""
        stored = properties.of_record(record)
        name = stored.get(properties.REAL_TOPIC, ""), stored.get(properties.MESSAGE_ID, "")
        due_ms = int(stored.get(properties.DUE_MS, AT_ONCE))
        self.apply_sent(name, (record.store_ms, record.physical_offset, record.queue_offset, due_ms))

    def apply_sent(self, name: Name, row: Row) -> None:
        """The same by what its record says."""
        self._put(name, row)
        while self._is_over(row[0]):
            del self._runs[0][next(iter(self._runs[0]))]
            self._count -= 1
            self._drop_empty()

    def freeze(self) -> Any:
        """What a snapshot keeps: every row. Between the first and the last run none is ever changed."""
        last = len(self._runs) - 1
        runs = (run if 0 < place < last else run.copy() for place, run in enumerate(self._runs))
        return Rows(runs, lambda name, row: (*name, *row))

    def thaw(self, frozen: Any) -> None:
        """Takes a snapshot's part over; older versions kept whole receipts."""
        for topic, *kept in frozen:
            message_id, *row = kept if len(kept) > 2 else _row_of(*kept)
            self._put((topic, message_id), tuple(row))

    def _is_over(self, store_ms: int) -> bool:
        oldest_ms, *_ = next(iter(self._runs[0].values()))
        return oldest_ms <= store_ms - limits.DEDUPE_MS or self._count > limits.HALF_RECEIPTS_KEPT_MAX

    def _put(self, name: Name, row: Row) -> None:
        """Adds the newest row; an older one of that name goes."""
        for place, run in enumerate(self._runs):
            if name in run:
                self._runs[place] = {one: kept for one, kept in run.items() if one != name}
                self._count -= 1
        if len(self._runs[-1]) >= _RUN_ROWS_MAX:
            self._runs.append({})
        self._runs[-1][name] = row
        self._count += 1
        self._drop_empty()

    def _drop_empty(self) -> None:
        while len(self._runs) > 1 and not self._runs[0]:
            self._runs.popleft()
            # A worker may be reading the next run for a snapshot, and its rows go from now on.
            self._runs[0] = self._runs[0].copy()


def _row_of(stored_ms: int, receipt: dict[str, Any]) -> tuple[str, int, int, int, int]:
    handle = receipt["recall_handle"]
    due_ms = recall.decode(handle).due_ms if handle else AT_ONCE
    return receipt["message_id"], stored_ms, receipt["physical_offset"], receipt["queue_offset"], due_ms
