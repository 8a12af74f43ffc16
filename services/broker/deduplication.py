"""Detection of repeated sends, which return the receipt of the stored message.

    send --hash of (topic, id)--> recent ids --unknown (nearly always)--> stored
                                             --candidate--> read the records of this id, newest first
    a record has the same content --> return the receipt of the record; the message is not stored again
    otherwise --> stored as another message, whose id collides (forked producers generate the same ids)

Rules
1. Messages are compared by content, not by encoded bytes (`broker.spine.same_message`).
2. The table `Store.ids` (`broker.spine.recent_ids`) contains the id of each message sent by a client. `apply`
   adds ids on the leader and on all followers. The table of a new leader is therefore already filled. At
   startup, the table is filled from columns of the key index before messages are accepted. After startup, the
   key index is read only while rule 7 applies.
3. An id stays recent for at least WINDOW_MS, measured by the clock of the process that applied the record.
   The process stores the log end at the start of each of the last PERIODS_KEPT periods of PERIOD_MS. At
   startup, store times are used instead (`broker.spine.store_times`). In a cluster, store times come from
   several machines, whose clocks may differ by an hour. A cluster node therefore starts with the ids in the
   last TAKEOVER_BYTES of the log, and then uses its own clock. Clients stop retrying well before the window
   ends, for example after three attempts of 3 s each. A message that is sent again after the window ends is
   stored a second time.
4. Timers and half messages have separate id tables, in which ids expire much later and according to the
   broker's clock. For WINDOW_MS after a startup or takeover, the ids of timers and half messages are
   therefore also looked up in the table of recent ids.
5. An error response guarantees that the message is not stored. Before an error is returned, `broker.sending`
   therefore searches for an earlier attempt that stored the message.
6. At most one period begins per flush, even after a long idle time. A forward clock step cannot be
   distinguished from idle time, and ids stored before the step must be kept. If the clock is set back, the
   current period ends within PERIOD_MS after the step.
7. If the table cannot be filled because a key index file is damaged, the damage is reported. Each lookup then
   also searches the key index until the table contains all recent ids again.

Cost: each send looks up one hash in `broker.spine.recent_ids`. The key index uses the same hash. A repeated
send reads up to SAME_ID_READ_MAX log records with the same id. Limitations: a repeated message is stored
again if more than SAME_ID_READ_MAX messages with the same id follow the first copy, or if the index entry of
the first copy is damaged while rule 7 applies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from heapq import merge
from itertools import islice
from operator import neg
from typing import Final

from commitlog.errors import StoreDamaged
from commitlog.limits import SAME_ID_READ_MAX
from commitlog.records import properties
from commitlog.records.message import Message
from commitlog.records.record import Record
from consumequeue.indexes.name_hash import digest_of
from services.broker.spine.recent_ids import RecentIds
from services.broker.spine.same_message import is_same, is_sent
from services.broker.spine.statistics import Statistics
from services.broker.spine.store import Store
from tidewheel import property_names

PERIOD_MS: Final = 10_000
PERIODS_KEPT: Final = 4
WINDOW_MS: Final = (PERIODS_KEPT - 1) * PERIOD_MS
"""Minimum time in milliseconds for which an id is kept."""
TAKEOVER_BYTES: Final = 1 << 30
"""An upper bound for the number of log bytes that a leader writes within WINDOW_MS."""


class Deduplicator:
    """The table of recent ids, and lookups of the first attempt to send a message."""

    def __init__(self, store: Store, statistics: Statistics) -> None:
        self._store, self._statistics = store, statistics
        self.ids: RecentIds
        """The ids of recent messages. Set by `recover`."""
        self._period_ends_ms = 0
        self._since: deque[int] = deque([0] * PERIODS_KEPT, PERIODS_KEPT)
        """The log end at the beginning of each kept period, oldest first."""
        self._begun_ms = 0
        """The time at which this process began to accept messages."""
        self._began_with_recent = False

    def recover(self, now_ms: int, *, follows: bool) -> None:
        """Fill the table of recent ids after the log replay. Raise OSError if the disk fails."""
        store, end_offset = self._store, self._store.log.end_offset
        since_offset = self._offset_at(now_ms - WINDOW_MS)
        if follows:
            since_offset = min(since_offset, end_offset - TAKEOVER_BYTES)
        since_offset = max(since_offset, store.log.first_offset)
        self._since.extend([since_offset] * PERIODS_KEPT)
        self._period_ends_ms = now_ms + PERIOD_MS
        self.ids = store.ids = RecentIds(since_offset, lambda: store.log.durable_offset)
        if since_offset == end_offset:
            return
        try:
            self.ids.fill(store.keys.entries_from(since_offset))
        except StoreDamaged as error:
            store.report_key_index(error.detail)
            self.ids.mark_incomplete_below(end_offset)

    def begin(self, now_ms: int) -> None:
        """Record that the broker begins to accept messages at `now_ms`."""
        self.pass_time(now_ms)
        self._begun_ms = now_ms
        self._began_with_recent = self._since[0] < self._store.log.end_offset

    def pass_time(self, now_ms: int) -> None:
        """Begin the next period if the current one has ended.

        The broker calls this method for each flush and whenever the clock is set back. The ids of records
        appended since the previous call are kept for at least WINDOW_MS from now. The current period ends
        within PERIOD_MS from now, even if the clock was set back.
        """
        if now_ms >= self._period_ends_ms:
            self._since.append(self._store.log.end_offset)
            self._period_ends_ms = now_ms + PERIOD_MS
            self.ids.expire_before(self._since[0])
        else:
            self._period_ends_ms = min(self._period_ends_ms, now_ms + PERIOD_MS)

    def may_have_expired_early(self, now_ms: int) -> bool:
        """Return whether the ids of recent timers and half messages may have expired too early.

        Within WINDOW_MS after startup, ids can expire too early if recent records have wrong store times.
        """
        return self._began_with_recent and now_ms - self._begun_ms < WINDOW_MS

    def find_first(self, message: Message, stored: bytes, topic: str) -> Record | None:
        """Return a recent record in `topic` that stores the same message, or None.

        `stored` contains the encoded properties of the message.
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
        """Yield the recent records with the id of the message, newest first."""
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
            yield from self._store.offsets_by_key_or_id(
                message.topic, message.message_id, self.ids.since_offset
            )

    def _offset_at(self, store_ms: int) -> int:
        """Return a lower bound for the offsets of records stored at or after `store_ms`."""
        if self._store.last_store_ms < store_ms:
            return self._store.log.end_offset
        found = self._store.times.offset_at(store_ms)
        if found is not None:
            return found
        # An empty segment, whose last store time is 0, counts as recent, because its first records will be
        # recent.
        ages = self._store.segment_ages()
        recent = (one.first_offset for one in ages if one.last_store_ms >= store_ms or not one.last_store_ms)
        return next(recent, self._store.log.end_offset)
