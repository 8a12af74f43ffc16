"""Operator views of half messages."""

from __future__ import annotations

from itertools import islice

from commitlog import limits
from commitlog.errors import StoreDamaged
from commitlog.records import properties
from commitlog.records.record import Record
from services.broker.halves.transactions import Transactions
from services.broker.spine import verb_properties
from services.broker.spine.store import Store
from services.broker.spine.values import HalfFilter, HalfPage, HalfView
from services.broker.timers.timer_records import replaced_offset_of
from tidewheel import property_names
from txn import half
from txn.outcomes import Ended, OpenHalf
from txn.states import State

_NEVER = OpenHalf(0, 0)


class HalfViews:
    """Views of the half messages in a store."""

    def __init__(self, store: Store, transactions: Transactions) -> None:
        self._store, self._transactions = store, transactions
        self._outcomes = transactions.outcomes

    def page(self, wanted: HalfFilter, after: int | None, count_max: int) -> HalfPage:
        """Return up to `count_max` matching half messages with log offsets above `after`, oldest first.

        The result does not include message contents.
        """
        found: list[HalfView] = []
        while True:
            more = self.scan_page(wanted, after, count_max + 1 - len(found))
            found, after = found + more.halves, more.after
            if len(found) > count_max or after is None:
                return page_of(found, count_max)

    def scan_page(self, wanted: HalfFilter, after: int | None, count_max: int) -> HalfPage:
        """Examine up to `HALVES_EXAMINED_AT_ONCE` half messages, and return up to `count_max` matches.

        The returned `after` is the cursor for the next call, even if no half message matched. The cursor is
        None once all half messages have been examined.
        """
        found: list[HalfView] = []
        first = 0 if after is None else after + 1
        offsets = self._outcomes.some_from(wanted.state, first, limits.HALVES_EXAMINED_AT_ONCE)
        for offset in offsets:
            if len(found) == count_max:
                return HalfPage(found, found[-1].half_offset)
            record = self._half_at(offset)
            if record is None or record.store_ms >= wanted.stored_before_ms:
                continue
            if not wanted.topic or wanted.topic == _real_topic(record):
                found.append(self._view(record))
        return HalfPage(found, offsets[-1] if len(offsets) == limits.HALVES_EXAMINED_AT_ONCE else None)

    def get_half(self, transaction_id: str) -> HalfView:
        """Return a half message with its content.

        Raise `InvalidTransactionId` if the transaction id is unknown.
        """
        record = self._transactions.find(half.unverified_offset(transaction_id), transaction_id)
        return self._view(record, with_message=True)

    def find_by_key(self, topic: str, key: str, count_max: int) -> list[HalfView]:
        """Return up to `count_max` half messages with a given key or message id, newest first."""
        offsets = self._store.offsets_by_key_or_id(topic, key, 0)
        records = (record for offset in offsets if (record := self._half_at(offset)) is not None)
        named = (record for record in records if _contains_key(record, topic, key))
        return [self._view(record) for record in islice(named, count_max)]

    def _half_at(self, offset: int) -> Record | None:
        if not self._transactions.is_known(offset):
            return None
        try:
            return self._store.read(offset)
        except StoreDamaged:
            return None

    def _view(self, record: Record, *, with_message: bool = False) -> HalfView:
        offset, message = record.physical_offset, properties.to_message(record)
        waiting, expired = self._outcomes.waiting(offset), self._outcomes.expiry(offset)
        ended = self._transactions.read_outcome(record) or Ended(State.OPEN, 0, -1)
        ending = self._read_ending(ended)
        return HalfView(
            transaction_id=half.transaction_id(offset, message.message_id),
            message_id=message.message_id,
            topic=message.topic,
            keys=message.keys,
            tag=message.tag,
            state=ended.state,
            half_offset=offset,
            stored_ms=record.store_ms,
            due_ms=message.delivery_ms,
            check_count=max(one.check_count for one in (waiting, expired, _NEVER) if one),
            check_count_max=self._transactions.policy(message.topic).count_max,
            next_check_ms=waiting.next_check_ms if waiting else 0,
            ended_ms=ended.ended_ms,
            ended_offset=ended.ended_offset,
            reason=properties.value_of(ending, property_names.REASON),
            verdict=properties.value_of(ending, verb_properties.VERDICT),
            late=expired.late if expired else (),
            message=message if with_message else None,
            replaced_offset=replaced_offset_of(ending),
        )

    def _read_ending(self, ended: Ended) -> bytes:
        """Return the encoded properties of the record that ended a half message.

        Return an empty byte string if that record is missing or unreadable.
        """
        if not 0 <= ended.ended_offset < self._store.log.durable_offset:
            return b""
        try:
            return self._store.read(ended.ended_offset).properties
        except StoreDamaged:
            return b""


def page_of(found: list[HalfView], count_max: int) -> HalfPage:
    """Return a page of the first `count_max` half messages in `found`.

    If another page follows, `found` contains one additional half message.
    """
    return HalfPage(found[:count_max], found[count_max - 1].half_offset if len(found) > count_max else None)


def _real_topic(record: Record) -> str:
    return properties.value_of(record.properties, property_names.REAL_TOPIC)


def _contains_key(record: Record, topic: str, key: str) -> bool:
    message = properties.to_message(record)
    return message.topic == topic and key in (*message.keys, message.message_id)
