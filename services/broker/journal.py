"""The journal of operator actions, stored as messages in the internal topic `TW_SYS_JOURNAL`.

    action --> its records are durable --> `add_entry` --> the entry is durable --> response to the caller

1. Every acknowledged action remains in the journal after a restart or a change of leader, because journal
   entries are messages in the log. If a crash occurs before the entry of an action is durable, the caller
   receives no response.
2. The body of an entry is a JSON object (`JournalEntry`) whose fields have at most `_TEXT_MAX` characters
   each. The time of an entry is the store time of its message. Entries have no keys and are therefore not
   found by message searches.
3. Entries are deleted when log retention deletes the segments that contain them.

Cost: each action adds a record of about 300 bytes. A page request reads one record per entry, newest first,
and examines at most `EXAMINED_MAX` entries.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, NamedTuple

from commitlog.records.kinds import JOURNAL_TOPIC
from commitlog.records.record import Record
from services.broker.spine.reading import MessageReader
from services.broker.spine.store import Store

EXAMINED_MAX: Final = 1_000
"""Maximum number of entries examined for one page."""
_TEXT_MAX: Final = 500
_QUEUE: Final = (JOURNAL_TOPIC, 0)


class JournalEntry(NamedTuple):
    """An operator action.

    user     the user, "the administrator" for the token of --http-token, or "" if no token is required
    host     the address of the caller
    program  the client program, according to its User-Agent header
    verb     the name of the operation
    about    the object of the action, such as a topic, group, timer, or task, and its parameters
    reason   the reason specified by the caller, or ""
    verdict  the result, which is a verdict, "done", or an error code
    detail   the error message if the action was refused, or ""
    """

    user: str
    host: str
    program: str
    verb: str
    about: str
    reason: str
    verdict: str
    detail: str


@dataclass(slots=True, frozen=True)
class StoredEntry:
    """A journal entry with its journal offset and its store time in milliseconds since the Unix epoch."""

    offset: int
    store_ms: int
    entry: JournalEntry


@dataclass(slots=True, frozen=True)
class JournalPage:
    """A page of journal entries, newest first.

    `before` is the cursor for the next page, or None on the last page.
    """

    entries: list[StoredEntry]
    before: int | None


class Journal:
    """The journal of a broker."""

    def __init__(self, store: Store, reading: MessageReader) -> None:
        self._store, self._reading = store, reading

    def add_entry(self, entry: JournalEntry, now_ms: int) -> int:
        """Append a journal entry. Fields are truncated to `_TEXT_MAX` characters.

        Return the log offset below which all records must be durable before a response is sent.
        """
        short = JournalEntry(*(one if len(one) <= _TEXT_MAX else f"{one[: _TEXT_MAX - 1]}…" for one in entry))
        body = json.dumps(short._asdict(), ensure_ascii=False).encode("utf-8", "replace")
        record = Record(topic=JOURNAL_TOPIC, body=body)
        return self._store.append(record, now_ms).end_offset

    def page(self, before: int | None, count_max: int, about: str = "") -> JournalPage:
        """Return up to `count_max` entries whose journal offsets are below `before`, newest first.

        If `before` is None, return the newest entries. If `about` is not empty, return only entries with a
        field that contains this text, ignoring case. Unreadable entries are omitted.
        """
        found, wanted = list[StoredEntry](), about.lower()
        queue = self._store.dispatch.find_queue(*_QUEUE)
        last = queue.end_offset if before is None else min(before, queue.end_offset)
        lowest = max(queue.min_offset, last - EXAMINED_MAX)
        for offset in range(last - 1, lowest - 1, -1):
            if len(found) == count_max:
                return JournalPage(found, offset + 1)
            record = self._reading.record(queue, offset, queue.entry(offset))
            if record is None:
                continue
            entry = _entry(record)
            if any(wanted in text.lower() for text in entry):
                found.append(StoredEntry(offset, record.store_ms, entry))
        return JournalPage(found, lowest if lowest > queue.min_offset else None)


def _entry(record: Record) -> JournalEntry:
    """Return the journal entry in a record. Ignore unknown fields, which later releases may write."""
    said = json.loads(record.body)
    return JournalEntry(*(str(said.get(field, "")) for field in JournalEntry._fields))
