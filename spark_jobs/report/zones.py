"""Detects a wrong time zone in the mapping: times of rows that are hours away from their orders' messages.

No case checks it. Books with times ahead of the log balance, and deadlines that never fired are not yet due.
A wrong zone is therefore reported before any finding.

Cost: three columns of at most `ORDERS_READ_MAX` orders.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from spark_jobs.inputs.mapping import Mapping

ORDERS_READ_MAX: Final = 100_000
QUARTER_MS: Final = 900_000
"""Differences between time zones are multiples of a quarter of an hour."""
NEAR_MS: Final = 60_000
_TIMES: Final = pa.schema([(name, pa.int64()) for name in ("placed_ms", "half_ms", "committed_ms")])
_MOST: Final = 0.8
_ORDERS_MIN: Final = 2


def wrong_zone(orders: Path, mapping: Mapping) -> list[str]:
    """Return a sentence if most orders were placed whole quarters of an hour from their first message.

    "Most" is at least two orders and 80 % of those with both times. The difference must be at least one
    quarter, and within `NEAR_MS` of a multiple. `orders` is the folder of the run's orders.
    """
    read = ds.dataset(orders, schema=_TIMES, format="parquet").head(ORDERS_READ_MAX)
    sent = pc.coalesce(read["half_ms"], read["committed_ms"])
    apart = pc.subtract(read["placed_ms"], sent).drop_null().to_pylist()
    quarters = Counter(round(ms / QUARTER_MS) for ms in apart if _is_near_a_quarter(ms))
    del quarters[0]
    if quarters.total() < max(_ORDERS_MIN, _MOST * len(apart)):
        return []
    most, _ = quarters.most_common(1)[0]
    table = mapping.orders
    where = f"{table.columns['placed_ms']} of table {table.name}"
    span = f"{abs(most) / 4:g} h {'after' if most > 0 else 'before'}"
    return [
        f"In {quarters.total():,} of {len(apart):,} orders {where} is {span} the order's message. Times "
        f"without a zone are taken for {table.zone or 'UTC'}: correct zone in [orders]. Of numbers, and of "
        "times with a zone, name a view with the times in UTC."
    ]


def _is_near_a_quarter(ms: int) -> bool:
    return abs(ms - round(ms / QUARTER_MS) * QUARTER_MS) <= NEAR_MS
