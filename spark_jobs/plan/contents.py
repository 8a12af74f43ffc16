"""Contents of a plan's messages, from the log: the order's own message, or those of other orders.

The order's own message in the topic is the newest record of the best kind in its timeline (`_CARRIERS`:
committed before sent, and so on), else one at an offset of its row. A rolled-back half counts, because the
order's service wrote it. Messages of other orders are the newest of the orders that balance in the run.

Cost: one or a few log reads per message; per topic, two filtered scans of the run's orders and about
`EXAMPLES_MAX` log reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.dataset as ds

from commitlog.records.message import Message
from spark_jobs.cases.names import BALANCED
from spark_jobs.plan.bodies import LINES, Example, Fields, Listed, made
from spark_jobs.plan.forms import COLUMNS
from spark_jobs.plan.sources import PlanSources

EXAMPLES_MAX: Final = 20
_COLUMNS: Final = {
    "order_created": ("order_id", "customer_id", "placed_ms", LINES),
    "order_timeouts": ("order_id", "due_ms"),
    "order_paid": ("order_id", "customer_id", "total_pence", "paid_ms"),
    "order_cancelled": ("order_id", "customer_id", "total_pence", "cancelled_ms"),
}
"""Our topic -> our columns that its bodies may have."""

_OFFSETS: Final = {
    "order_created": ("committed_offset", "half_offset"),
    "order_timeouts": ("timer_offset", "delivered_offset"),
    "order_paid": ("paid_offset",),
    "order_cancelled": ("cancelled_offset",),
}
"""Our topic -> the columns of an order with the log offsets of its messages."""

_CARRIERS: Final = ("half", "timer", "delivered", "fired", "sent", "committed")
"""Kinds of events whose records contain the message, best last."""

_OWN_PREFIX: Final = "TW_"
"""Prefix of the properties by which the broker handles one message. They are not copied to another one."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Content:
    """The content to send. `lacking` are the names of unknown fields of the body."""

    body: Any
    lacking: tuple[str, ...] = ()
    tag: str = ""
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the tag if not empty, and the keys if there are several."""
        more = {"tag": self.tag, "keys": list(self.keys) if len(self.keys) > 1 else None}
        return {name: value for name, value in more.items() if value}


class Contents:
    """Builds the contents of messages. `orders` is the folder of a run's orders, if there is one."""

    def __init__(self, sources: PlanSources, orders: Path | None = None) -> None:
        self._sources, self._orders = sources, orders
        self._examples: dict[str, tuple[list[Example], str]] = {}

    def of(self, topic: str, row: Row, lines: Listed | None = None) -> Content | None:
        """Return the content of an order's message in a topic (by our name).

        Return None if the body of the order's own message is neither a JSON object nor UTF-8 text. `row` is
        the order by our column names. `lines` is None if unknown.
        """
        original = self._original(topic, row)
        if original is not None and (told := _told(original)) is None:
            return _as_it_is(original)
        examples, tag = self._examples_of(topic)
        body = None if original is None else told
        content = made(self._fields(topic), row, lines, body, examples)
        if original is None:
            return Content(content.body, content.lacking, tag)
        return Content(content.body, content.lacking, original.tag, original.keys, _properties(original))

    def _original(self, topic: str, row: Row) -> Message | None:
        """Return the order's own message in a topic, the newest of the best kind, or None."""
        name = getattr(self._sources.mapping.topics, topic)
        found = [
            (_CARRIERS.index(event["kind"]), event["physical_offset"])
            for event in row.get("timeline") or []
            if event["topic"] == name and event["kind"] in _CARRIERS
        ]
        offsets = [offset for _, offset in sorted(found, reverse=True)]
        offsets += [row[column] for column in _OFFSETS[topic] if row.get(column) is not None]
        messages = (self._sources.message_at(offset) for offset in dict.fromkeys(offsets))
        return next((one for one in messages if one is not None and one.topic == name), None)

    def _examples_of(self, topic: str) -> tuple[list[Example], str]:
        """Return the newest messages of other orders in a topic, and their tag if all have the same one.

        Messages that are not JSON objects are omitted.
        """
        if topic not in self._examples:
            pairs = [(row, self._original(topic, row)) for row in self._sound_orders(_OFFSETS[topic][0])]
            messages = [(row, one, _told(one)) for row, one in pairs if one is not None]
            tags = {one.tag for _, one, told in messages if told is not None}
            examples = [Example(told, row) for row, _, told in messages if told is not None]
            self._examples[topic] = examples, tags.pop() if len(tags) == 1 else ""
        return self._examples[topic]

    def _sound_orders(self, column: str) -> Sequence[Row]:
        """Return the balanced orders with the greatest log offsets in `column`, greatest first.

        About `EXAMPLES_MAX` rows are returned, or none without a log.
        """
        files = sorted(self._orders.glob("*.parquet")) if self._orders and self._sources.has_log else []
        if not files:
            return []
        orders = ds.dataset(files, format="parquet")
        is_sound = (ds.field("case") == BALANCED) & ds.field(column).is_valid()
        offsets = orders.to_table([column], filter=is_sound)[column].to_numpy()
        if not len(offsets):
            return []
        least = np.partition(offsets, -EXAMPLES_MAX)[-EXAMPLES_MAX] if len(offsets) > EXAMPLES_MAX else 0
        columns = [name for name in dict.fromkeys((*COLUMNS, column)) if name in orders.schema.names]
        newest = orders.to_table(columns, filter=is_sound & (ds.field(column) >= int(least)))
        return list(newest.sort_by([(column, "descending")]).to_pylist())

    def _fields(self, topic: str) -> Fields:
        mapping = self._sources.mapping
        named = {getattr(mapping.bodies, column): column for column in _COLUMNS[topic]}
        named.pop("", None)
        numbers = {
            one for one in ("order_id", "customer_id") if self._sources.holds_numbers(mapping.orders, one)
        }
        if self._sources.holds_numbers(mapping.order_lines, "sku"):
            numbers.add("sku")
        return Fields(named, mapping.bodies.sku, mapping.bodies.quantity, frozenset(numbers))


def _told(message: Message) -> dict[str, Any] | None:
    """Return the body of a message as a JSON object, or None if it is not one."""
    try:
        found = json.loads(message.body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _as_it_is(message: Message) -> Content | None:
    """Return the content of a message unchanged, or None if its body is not UTF-8 text."""
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        return None
    return Content(text, (), message.tag, message.keys, _properties(message))


def _properties(message: Message) -> dict[str, str]:
    """Return the producer's properties for its consumers."""
    return {name: value for name, value in message.properties.items() if not name.startswith(_OWN_PREFIX)}
