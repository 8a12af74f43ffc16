"""Events of orders in the log's records, as columns of numbers.

A record yields up to three events. A commit that cancels a deadline is two events, and so is a timer that
replaces another one. `ref` is the log offset of the half or timer that the event ends or refers to, or -1.
The order of an event is the first key of its record, which the event refers to by number. If the record has
no key (a check-back, a cancel by an operator), only `ref` identifies the order.

    code       records                                                         ref
    half       of the half topic
    commit     of a user topic and type commit                                 its half
    rollback   outcomes with TW_OUTCOME = ROLLBACK                             its half
    expired    outcomes with TW_OUTCOME = EXPIRED: check-backs brought no
               decision                                                        its half
    timer      of the timer topic                                              its half, if any
    delivered  of a user topic, with TW_TIMER_OFFSET                           its timer
    fired      deliveries on request (TW_VERB = FIRE), before the due time
               or while held                                                   its timer
    released   deliveries of held timers after the release (TW_HELD)           its timer
    cancel     any record with TW_CANCELS, except deliveries and verbs         the timer
    called off verbs, except for unreadable timers: cancels by a call of an
               operator or a client                                            the timer
    moved      timers that move another one (TW_VERB = MOVE)                   the previous timer
    held       timers moved to the same due time, because the topic is held    the previous timer
    replaced   other timers with TW_REPLACES                                   the previous timer
    dead       of a group's dead letter topic
    normal     other messages: redriven, or sent without a transaction
    asked      check-backs                                                     its half

The module uses neither Spark nor a loop over records. Cost: about 0.3 µs per record.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from commitlog.records.kinds import UNREADABLE, kind_of_topic
from commitlog.records.record import TYPE_COMMIT, TYPE_MASK
from spark_jobs.inputs.mapping import Topics
from spark_jobs.log.columns.kinds import KINDS
from spark_jobs.log.columns.ragged import Flags, Integers, Ranges, numbers, ragged


class Code(IntEnum):
    """Code of an event. The module docstring describes the codes."""

    HALF = 0
    COMMIT = 1
    ROLLBACK = 2
    EXPIRED = 3
    TIMER = 4
    DELIVERED = 5
    FIRED = 6
    CANCEL = 7
    MOVED = 8
    REPLACED = 9
    DEAD = 10
    NORMAL = 11
    ASKED = 12
    CALLED_OFF = 13
    HELD = 14
    RELEASED = 15


COLUMNS: Final = (
    "physical_offset", "record_bytes", "topic", "queue_id", "queue_offset", "sys_flag", "store_ms",
    "half_offset", "body", "message_group", "first_key", "real_topic", "due_ms", "timer_offset", "outcome",
    "verb", "replaces", "cancels", "held", "schedule", "dead_letter_topic", "damage",
)  # fmt: skip
"""Columns that are read of each record."""

CREATED, TIMEOUTS, PAID, CANCELLED, PUSHES = range(5)
"""Numbers of the shop's topics: their indexes in `Topics.all`."""

NAMES: Final = (*KINDS, "rollback", "expired", "fired", "released", "unreadable")
"""Names of record kinds in counts: `KINDS`, and five kinds that depend on the record's properties."""

MESSAGES: Final = ("normal", "commit", "delivered", "fired", "released")
"""Names of the messages that consumers of a topic receive. Dead letters are excluded."""

MESSAGE_CODES: Final = (Code.COMMIT, Code.NORMAL, Code.DELIVERED, Code.FIRED, Code.RELEASED)
"""`MESSAGES` as event codes."""

QUEUE_BITS: Final = 40
"""Bits of the queue offset in a place. A place is one number, with the queue ID in the higher bits."""

_DIGITS_MAX: Final = 18
_CODES: Final = {
    "half": Code.HALF,
    "commit": Code.COMMIT,
    "rollback": Code.ROLLBACK,
    "expired": Code.EXPIRED,
    "timer": Code.TIMER,
    "delivered": Code.DELIVERED,
    "fired": Code.FIRED,
    "released": Code.RELEASED,
    "verb": Code.CALLED_OFF,
    "dead letter": Code.DEAD,
    "normal": Code.NORMAL,
    "check": Code.ASKED,
}


def _flags(*codes: Code) -> Flags:
    return np.array([*(code in codes for code in Code), False])


_CODE_OF: Final = np.array([_CODES.get(name, -1) for name in NAMES], np.int8)
_OF_HALVES: Final = _flags(Code.COMMIT, Code.ROLLBACK, Code.EXPIRED, Code.TIMER, Code.ASKED)
_OF_TIMERS: Final = _flags(Code.DELIVERED, Code.FIRED, Code.RELEASED, Code.CALLED_OFF)
"""Flags by code: whether `ref` is a half, or a timer. The last flag is for records without a code (-1)."""


@dataclass(frozen=True, slots=True)
class Events:
    """Events as columns of equal length. Events of the same code are in the order of their records.

    `order` is the number of the event's record, whose first key, if any, is the order's ID. It is -1 for a
    cancel that is attributed by `ref` alone. `topic` is an index in `Topics.all`, or -1. `queue` is a place
    (`QUEUE_BITS`). `due_ms` is -1 if there is none.
    """

    order: Integers
    code: Integers
    topic: Integers
    physical_offset: Integers
    store_ms: Integers
    ref: Integers
    due_ms: Integers
    queue: Integers

    def __len__(self) -> int:
        return len(self.code)

    def chosen(self, kept: Flags) -> Events:
        """Return some of these events."""
        return Events(*(getattr(self, name)[kept] for name in FIELDS))

    @classmethod
    def joined(cls, parts: Iterable[Events]) -> Events:
        """Return the events of all parts, in the order of the parts."""
        listed = list(parts)
        return cls(*(np.concatenate([getattr(one, name) for one in listed]) for name in FIELDS))


FIELDS: Final = tuple(field.name for field in fields(Events))


class Said:
    """The records of one batch without damage, with the kind and the topic of each one."""

    def __init__(self, batch: pa.RecordBatch, topics: Topics, words: Words) -> None:
        """Classify the records of a batch with `COLUMNS`. All batches share the topic numbers of `words`."""
        self.batch = batch
        self.topics = topics
        self._words = words
        self._numbers: dict[str, Integers] = {}
        self.name = self._names()
        """Index in `NAMES`, by record."""
        self.about = self._about()
        """Index in `topic_names` of the topic that the record refers to, by record."""

    @property
    def topic_names(self) -> list[str]:
        """Return the topics of all batches so far, by number."""
        return self._words.names

    def numbers(self, column: str) -> Integers:
        """Return a column of numbers, with -1 for null."""
        if column not in self._numbers:
            values = self.batch.column(column)
            self._numbers[column] = (values.fill_null(-1) if values.null_count else values).to_numpy()
        return self._numbers[column]

    @cached_property
    def shop_topic(self) -> Integers:
        """Return the shop topic (index in `Topics.all`) that each record refers to, or -1."""
        numbers = {name: number for number, name in enumerate(self.topics.all) if name}
        of_shop = [numbers.get(name, -1) for name in self.topic_names]
        return np.array([*of_shop, -1], np.int8)[self.about]

    @cached_property
    def code(self) -> Integers:
        """Return the `Code` of each record, or -1 for a record that is no event."""
        return _CODE_OF[self.name]

    @cached_property
    def is_event(self) -> Flags:
        """Return which records are events of the shop's topics, or check-backs of any topic."""
        flags: Flags = (self.shop_topic >= 0) & (self.code >= 0)
        flags |= self.code == Code.ASKED
        return flags

    @cached_property
    def places(self) -> Integers:
        """Return the place of each record in its queue (`QUEUE_BITS`)."""
        queue_ids = self.numbers("queue_id").astype(np.int64)
        found: Integers = (queue_ids << QUEUE_BITS) | self.numbers("queue_offset")
        return found

    @cached_property
    def is_replacing(self) -> Flags:
        """Return which records are timers that replace another one."""
        return present(self.batch.column("replaces")) & self.is_named("timer")

    @cached_property
    def is_moving(self) -> Flags:
        """Return which records are timers that move another one, with the same message."""
        return self.is_replacing & _is(self.batch.column("verb"), "MOVE")

    @cached_property
    def is_holding(self) -> Flags:
        """Return which records are moves of due timers of a held topic."""
        return self.is_moving & present(self.batch.column("held"))

    @cached_property
    def is_carrying(self) -> Flags:
        """Return which records contain the cancel of a timer, except deliveries and verbs."""
        return present(self.batch.column("cancels")) & ~present(self.batch.column("timer_offset"))

    def is_named(self, *names: str) -> Flags:
        """Return which records have one of these names of `NAMES`."""
        wanted = np.array([name in names for name in NAMES])
        flags: Flags = wanted[self.name]
        return flags

    def _names(self) -> Integers:
        topics = self._words.of(self.batch.column("topic"))
        by_topic = np.array([KINDS.index(kind_of_topic(name)) for name in self._words.names], np.int8)
        found: Integers = by_topic[topics]
        is_normal = found == NAMES.index("normal")
        is_commit = self.numbers("sys_flag") & TYPE_MASK == TYPE_COMMIT
        is_delivery = present(self.batch.column("timer_offset"))
        found[is_normal & is_commit] = NAMES.index("commit")
        found[is_normal & is_delivery] = NAMES.index("delivered")
        found[is_normal & is_delivery & present(self.batch.column("held"))] = NAMES.index("released")
        found[is_normal & is_delivery & _is(self.batch.column("verb"), "FIRE")] = NAMES.index("fired")
        is_lost = _is(self.batch.column("verb"), UNREADABLE)
        found[(found == NAMES.index("verb")) & is_lost] = NAMES.index("unreadable")
        is_outcome = found == NAMES.index("outcome")
        if is_outcome.any():
            for outcome, name in (("ROLLBACK", "rollback"), ("EXPIRED", "expired")):
                found[is_outcome & _is(self.batch.column("outcome"), outcome)] = NAMES.index(name)
        self._topic_numbers = topics
        return found

    def _about(self) -> Integers:
        about = self._topic_numbers
        for column in ("dead_letter_topic", "real_topic"):
            named = self._words.of(self.batch.column(column))
            is_about = named >= 0
            if column == "dead_letter_topic":
                is_about &= self.name == NAMES.index("dead letter")
            about = np.where(is_about, named, about)
        return about


class Words:
    """Numbers distinct texts in order of appearance."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}

    def of(self, texts: pa.Array) -> Integers:
        """Return the number of each text, or -1 for null."""
        if texts.null_count == len(texts):
            return np.full(len(texts), -1, np.int32)
        indexed = texts if pa.types.is_dictionary(texts.type) else texts.dictionary_encode()
        numbers = np.array([*(self.number(name) for name in indexed.dictionary.to_pylist()), -1], np.int32)
        found: Integers = numbers[indexed.indices.fill_null(len(indexed.dictionary)).to_numpy()]
        return found

    def number(self, name: str) -> int:
        """Return the number of one text."""
        if name not in self._numbers:
            self._numbers[name] = len(self.names)
            self.names.append(name)
        return self._numbers[name]


def events_of(said: Said, first_number: int) -> list[Events]:
    """Return the events in one batch, in one to three parts.

    The records of the batch are numbered from `first_number` on. The parts are the records that are events
    (`Said.is_event`), the ends of replaced timers, and the cancels in records of any topic.
    """
    whole = _whole(said, first_number)
    parts = [whole if said.is_event.all() else whole.chosen(said.is_event)]
    if said.is_replacing.any():
        parts.append(_replacing(said, whole))
    if said.is_carrying.any():
        parts.append(_carrying(said, whole))
    return parts


def _whole(said: Said, first_number: int) -> Events:
    """Return one event per record of the batch, with code -1 for records that are no event."""
    code = said.code
    number = np.arange(first_number, first_number + len(code), dtype=np.int32)
    half_offset = said.numbers("half_offset")
    ref = np.where(_OF_HALVES[code] & (half_offset > 0), half_offset, -1)
    of_timer = _OF_TIMERS[code]
    if of_timer.any():
        ref[of_timer] = said.numbers("timer_offset")[of_timer]
    offsets, store_ms = said.numbers("physical_offset"), said.numbers("store_ms")
    return Events(number, code, said.shop_topic, offsets, store_ms, ref, said.numbers("due_ms"), said.places)


def _replacing(said: Said, whole: Events) -> Events:
    """Return the ends of replaced timers of the shop's topics."""
    is_replacing = said.is_replacing & (whole.topic >= 0)
    found = whole.chosen(is_replacing)
    found.code[:] = np.where(said.is_moving[is_replacing], Code.MOVED, Code.REPLACED)
    found.code[said.is_holding[is_replacing]] = Code.HELD
    found.ref[:] = said.numbers("replaces")[is_replacing]
    return found


def _carrying(said: Said, whole: Events) -> Events:
    """Return the cancels in TW_CANCELS, of records of any topic: `<offset of a timer> <its due time>`.

    A cancel in a payment or cancellation is attributed to the order of its record. Any other one is
    attributed by the timer's offset alone.
    """
    found = whole.chosen(said.is_carrying)
    found.order[(found.topic != PAID) & (found.topic != CANCELLED)] = -1
    found.code[:] = Code.CANCEL
    found.topic[:] = TIMEOUTS
    found.ref[:] = _leading_numbers(said.batch.column("cancels"), said.is_carrying)
    return found


def _leading_numbers(texts: pa.StringArray, kept: Flags) -> Integers:
    """Return the leading digits of the `kept` texts as numbers, at most 18 of each, or -1 for none."""
    stored = Ranges.of(texts).chosen(kept)
    width = stored.one(0).find(b" ")
    if 0 < width <= _DIGITS_MAX and stored.have_at(width, b" ").all():
        found = numbers(ragged(stored.data, stored.starts, np.full(len(stored), width)), pa.int64())
        if found.null_count == 0 and (leading := found.to_numpy()).min() >= 0:
            return np.asarray(leading)
    digits = pc.extract_regex(texts.filter(pa.array(kept)), r"^(?P<number>\d{1,18})")
    return np.asarray(pc.cast(pc.struct_field(digits, "number"), pa.int64()).fill_null(-1))


def present(values: pa.Array) -> Flags:
    """Return which values are not null."""
    if values.null_count in (0, len(values)):
        return np.full(len(values), values.null_count == 0, np.bool_)
    flags: Flags = values.is_valid().to_numpy(zero_copy_only=False)
    return flags


def _is(values: pa.Array, text: str) -> Flags:
    if values.null_count == len(values):
        return np.zeros(len(values), np.bool_)
    flags: Any = pc.equal(values, text).fill_null(False).to_numpy(zero_copy_only=False)
    return np.asarray(flags, np.bool_)
