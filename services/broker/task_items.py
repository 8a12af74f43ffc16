"""The items that tasks have changed, as messages in the broker's own topic `TW_SYS_TASK`.

    slice of a task -> its records, durable -> `add_items` -> ... -> the end of the task waits for the last

1. A record has the items of one slice of a task, at most `limits.TASK_SLICE`. Its key is the id of the task.
   The key index therefore finds the newest record of a task, and this record has the offset of the first.
   The records of a task are between these two offsets, together with those of tasks that ran meanwhile.
2. The body is JSON: the id and the kind of the task, the offset of its first record (null in that record),
   and a list [topic, name, message id, verdict] for each item.
3. The record of a slice follows the records of its changes. A crash may therefore lose the list of the last
   slice, but not the list of an earlier slice.
4. Retention deletes the records together with the segments that contain them.

Cost: a task appends about 100 bytes per item. A page examines at most `LOOKED_AT_MAX` records.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from commitlog import properties
from commitlog.errors import StoreDamaged
from commitlog.kinds import TASK_TOPIC
from commitlog.record import Record
from consumequeue import keyindex
from services.broker.spine.reading import MessageReader
from services.broker.spine.store import Store
from tidewheel import property_names

LOOKED_AT_MAX: Final = 1_000
"""The maximum number of records that one page examines."""
_QUEUE: Final = (TASK_TOPIC, 0)


class TaskItem(NamedTuple):
    """An item of a task, with its verdict or the code of the error that refused it.

    topic       the topic of the timer or the message, or the original topic of the dead letter
    name        the timer key, or "queue:offset" of the message, or the offset of the dead letter
    message_id  the id of the message
    verdict     the result
    """

    topic: str
    name: str
    message_id: str
    verdict: str


@dataclass(slots=True, frozen=True)
class DoneItem:
    """An item with the time at which its slice was stored, in ms since 1970."""

    store_ms: int
    item: TaskItem


@dataclass(slots=True, frozen=True)
class ItemsPage:
    """Items of a task, in the order of the task. `after` is the cursor of the next page, or None at the end.

    A cursor is the offset of a record, and the number of its items that earlier pages returned.
    """

    items: list[DoneItem]
    after: tuple[int, int] | None


class AddedItems(NamedTuple):
    """The offset of the first record of a task, and the log offset that must be durable."""

    first: int
    durable_at: int


class TaskItems:
    """The items of all tasks."""

    def __init__(self, store: Store, reading: MessageReader) -> None:
        self._store, self._reading = store, reading

    def add_items(
        self, task_id: str, kind: str, first: int | None, items: Sequence[TaskItem], now_ms: int
    ) -> AddedItems:
        """Append the items of a slice. `first` is the offset of the first record of the task, or None."""
        said = {"task": task_id, "kind": kind, "first": first, "items": items}
        record = Record(
            topic=TASK_TOPIC,
            body=json.dumps(said, ensure_ascii=False).encode("utf-8", "replace"),
            properties=properties.encode({property_names.KEYS: task_id}),
        )
        added = self._store.append(record, now_ms)
        return AddedItems(added.queue_offset if first is None else first, added.end_offset)

    def page(
        self, task_id: str, kind: str, after: tuple[int, int] | None, count_max: int
    ) -> ItemsPage | None:
        """Return up to `count_max` items of a task, or None if the log has no items of it.

        Unreadable records are omitted. A page has fewer items if many records are of other tasks.
        """
        newest = self._find_newest(task_id, kind)
        if newest is None:
            return None
        queue, found = self._store.dispatch.look(*_QUEUE), list[DoneItem]()
        first = _said(newest)["first"]
        place, skipped = after or (newest.queue_offset if first is None else int(first), 0)
        begin = max(place, queue.min_offset)
        for offset in range(begin, newest.queue_offset + 1):
            if offset - begin == LOOKED_AT_MAX:
                return ItemsPage(found, (offset, 0))
            record = self._reading.record(queue, offset, queue.entry(offset))
            said = {} if record is None else _said(record)
            if record is None or (said["task"], said["kind"]) != (task_id, kind):
                continue
            passed = skipped if offset == place else 0
            for number, item in enumerate(said["items"][passed:], passed):
                if len(found) == count_max:
                    return ItemsPage(found, (offset, number))
                found.append(DoneItem(record.store_ms, TaskItem(*item[: len(TaskItem._fields)])))
        return ItemsPage(found, None)

    def _find_newest(self, task_id: str, kind: str) -> Record | None:
        """Return the newest readable record of a task, or None."""
        for offset in self._store.offsets_named(TASK_TOPIC, task_id, self._store.log.first_offset):
            try:
                record = self._store.read(offset)
            except StoreDamaged:
                continue
            if keyindex.carries(record, TASK_TOPIC, task_id) and _said(record)["kind"] == kind:
                return record
        return None


def _said(record: Record) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(record.body)
    return said
