"""Whether a message was sent before, by its id and its content: a client that got no answer sends again.

    send --id--> slots: did this id come lately? --no (nearly always)--------------------------> stored
                                                 --yes, or another id of that slot--> look it up
    look it up   what waits for the disk, then the key index: records of this id, newest first
                 --one has the same content--> the first receipt, and nothing is stored
                 --else--> stored: another message, whose id collides (two forked producers draw the same ids)

Rules
1. What makes two messages the same is in `broker.same_message`: meanings are compared, not bytes.
2. A repeat stores nothing, so no record tells of it and no follower needs to know: the slots are a shortcut,
   of this process alone. What a start or a takeover has not seen come it looks up, each message, until
   TURNS_KEPT turns have begun (`begin`); nothing of that where the log has nothing so young.
3. Lately is WINDOW_MS by the broker's clock. At a takeover the clocks of several machines may have written,
   an hour apart, so times tell nothing: then it is also the last TAKEOVER_BYTES. Clients give up sooner (of
   three tries of 3 s, say). What comes again later is stored again, but for timers and halves, whose ids have
   tables that forget much later; for WINDOW_MS from a start or a takeover these are looked up here, too, as
   the tables forget by the clock. So is what retention has deleted by then, as a log of some KiB would.
4. A refusal says that nothing is stored, so `broker.sending` looks for a first try before it refuses.
5. A turn is followed by the next, however late its first message comes: a clock that steps ahead looks like
   a broker that was idle, and what came before the step is to be known.

Slots are SLOT_COUNT bytes; each holds the turn, of TURN_MS, in which an id of its hash came last. Cost: 4
MiB, and some 1 us a send; a look costs as much as a send or two. Weak spot: at 10,000 sends a second one in
ten meets another's slot, and is looked up for nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from commitlog import properties
from commitlog.errors import StoreDamaged
from commitlog.message import Message
from commitlog.record import Record
from services.broker.same_message import is_same
from services.broker.statistics import Statistics
from services.broker.store import Store

SLOT_COUNT: Final = 1 << 22
TURN_MS: Final = 10_000
TURNS_KEPT: Final = 4
WINDOW_MS: Final = (TURNS_KEPT - 1) * TURN_MS
"""For how long at least an id is known to have come."""
TAKEOVER_BYTES: Final = 1 << 30
"""More than a leader writes in WINDOW_MS."""
_MASK: Final = SLOT_COUNT - 1
_TURNS: Final = 255
"""Turns are numbered 1 to this, and again; 0 is a slot that no id has met."""


class Repeats:
    """The ids that have come lately, and the messages of theirs."""

    def __init__(self, store: Store, statistics: Statistics) -> None:
        self._store, self._statistics = store, statistics
        self._slots = bytearray(SLOT_COUNT)
        self._turn, self._turn_ends_ms = 1, 0
        self._since: deque[int] = deque([0] * TURNS_KEPT, TURNS_KEPT)
        """Where the log ended when each of the kept turns began, the oldest first."""
        self._unseen_turns = 0
        """How many turns are to begin until this process has seen all come that came lately."""
        self._begun_ms = 0
        """When this process began to take messages."""

    def begin(self, now_ms: int, *, takes_over: bool = False) -> None:
        """Take in that messages may have come lately that this process has not seen."""
        old_ms, end_offset = now_ms - WINDOW_MS, self._store.log.end_offset
        ages = self._store.segment_ages()
        # Of a segment that holds nothing yet the age is 0: what is written to it next is young.
        young = (one.first_offset for one in ages if one.last_store_ms >= old_ms or not one.last_store_ms)
        since_offset = next(young, end_offset)
        if takes_over:
            since_offset = min(since_offset, max(self._store.log.first_offset, end_offset - TAKEOVER_BYTES))
        self._since.extend([since_offset] * TURNS_KEPT)
        self._begun_ms, self._turn_ends_ms = now_ms, now_ms + TURN_MS
        self._unseen_turns = TURNS_KEPT if since_offset < end_offset else 0

    def may_be_misdated(self, now_ms: int) -> bool:
        """Return whether what came lately may bear a time of long ago, or be forgotten for that."""
        return self._unseen_turns > 0 and now_ms - self._begun_ms < WINDOW_MS

    def may_be_one(self, message_id: str, now_ms: int) -> bool:
        """Return whether an id may have come lately; it has, from now on."""
        if now_ms >= self._turn_ends_ms:
            self._begin_turn(now_ms)
        slot = hash(message_id) & _MASK
        before, self._slots[slot] = self._slots[slot], self._turn
        if self._unseen_turns:
            return True
        return before != 0 and (self._turn - before) % _TURNS < TURNS_KEPT

    def first(self, message: Message, stored: bytes, topic: str) -> Record | None:
        """Return the record of the same message, if one came lately, as it lies under `topic`.

        `stored` is how its properties are written.
        """
        is_known = False
        for found in self._of_same_id(message):
            if found.topic == topic:
                if is_same(found, message, stored):
                    return found
                is_known = True
        self._statistics.colliding_ids += is_known
        return None

    def _of_same_id(self, message: Message) -> Iterator[Record]:
        """Yield records of the message's topic and id that came lately: newest first, those on disk last."""
        store, topic, message_id = self._store, message.topic, message.message_id
        for offset in store.waiting_named(topic, message_id):
            yield store.read_appended(offset)
        since_offset = max(self._since[0], store.log.first_offset)
        try:
            for offset in store.offsets_named(topic, message_id, since_offset):
                with suppress(StoreDamaged):
                    found = store.read(offset)
                    if properties.value_of(found.properties, properties.MESSAGE_ID) == message_id:
                        yield found
        except StoreDamaged:
            return  # the index has noted it

    def _begin_turn(self, now_ms: int) -> None:
        self._turn = self._turn % _TURNS + 1
        self._unseen_turns = max(0, self._unseen_turns - 1)
        self._since.append(self._store.log.end_offset)
        self._turn_ends_ms = now_ms + TURN_MS
