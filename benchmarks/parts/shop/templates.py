"""Templates of real records: a broker writes each kind once, and its bytes are copied from its log.

The order of these records has ids, times and articles that occur nowhere else in a record, so each of them
is found in the bytes and becomes a field: `Template.fields` lists the position, width and name of each. The
fields at fixed positions, the CRCs and the ranges of an acknowledgement are written by `log.py`.

One difference from the broker's bytes: an offset among the properties (TW_TIMER_OFFSET, TW_CANCELS,
TW_REPLACES) gets leading zeros, so that its width does not depend on its value.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from commitlog import layout
from commitlog.disk.real_disk import RealDisk
from commitlog.records import properties, record
from commitlog.records.message import Message, MessageType
from consumequeue.filters.filter import EVERYTHING
from parts.columns import QUEUE_COUNT
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Delivery, Resolution, RunTimersJob, TimerName
from services.shop import topics
from services.shop.orders.messages import timer_key
from services.shop.orders.new_order import Line, NewOrder
from tidewheel import property_names

TIMEOUT_MS: Final = 30_000
OFFSET_DIGITS: Final = 12
ID_DIGITS: Final = 10
SKU_DIGITS: Final = 5
LINES_MAX: Final = 3
VARIANT_COUNT: Final = 2 * LINES_MAX
"""Orders of one to three lines, without and with a message group."""

ORDER_ID: Final = "order-9182736450"
CUSTOMER_ID: Final = "customer-8273645109"
PUSH_ID: Final = "push-9182736450"
PLACED_MS: Final = 1_763_700_000_000
AT_MS: Final = PLACED_MS + 11_111
DUE_MS: Final = PLACED_MS + TIMEOUT_MS
MOVED_MS: Final = DUE_MS + 22_222
PUSH_MS: Final = PLACED_MS + 15_555
OFFSET: Final = "7" * OFFSET_DIGITS

_LINES: Final = tuple((f"sku-9871{line}", line + 1, 250 + 125 * line) for line in range(LINES_MAX))
_SENTINELS: Final = {
    "order": ORDER_ID[-ID_DIGITS:],
    "customer": CUSTOMER_ID[-ID_DIGITS:],
    "placed": str(PLACED_MS),
    "at": str(AT_MS),
    "due": str(DUE_MS),
    "moved": str(MOVED_MS),
    "push_due": str(PUSH_MS),
    "timer": OFFSET,
    **{f"sku{line}": f"9871{line}" for line in range(LINES_MAX)},
}
_DEADLINE: Final = TimerName(topics.ORDER_TIMEOUTS, key=timer_key(ORDER_ID))
_SETTINGS: Final = BrokerSettings(
    auto_create_topics=False, dedupe_ms=0, sync_flush=False, segment_bytes=256 * 1024
)
_QUEUE: Final = f"{property_names.REAL_QUEUE_ID}\x01".encode()
_LEFT_OUT: Final = frozenset({"TW_SYS_LEASE", "TW_SYS_GROUP", "TW_SYS_TOPIC"})
_ACK_TOPIC: Final = "TW_SYS_ACK"


def lines_of(variant: int) -> tuple[tuple[str, int, int], ...]:
    """Return the (sku, quantity, unit price in pence) of each line of a variant's order."""
    return _LINES[: variant % LINES_MAX + 1]


@dataclass(frozen=True)
class Template:
    """The bytes of one record, and the (position, width, name) of each field in them."""

    content: bytes
    topic: str
    body_bytes: int
    fields: list[tuple[int, int, str]] = field(default_factory=list)

    @classmethod
    def of(cls, lifted: record.Record) -> Template:
        """Return the template of a record read from a log."""
        content = record.encode(_with_wide_offsets(lifted))
        fields = [
            (at, len(digits), name)
            for name, digits in _SENTINELS.items()
            for at in _places(content, digits.encode())
        ]
        fields += [(at + len(_QUEUE), 1, "queue") for at in _places(content, _QUEUE)]
        return cls(content, lifted.topic, len(lifted.body), fields)


@dataclass(frozen=True)
class Lifted:
    """Templates by name and variant, and the first bytes of the log, which create the topics."""

    templates: dict[str, list[Template]]
    opening: bytes


def lift(folder: Path) -> Lifted:
    """Let a broker write every kind of record in stores below `folder`; return their templates."""
    found: dict[str, list[Template]] = {}
    opening = b""
    for variant in range(VARIANT_COUNT):
        for story in (Teller.tell, Teller.tell_moved):
            teller = Teller(folder / f"{story.__name__}-{variant}", variant)
            opening = teller.opening
            story(teller)
            teller.disk.close()
            for name, one in teller.kept.items():
                found.setdefault(name, []).append(one)
    return Lifted(found, opening)


class Teller:
    """A broker in which one order passes through all events."""

    def __init__(self, store: Path, variant: int) -> None:
        self._store, self._variant, self._now_ms = store, variant, PLACED_MS
        self.kept: dict[str, Template] = {}
        self.disk = RealDisk(store)
        self._broker = Broker.open(self.disk, _SETTINGS, self._now_ms)
        for topic, kind in (topics.TOPIC_TYPES | {topics.ORDER_TIMEOUTS: "MIXED"}).items():
            self._broker.topics.create(topic, MessageType(kind), QUEUE_COUNT, self._now_ms)
        self._flush()
        self._read = self._broker.end_offset
        self.opening = self._segment()[: self._read]

    def tell(self) -> None:
        """Copy every kind of record except those of a moved deadline, each under its name, to `kept`."""
        self._tell_ends()
        self._tell_push()
        self._tell_order()

    def tell_moved(self) -> None:
        """Copy the records of a moved deadline, for which time advances past the original deadline."""
        self._arm()
        self._broker.timers.move(_DEADLINE, MOVED_MS, self._now_ms)
        self._lift("moved")
        self._advance(MOVED_MS)
        self._lift("delivered moved")

    def _tell_ends(self) -> None:
        """Copy halves with a check-back, halves that are rolled back, and a payment without a timer."""
        halves = {"created": self._created(), "deadline": self._deadline(), "paid": self._change("paid")}
        self._lift(*(f"half {name}" for name in halves))
        self._broker.transactions.complete_check_back(halves["created"][1], True, self._now_ms)
        self._lift("check")
        for name, half in halves.items():
            self._end(half, Resolution.ROLLBACK)
            self._lift(f"rollback {name}")
        self._end(self._change("paid"), Resolution.COMMIT)
        self._lift("", "paid unarmed")

    def _tell_order(self) -> None:
        created, deadline = self._created(), self._deadline()
        self._end(created, Resolution.COMMIT)
        self._end(deadline, Resolution.COMMIT)
        self._lift("", "", "created", "timer")
        self._end(self._change("paid"), Resolution.COMMIT)
        self._lift("", "paid")
        self._tell_timers()
        self._tell_dead_letters()

    def _tell_timers(self) -> None:
        """Copy the ends of a deadline: cancelled by a message, fired early, delivered."""
        self._arm()
        self._end(self._change("cancelled"), Resolution.COMMIT)
        self._lift("half cancelled", "cancelled")
        self._arm()
        self._broker.timers.fire(_DEADLINE, self._now_ms)
        self._lift("fired")
        self._arm()
        self._advance(DUE_MS)
        self._lift("delivered")

    def _tell_dead_letters(self) -> None:
        created = self._receive(topics.CARTS_GROUP, topics.ORDER_CREATED)
        self._bury(topics.CARTS_GROUP, topics.ORDER_CREATED, created)
        self._lift("dead created", "acked created")
        self._broker.dead_letters.redrive(topics.CARTS_GROUP, 0, "", self._now_ms)
        self._lift("redriven", "acked letter")
        fired, _ = self._receive_all(topics.ORDERS_GROUP, topics.ORDER_TIMEOUTS)
        self._bury(topics.ORDERS_GROUP, topics.ORDER_TIMEOUTS, fired)
        self._lift("dead deadline", "acked deadline")

    def _tell_push(self) -> None:
        body = {"push_id": PUSH_ID, "customer_id": CUSTOMER_ID, "text": "Your order is on its way"}
        self._push(body | {"due_ms": PUSH_MS})
        self._lift("push timer")
        self._broker.timers.cancel(TimerName(topics.PUSHES, _message_id(4)), "", self._now_ms)
        self._lift("push cancel")
        self._push(body | {"due_ms": PUSH_MS})
        self._advance(PUSH_MS)
        self._lift("", "push delivered")
        (delivery,) = self._receive_all(topics.PUSHES_GROUP, topics.PUSHES)
        self._broker.receiving.ack(topics.PUSHES_GROUP, topics.PUSHES, delivery.receipt_handle, self._now_ms)
        self._lift("acked push")

    def _created(self) -> tuple[str, str, str]:
        lines = tuple(Line(*line) for line in lines_of(self._variant))
        order = NewOrder(ORDER_ID, CUSTOMER_ID, lines, TIMEOUT_MS)
        group = CUSTOMER_ID if self._variant >= LINES_MAX else ""
        return self._half(topics.ORDER_CREATED, 0, order.content(PLACED_MS), message_group=group)

    def _deadline(self) -> tuple[str, str, str]:
        marks = {property_names.TIMER_KEY: timer_key(ORDER_ID)}
        content = {"order_id": ORDER_ID, "due_ms": DUE_MS}
        return self._half(topics.ORDER_TIMEOUTS, 1, content, delivery_ms=DUE_MS, properties=marks)

    def _change(self, change: str) -> tuple[str, str, str]:
        """Send the half of a payment or a cancellation."""
        content = {"order_id": ORDER_ID, "customer_id": CUSTOMER_ID, "total_pence": total_of(self._variant)}
        marks = {"TW_TIMER_CANCEL": timer_key(ORDER_ID), "TW_TIMER_TOPIC": topics.ORDER_TIMEOUTS}
        topic = f"order-{change}"
        slot = 2 if change == "paid" else 3
        return self._half(topic, slot, content | {f"{change}_ms": AT_MS}, properties=marks)

    def _arm(self) -> None:
        self._end(self._deadline(), Resolution.COMMIT)
        self._lift("", "")

    def _push(self, content: dict[str, Any]) -> None:
        self._send(topics.PUSHES, 4, PUSH_ID, content, delivery_ms=PUSH_MS)

    def _half(self, topic: str, slot: int, content: dict[str, Any], **more: Any) -> tuple[str, str, str]:
        receipt = self._send(topic, slot, ORDER_ID, content, transactional=True, **more)
        return topic, receipt.transaction_id, receipt.message_id

    def _send(self, topic: str, slot: int, key: str, content: dict[str, Any], **more: Any) -> Any:
        message = Message(
            topic=topic,
            body=json.dumps(content, ensure_ascii=False).encode(),
            message_id=_message_id(slot),
            keys=(key,),
            born_ms=self._now_ms,
            born_host=("10.0.0.7", 50_000),
            **more,
        )
        receipt = self._broker.sending.send(message, self._now_ms)
        self._flush()
        return receipt

    def _end(self, half: tuple[str, str, str], resolution: Resolution) -> None:
        self._broker.transactions.end(*half, resolution, self._now_ms)
        self._flush()

    def _receive(self, group: str, topic: str) -> Delivery:
        (delivery,) = self._receive_all(group, topic)
        return delivery

    def _receive_all(self, group: str, topic: str) -> list[Delivery]:
        found = self._broker.receiving.receive(
            group, topic, EVERYTHING, 32, 60_000, "client", False, self._now_ms
        )
        self._flush()
        return found.deliveries

    def _bury(self, group: str, topic: str, delivery: Delivery) -> None:
        self._broker.receiving.forward_to_dead_letter(group, topic, delivery.receipt_handle, self._now_ms)

    def _advance(self, until_ms: int) -> None:
        """Advance the clock, and complete all work due by then."""
        self._now_ms = until_ms
        is_going_on = True
        while is_going_on:
            jobs = [one.job for one in self._broker.tick(until_ms) if isinstance(one, RunTimersJob)]
            for job in jobs:
                job.run(self.disk)
                self._broker.complete_timers_job(job)
            self._flush()
            due_ms = self._broker.next_due_ms()
            is_going_on = bool(jobs) or (due_ms is not None and due_ms <= until_ms)

    def _flush(self) -> None:
        while (flush := self._broker.take_flush()) is not None:
            flush.write()
            self._broker.complete_flush(flush, self._now_ms)

    def _lift(self, *names: str) -> None:
        """Keep the new records of the log under these names; skip those with an empty name."""
        self._flush()
        new = [one for one in self._new_records() if one.topic not in _LEFT_OUT]
        assert len(new) == len(names), (names, [one.topic for one in new])
        for name, one in zip(names, new, strict=True):
            if name:
                self.kept[name] = Template.of(one)

    def _new_records(self) -> list[record.Record]:
        content, found = self._segment(), []
        while self._read < self._broker.end_offset:
            found.append(record.decode(content, self._read))
            self._read += int.from_bytes(content[self._read : self._read + 4], "big")
        return found

    def _segment(self) -> bytes:
        return (self._store / layout.segment_path(0)).read_bytes()[: self._broker.end_offset]


def total_of(variant: int) -> int:
    """Return the total of a variant's order, in pence."""
    return sum(quantity * price for _, quantity, price in lines_of(variant))


def _message_id(slot: int) -> str:
    """Return 32 characters: a prefix, one digit for the kind of message, ten digits for its order."""
    return f"01A2B3C4D5E6F7089A0BC{slot}" + ORDER_ID[-ID_DIGITS:]


def _places(content: bytes, part: bytes) -> list[int]:
    found, at = [], content.find(part)
    while at >= 0:
        found.append(at)
        at = content.find(part, at + 1)
    return found


def _with_wide_offsets(lifted: record.Record) -> record.Record:
    stored = properties.decode(lifted.properties)
    for name in (property_names.TIMER_OFFSET, property_names.REPLACES, property_names.CANCELS):
        if name in stored:
            offset, *rest = stored[name].split()
            assert offset.isdigit()
            stored[name] = " ".join([OFFSET, *rest])
    lifted.properties = properties.encode(stored)
    return lifted
