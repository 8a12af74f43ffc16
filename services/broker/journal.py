"""The journal: operators' acts, as messages of the topic `TW_SYS_JOURNAL`, which the broker keeps for itself.

    act --> its records, durable --> `note`: an entry --> durable --> the answer of the act

1. Whoever has the answer of an act finds the act in the journal, also after a restart and on another leader:
   the entry is in the log like any message. An act that a crash interrupts before its entry has no answer.
2. The body of an entry is JSON (`Entry`), at most `ENTRY_BYTES_MAX`; its time is its store time. Entries have
   no key, so no search for messages finds them.
3. Retention deletes entries with the segments that they are in.

Cost: a record of some 300 bytes an act; a page reads one record an entry, newest first, and looks at no more
than `LOOKED_AT_MAX`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, NamedTuple

from commitlog.kinds import JOURNAL_TOPIC
from commitlog.record import Record
from services.broker.spine.reading import Reading
from services.broker.spine.store import Store

ENTRY_BYTES_MAX: Final = 4_096
LOOKED_AT_MAX: Final = 1_000
"""The entries that one page looks at."""
_TEXT_MAX: Final = 500
_QUEUE: Final = (JOURNAL_TOPIC, 0)


class Entry(NamedTuple):
    """An act.

    user     the name of the user; "" if the interface asks for no token
    host     the address of the caller
    program  the program of the caller, by its User-Agent
    verb     the name of the operation
    about    the topic, group, timer, task or other object of the act, and its parameters
    reason   the reason that the caller gave, or ""
    verdict  the result: a verdict, "done", or the code of a refusal
    detail   the sentence of a refusal, or ""
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
class Noted:
    """An entry with its offset in the journal and its time, in ms since 1970."""

    offset: int
    store_ms: int
    entry: Entry


@dataclass(slots=True, frozen=True)
class JournalPage:
    """Entries, the newest first; `before` continues below them, None at the journal's beginning."""

    entries: list[Noted]
    before: int | None


class Journal:
    """The journal of a broker."""

    def __init__(self, store: Store, reading: Reading) -> None:
        self._store, self._reading = store, reading

    def note(self, entry: Entry, now_ms: int) -> int:
        """Append an entry, with its texts cut to their bounds; return the offset to make durable."""
        short = Entry(*(one if len(one) <= _TEXT_MAX else f"{one[: _TEXT_MAX - 1]}…" for one in entry))
        body = json.dumps(short._asdict(), ensure_ascii=False).encode("utf-8", "replace")
        record = Record(topic=JOURNAL_TOPIC, body=body)
        return self._store.append(record, now_ms).end_offset

    def page(self, before: int | None, count_max: int, about: str = "") -> JournalPage:
        """Return up to `count_max` entries below the offset `before`, or the newest ones.

        `about` selects entries with that text in any field. Entries that damage destroyed are left out.
        """
        found: list[Noted] = []
        queue = self._store.dispatch.look(*_QUEUE)
        last = queue.end_offset if before is None else min(before, queue.end_offset)
        lowest = max(queue.min_offset, last - LOOKED_AT_MAX)
        for offset in range(last - 1, lowest - 1, -1):
            if len(found) == count_max:
                return JournalPage(found, offset + 1)
            record = self._reading.record(queue, offset, queue.entry(offset))
            if record is not None and about in record.body.decode("utf-8", "replace"):
                found.append(Noted(offset, record.store_ms, _entry(record)))
        return JournalPage(found, lowest if lowest > queue.min_offset else None)


def _entry(record: Record) -> Entry:
    """Return the entry in a record; fields that a later release adds are left out."""
    said = json.loads(record.body)
    return Entry(*(str(said.get(field, "")) for field in Entry._fields))
