"""The log as a stream of micro-batches, with the handling of a checkpoint whose log is lost."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from commitlog.errors import StoreError
from commitlog.log.published_log import StoreLog, holes, is_node, open_log, read_durable
from commitlog.log.recovery import Damage
from spark_jobs.errors import StreamLost
from spark_jobs.log.index.ranges import place
from spark_jobs.log.parts import Gone, Part
from spark_jobs.log.scan.slices import SLICE_BYTES_DEFAULT, slices
from spark_jobs.positions import Loss, Position, loss_at
from spark_jobs.rows import Rows, Task
from spark_jobs.source_options import STREAM, boolean, bytes_of, check_names, path_of


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a growing log. An offset is a `Position`; a batch has the records that start between two.

    A batch that is read again has the same rows: nothing before the durable offset changes, and a record
    belongs to the batch in which it starts, even if it extends beyond the batch's end. A batch ends at the
    published durable offset, or earlier due to `max_bytes_per_trigger`. New segments need no special case.

    Both ends of a batch are checked against the log before the batch is planned. A loss raises `StreamLost`.
    With `failOnDataLoss=false` it becomes a `Gone` part of the batch, which then begins where a new query
    begins in another log, or at the first record that retention has left.
    """

    def __init__(self, options: Mapping[str, str], columns: tuple[str, ...]) -> None:
        check_names(options, STREAM)
        self._store = path_of(options)
        self._slice_bytes = bytes_of(options, "slice_bytes", SLICE_BYTES_DEFAULT)
        self._bytes_max = bytes_of(options, "max_bytes_per_trigger", 0)
        self._since = place(options, "from", "startingTimestamp")
        self._fails = boolean(options, "failOnDataLoss", default=True)
        self._stop_offset: int | None = None
        self._rows = Rows(options, columns)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the position of `from`, or the start of the log; raise `UnknownChoice`, `StoreError`."""
        return Position.first_of(self._log(), self._since).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the maximum number of bytes of log per batch, if there is one."""
        return ReadMaxBytes(self._bytes_max) if self._bytes_max else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Store the present end of the log, where a query with this trigger ends."""
        self._stop_offset = read_durable(self._store) or 0

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the position at the durable offset, or at the limit if it is before; raise `StreamLost`."""
        position = Position.from_json(start)
        loss = self._accepted(loss_at(self._store, position))
        first = position if loss is None else self._resumed(loss, position)
        end_offset = max(self._durable_offset(), first.offset)
        if isinstance(limit, ReadMaxBytes):
            end_offset = min(end_offset, first.offset + limit.max_bytes)
        if loss is None and end_offset == first.offset:
            return start  # the same text as in the checkpoint: Spark compares texts
        end = first.advanced(self._log(), end_offset)
        return (replace(end, began=first.offset) if loss or position.is_first else end).as_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the slices, holes and losses between two offsets; raise `StreamLost`, `StoreError`."""
        if start == end:
            return []
        first, last = Position.from_json(start), Position.from_json(end)
        lost_end = self._accepted(loss_at(self._store, last))
        if lost_end is not None:
            began = first.offset if last.began is None else last.began
            return [Task(Gone(Damage(min(began, last.offset), last.offset), lost_end.why))]
        loss = loss_at(self._store, first)
        if last.began is None:
            loss = self._accepted(loss)
        gone: list[Part] = [] if loss is None else [Gone(loss.gone, loss.why)]
        if last.began is not None:
            first = replace(last, offset=last.began, mark=None)
        elif loss is not None:
            first = self._resumed(loss, first)
        return [Task(part, last.stored_ms) for part in (*gone, *self._between(first, last.offset))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of a partition; raise `StreamLost` if its segment has been deleted."""
        try:
            yield from self._rows.of(partition)
        except FileNotFoundError as error:
            raise StreamLost(
                f"{error.filename} was deleted while it was read, as by retention. Run the query again: it "
                "says what is gone, or with failOnDataLoss=false goes on behind it."
            ) from error

    def _between(self, first: Position, end_offset: int) -> list[Part]:
        if first.first_offset >= end_offset:
            return []
        log = open_log(self._store)
        if first.offset < log.first_offset:  # retention has deleted records since the check
            lost = self._accepted(loss_at(self._store, first))
            if lost is not None:
                return [Gone(lost.gone, lost.why), *self._between(self._resumed(lost, first), end_offset)]
        if log.end_offset < end_offset:
            raise StoreError(
                f"{self._store} tells of {log.end_offset} bytes of log, and this batch ends at "
                f"{end_offset}: a node that was started again has not taken that in yet. Run the query "
                "again in some seconds."
            )
        missing = tuple(holes(log, first.first_offset, end_offset))
        parts: list[Part] = [*slices(log, self._slice_bytes, first.first_offset, end_offset)]
        return [*parts, missing] if missing else parts

    def _log(self) -> StoreLog | None:
        """Return the log, or None if it cannot be opened; raise `StoreError` if RocketMQ writes it."""
        try:
            log = open_log(self._store)
        except StoreError:
            return None
        if log.durable_offset is None and not log.ours:
            raise StoreError(
                f"{self._store} is Apache RocketMQ's own and does not publish how far it may be read, so no "
                "stream can follow it. Import it (tidewheel store import), or read it with spark.read."
            )
        return log

    def _durable_offset(self) -> int:
        return (read_durable(self._store) or 0) if self._stop_offset is None else self._stop_offset

    def _resumed(self, loss: Loss, position: Position) -> Position:
        """Return the position from which the stream continues after a loss."""
        if loss.is_other_log:
            return Position.first_of(self._log(), self._since)
        return replace(position, offset=loss.gone.end_offset, mark=None)

    def _accepted(self, loss: Loss | None) -> Loss | None:
        """Return a loss with a warning if the query is to continue after it; otherwise raise `StreamLost`."""
        if loss is None:
            return None
        if self._fails:
            is_behind = is_node(self._store) and loss.is_other_log
            wait = " If the node fetches its log anew, wait until it is in step." if is_behind else ""
            raise StreamLost(
                f"{loss.why}{wait} Begin anew with another checkpoint, or set failOnDataLoss=false to go on "
                "with what is there: then a row with `damage` says what is gone."
            )
        warnings.warn(f"failOnDataLoss=false: {loss.why}", stacklevel=2)
        return loss
