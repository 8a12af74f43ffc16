"""Facts about the orders before their columns are chosen: table, key, rows, topics and statuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spark_jobs.proposing.facts import Row
from spark_jobs.proposing.orders import FoundOrders
from spark_jobs.proposing.topics import OrderTopics


class KnownOrders(NamedTuple):
    """The table of orders, its sampled rows by key, the topics, and the meaning of each status."""

    found: FoundOrders
    rows: Mapping[str, Row]
    topics: OrderTopics
    status: str
    """The column of the status."""
    meanings: Mapping[str | None, str]


class Evidence(NamedTuple):
    """The weight of the evidence for a column, and the reason as text."""

    weight: int
    why: str
