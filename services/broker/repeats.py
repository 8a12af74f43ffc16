"""Suppression of repeated sends: a message with a known id and content gets the first receipt.

    send --hash of (topic, id)--> recent ids --unknown (nearly always)--> stored
                                             --candidate--> read the records of this id, newest first
    a record has the same content --> the receipt of this record, and the message is not stored
    otherwise --> stored: another message with a colliding id (two forked producers generate the same ids)

Rules
1. `broker.spine.same_message` compares two messages by their meaning instead of their bytes.
2. `Store.ids` (`broker.spine.recent_ids`) contains the id of each record that a client's send has appended.
   `apply` adds the id on the leader and on each follower, so the table of a new leader is already filled. At
   startup, the table is filled from columns of the key index before messages are accepted, and the index is
   not read afterwards.
3. An id is recent for WINDOW_MS by the clock of the process that applied the record. The process stores the
   end offset of the log at the beginning of each of the last TURNS_KEPT periods of TURN_MS. At startup, no
   periods exist, so store times are used (`broker.spine.store_times`). In a cluster, store times are from the
   clocks of several machines, which may differ by an hour. Therefore a node of a cluster begins with the last
   TAKEOVER_BYTES of the log, and then uses its own clock. Clients stop retrying sooner, for example after
   three attempts of 3 s. A message that is repeated later is stored again.
4. Timers and half messages have separate id tables, in which ids expire much later, but by the broker's
   clock. Therefore, for WINDOW_MS after a startup or a takeover, the ids of timers and half messages are also
   looked up in the table of recent ids.
5. A refusal guarantees that the message is not stored. Therefore `broker.sending` searches for an earlier
   attempt before refusing a message.
6. Only one period begins at a time, even after a long interval without a flush. A forward step of the clock
   cannot be distinguished from idle time, and the ids of messages stored before the step must remain known.
   After a backward step, the current period ends at most TURN_MS later.
7. If the table cannot be filled because a file of the key index is damaged, the damage is reported. In this
   case, the key index is also read for each id until all recent ids have been added after startup.

A send costs one probe of `broker.spine.recent_ids` and the hash of the id, which the key index also needs. A
repeat costs one log read per record with the same id, up to SAME_ID_READ_MAX reads. Weak spots: a repeat is
stored again if more than SAME_ID_READ_MAX later messages have the same id. While rule 7 applies, a repeat
whose index entry is damaged is also stored again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from heapq import merge
from itertools import islice
from operator import neg
from typing import Final

from commitlog import properties
from commitlog.errors import StoreDamaged
from commitlog.limits import SAME_ID_READ_MAX
from commitlog.message import Message
from commitlog.record import Record
from consumequeue.name_hash import digest_of
from services.broker.spine.recent_ids import RecentIds
from services.broker.spine.same_message import is_same, is_sent
from services.broker.spine.statistics import Statistics
from services.broker.spine.store import Store
from tidewheel import property_names

TURN_MS: Final = 10_000
TURNS_KEPT: Final = 4
WINDOW_MS: Final = (TURNS_KEPT - 1) * TURN_MS
"""The minimum time for which an id is known."""
TAKEOVER_BYTES: Final = 1 << 30
"""A number of bytes larger than the amount of log that a leader writes in WINDOW_MS."""


class Repeats:
    """The periods of recent ids, and the search for the first attempt of a repeated send."""

    def __init__(self, store: Store, statistics: Statistics) -> None:
        self._store, self._statistics = store, statistics
        self.ids: RecentIds
        """The ids of recent messages, set by `recover`."""
        self._turn_ends_ms = 0
        self._since: deque[int] = deque([0] * TURNS_KEPT, TURNS_KEPT)
        """The end of the log at the beginning of each kept period, oldest first."""
        self._begun_ms = 0
        """The time at which this process began to accept messages."""
        self._began_with_recent = False

    def recover(self, now_ms: int, *, follows: bool) -> None:
        """Fill the table with recent ids after the replay of the log, or raise OSError if the disk fails."""
        store, end_offset = self._store, self._store.log.end_offset
        since_offset = self._offset_at(now_ms - WINDOW_MS)
        if follows:
            since_offset = min(since_offset, end_offset - TAKEOVER_BYTES)
        since_offset = max(since_offset, store.log.first_offset)
        self._since.extend([since_offset] * TURNS_KEPT)
        self._turn_ends_ms = now_ms + TURN_MS
        self.ids = store.ids = RecentIds(since_offset, lambda: store.log.durable_offset)
        if since_offset == end_offset:
            return
        try:
            self.ids.fill(store.keys.entries_from(since_offset))
        except StoreDamaged as error:
            store.report_key_index(error.detail)
            self.ids.mark_incomplete_below(end_offset)

    def begin(self, now_ms: int) -> None:
        """Begin to accept messages."""
        self.pass_time(now_ms)
        self._begun_ms = now_ms
        self._began_with_recent = self._since[0] < self._store.log.end_offset

    def pass_time(self, now_ms: int) -> None:
        """Begin the next period if the current period is over.

        The broker calls `pass_time` at each flush, and after the clock has been set back. Records appended
        since the last call belong to the previous period, and their ids are kept for at least WINDOW_MS after
        the call. A period ends at most TURN_MS after the call, even if the clock was set back.
        """
        if now_ms >= self._turn_ends_ms:
            self._since.append(self._store.log.end_offset)
            self._turn_ends_ms = now_ms + TURN_MS
            self.ids.expire_before(self._since[0])
        else:
            self._turn_ends_ms = min(self._turn_ends_ms, now_ms + TURN_MS)

    def may_be_misdated(self, now_ms: int) -> bool:
        """Return whether recent timers and half messages may have wrong times, and may have expired early."""
        return self._began_with_recent and now_ms - self._begun_ms < WINDOW_MS

    def find_first(self, message: Message, stored: bytes, topic: str) -> Record | None:
        """Return the recent record of the same message under `topic`, or None if no record is found.

        The argument `stored` contains the encoded properties of the message.
        """
        is_known = False
        for found in islice(self._records_with_id(message), SAME_ID_READ_MAX):
            if found.topic == topic and is_sent(found):
                if is_same(found, message, stored):
                    return found
                is_known = True
        self._statistics.colliding_ids += is_known
        return None

    def _records_with_id(self, message: Message) -> Iterator[Record]:
        """Yield recent records with the message's id, newest first."""
        store, ids, message_id = self._store, self.ids, message.message_id
        offsets: Iterable[int] = ids.offsets(digest_of(message.topic, message_id))
        if ids.is_incomplete:
            offsets = merge(offsets, self._indexed_offsets(message), key=neg)
        before = -1
        for offset in offsets:
            if offset != before and offset >= store.log.first_offset:
                with suppress(StoreDamaged):
                    found = store.read_appended(offset)
                    if properties.value_of(found.properties, property_names.MESSAGE_ID) == message_id:
                        yield found
            before = offset

    def _indexed_offsets(self, message: Message) -> Iterator[int]:
        with suppress(StoreDamaged):
            yield from self._store.offsets_named(message.topic, message.message_id, self.ids.since_offset)

    def _offset_at(self, store_ms: int) -> int:
        """Return a lower bound for the offsets of all records stored at or after `store_ms`."""
        if self._store.last_store_ms < store_ms:
            return self._store.log.end_offset
        found = self._store.times.offset_at(store_ms)
        if found is not None:
            return found
        # The age of an empty segment is 0, and its first records will be recent.
        ages = self._store.segment_ages()
        recent = (one.first_offset for one in ages if one.last_store_ms >= store_ms or not one.last_store_ms)
        return next(recent, self._store.log.end_offset)
