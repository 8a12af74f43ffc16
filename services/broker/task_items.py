"""The items of tasks, stored as messages in the internal topic `TW_SYS_TASK`.

    batch of a task -> its records are durable -> `add_items` -> ... -> last list is durable -> task ends

1. Each record lists one batch of at most `limits.TASK_SLICE` items. The key of a record is the task id, by
   which the key index finds the newest record of a task. The newest record contains the offset of the first
   record of the task. Records between the first and the newest record belong to this task or to concurrent
   tasks.
2. The body is a JSON object with the id and kind of the task, the offset of the first record of the task
   (null in the first record itself), and the items. Each item is a list [topic, name, message id, verdict].
3. The list of a batch is appended after its changes. A crash can lose the list of the last batch, but no
   other list.
4. Task records are deleted when log retention deletes the segments that contain them.
5. In a cluster, task records require a finalized version that supports them
   (`services.broker.spine.record_versions`). Before such a version is finalized, tasks run without storing
   items.

Cost: about 100 bytes per item. A page request examines at most `EXAMINED_MAX` records.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from commitlog.errors import StoreDamaged
from commitlog.records import properties
from commitlog.records.kinds import TASK_TOPIC
from commitlog.records.record import Record
from consumequeue.indexes import keyindex
from services.broker.spine import record_versions
from services.broker.spine.reading import MessageReader
from services.broker.spine.store import Store
from tidewheel import property_names

EXAMINED_MAX: Final = 1_000
"""Maximum number of records examined for one page."""
_QUEUE: Final = (TASK_TOPIC, 0)


class TaskItem(NamedTuple):
    """A task item with its verdict, or with an error code if the operation was refused.

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
class StoredTaskItem:
    """A task item with its store time, in milliseconds since the Unix epoch."""

    store_ms: int
    item: TaskItem


@dataclass(slots=True, frozen=True)
class ItemsPage:
    """A page of task items in processing order.

    `after` is the cursor for the next page, or None on the last page. A cursor consists of the queue offset
    of a record and the number of its items on earlier pages.
    """

    items: list[StoredTaskItem]
    after: tuple[int, int] | None


class AddedItems(NamedTuple):
    """The result of `TaskItems.add_items`.

    `first` is the queue offset of the first record of the task, and `durable_at` is the log offset below
    which all records must be durable.
    """

    first: int
    durable_at: int


class TaskItems:
    """The items of all tasks."""

    def __init__(self, store: Store, reading: MessageReader) -> None:
        self._store, self._reading = store, reading

    @property
    def is_enabled(self) -> bool:
        """Whether task items are stored, which requires support by all nodes in the cluster."""
        return record_versions.may_write(self._store, record_versions.TASK_ITEMS)

    def add_items(
        self, task_id: str, kind: str, first: int | None, items: Sequence[TaskItem], now_ms: int
    ) -> AddedItems:
        """Append a record that lists a batch of items.

        `first` is the queue offset of the first record of the task, or None if the task has no record yet.
        """
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
        """Return up to `count_max` items of a task, or None if the log contains no record of the task.

        Unreadable records are omitted. A page may contain fewer items if many examined records belong to
        other tasks.
        """
        newest = self._find_newest(task_id, kind)
        if newest is None:
            return None
        queue, found = self._store.dispatch.find_queue(*_QUEUE), list[StoredTaskItem]()
        first = _items_in(newest)["first"]
        place, skipped = after or (newest.queue_offset if first is None else int(first), 0)
        begin = max(place, queue.min_offset)
        for offset in range(begin, newest.queue_offset + 1):
            if offset - begin == EXAMINED_MAX:
                return ItemsPage(found, (offset, 0))
            record = self._reading.record(queue, offset, queue.entry(offset))
            said = {} if record is None else _items_in(record)
            if record is None or (said["task"], said["kind"]) != (task_id, kind):
                continue
            passed = skipped if offset == place else 0
            for number, item in enumerate(said["items"][passed:], passed):
                if len(found) == count_max:
                    return ItemsPage(found, (offset, number))
                found.append(StoredTaskItem(record.store_ms, TaskItem(*item[: len(TaskItem._fields)])))
        return ItemsPage(found, None)

    def _find_newest(self, task_id: str, kind: str) -> Record | None:
        """Return the newest readable record of a task, or None."""
        for offset in self._store.offsets_by_key_or_id(TASK_TOPIC, task_id, self._store.log.first_offset):
            try:
                record = self._store.read(offset)
            except StoreDamaged:
                continue
            if keyindex.carries(record, TASK_TOPIC, task_id) and _items_in(record)["kind"] == kind:
                return record
        return None


def _items_in(record: Record) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(record.body)
    return said
