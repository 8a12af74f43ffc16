"""Positions of a stream in a log, and the detection of data that the store has lost since.

    {"offset": 4096, "log": {"at": 3904, "bytes": 192, "crc": 1234, "store_ms": 1763700000000}}

`offset` is a log offset: all records that start before it were read. `log` is a mark, a record that
identifies the log (`log/marks.py`). `since_ms` is the time of the first wanted records, and `since_offset`
their log offset if the log did not reach it yet, both from the query's first start. `began` is the start of
the batch that ends here, if it is the first of a query (until that batch is committed, Spark requests the
initial offset again) or the first after a loss. `log` is missing while there is no log: then only the log's
length is checked.

    files of the store                      stream
    the marked record is there              continues; waits if less of the log is published than before
    other bytes in its place                loss: this is another log
    not there, log ends before `offset`     loss: this is another log, which ends too early
    not there, log begins after `offset`    loss: retention has deleted the records between
    not there, log includes `offset`        continues
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from commitlog.log.published_log import StoreLog, read_durable
from commitlog.log.recovery import Damage
from spark_jobs.log.index.ranges import FOREVER_MS, Place, found_at
from spark_jobs.log.marks import Mark, first_kept, is_kept, mark_at


@dataclass(frozen=True, slots=True)
class Position:
    """A position; see the module for its fields."""

    offset: int
    mark: Mark | None = None
    since_ms: int | None = None
    since_offset: int | None = None
    began: int | None = None

    @classmethod
    def first_of(cls, log: StoreLog | None, since: Place | None) -> Position:
        """Return the position at which a query begins; `log` is None while there is none.

        If `since` is after the end of the log, the position is the end, and later records before `since` are
        skipped. Raise `UnknownChoice`.
        """
        since_ms, since_offset = (None, None) if since is None else (since.ms, since.offset)
        if log is None:
            return cls(0, None, since_ms, since_offset, began=0)
        found = log.first_offset if since is None else found_at(log, since, is_end=False)
        offset = min(max(found, log.first_offset), log.end_offset)
        is_ahead = since_offset is not None and since_offset > offset
        return cls(offset, mark_at(log, offset), since_ms, since_offset if is_ahead else None, began=offset)

    @classmethod
    def at_end_of(cls, log: StoreLog) -> Position:
        """Return the position after all records of a log."""
        return cls(log.end_offset, mark_at(log, log.end_offset))

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Position:
        """Return the position from the JSON of a checkpoint."""
        mark = Mark.from_json(stored["log"]) if "log" in stored else None
        numbers = (stored.get(name) for name in ("since_ms", "since_offset", "began"))
        return cls(stored["offset"], mark, *numbers)

    def as_json(self) -> dict[str, Any]:
        """Return the position as JSON for a checkpoint."""
        log = None if self.mark is None else self.mark.as_json()
        rest = {"log": log, "since_ms": self.since_ms, "since_offset": self.since_offset, "began": self.began}
        return {"offset": self.offset, **{name: one for name, one in rest.items() if one is not None}}

    def advanced(self, log: StoreLog | None, offset: int) -> Position:
        """Return the position at a later offset of `log`, with the same wanted time and offset."""
        mark = None if log is None else mark_at(log, offset)
        return replace(self, offset=offset, mark=mark, began=None)

    @property
    def is_first(self) -> bool:
        """Return whether nothing was read before this position: the query begins, or begins again."""
        return self.began == self.offset

    @property
    def first_offset(self) -> int:
        """Return the log offset of the first wanted record."""
        return max(self.offset, self.since_offset or 0)

    @property
    def stored_ms(self) -> tuple[int, int] | None:
        """Return the wanted store times, from the first to before the second, or None for all."""
        return None if self.since_ms is None else (self.since_ms, FOREVER_MS)


@dataclass(frozen=True, slots=True)
class Loss:
    """The log offsets `gone` that a stream can no longer read, an empty range if their number is unknown.

    With `is_other_log`, the present log is read from where a new query begins, otherwise from the end of
    `gone`.
    """

    gone: Damage
    why: str
    is_other_log: bool


def loss_at(store: Path, position: Position) -> Loss | None:
    """Return the loss of a stream at this position, or None if the stream can continue or must wait."""
    offset, mark = position.offset, position.mark
    end_offset, first_offset = read_durable(store) or 0, first_kept(store) or 0
    kept = None if mark is None else is_kept(store, mark)
    if kept:
        return None
    if offset > end_offset:
        why = f"{store}: its log ends at {end_offset}, and the stream has read up to {offset}{_known(mark)}."
        return Loss(Damage(offset, offset), why, is_other_log=True)
    if first_offset > offset:
        why = (
            f"{store}: its log begins at {first_offset}, and the stream has read up to {offset}; what lies "
            "between was deleted."
        )
        return Loss(Damage(offset, first_offset), why, is_other_log=False)
    if kept is None:
        return None
    why = (
        f"{store} has another log than the one that was read up to {offset}{_known(mark)}; it goes from "
        f"{first_offset} to {end_offset}, without that record."
    )
    return Loss(Damage(offset, offset), why, is_other_log=True)


def _known(mark: Mark | None) -> str:
    if mark is None:
        return ""
    stored = datetime.fromtimestamp(mark.store_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return f" (known by the record at {mark.at}, stored {stored.replace('+00:00', 'Z')})"
