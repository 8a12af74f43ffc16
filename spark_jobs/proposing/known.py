"""What is known of the orders before their columns are chosen: table, key, rows, topics and statuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spark_jobs.proposing.facts import Row
from spark_jobs.proposing.orders import FoundOrders
from spark_jobs.proposing.topics import OrderTopics


class KnownOrders(NamedTuple):
    """The table of orders with its sampled rows by key, the topics, and what each status means."""

    found: FoundOrders
    rows: Mapping[str, Row]
    topics: OrderTopics
    status: str
    """The column with it."""
    meanings: Mapping[str | None, str]


class Evidence(NamedTuple):
    """How much says that a column is what is looked for, and what."""

    weight: int
    why: str
