"""Facts of the events of one part: firsts and lasts, also where events are not in the order of the log."""

from __future__ import annotations

import numpy as np

from spark_jobs.staging.events import CANCELLED, CREATED, PAID, TIMEOUTS, Code, Events
from spark_jobs.staging.order_facts import ORDER_FACTS, facts_of


def facts(*events: tuple[int, int, Code, int, int]) -> list[dict[str, int | None]]:
    """The facts of orders by events: the order's row, topic, code, offset and `ref`; stored at the offset."""
    rows, topic, code, offset, ref = np.array(events, np.int64).T
    none = np.full(len(events), -1)
    made = Events(rows, code.astype(np.int8), topic.astype(np.int8), offset, offset, ref, none, none)
    columns = facts_of(made, rows, int(rows.max()) + 1, ORDER_FACTS)
    names = [fact.name for fact in ORDER_FACTS]
    lists = (column.to_pylist() for column in columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]


def test_firsts_lasts_and_counts_of_two_orders() -> None:
    one, other = facts(
        (0, CREATED, Code.HALF, 10, -1),
        (1, CREATED, Code.HALF, 20, -1),
        (0, CREATED, Code.COMMIT, 30, 10),
        (1, CREATED, Code.ROLLBACK, 40, 20),
        (0, CREATED, Code.COMMIT, 50, 10),
        (0, PAID, Code.EXPIRED, 60, 55),
        (0, PAID, Code.ROLLBACK, 70, 58),
    )
    assert (one["half_offset"], one["committed_offset"], one["committed_ms"]) == (10, 30, 30)
    assert (one["commits"], one["halves"], one["half_ends"]) == (2, 1, 4)
    assert one["paid_end_offset"] == 70
    assert (other["half_offset"], other["rollback_offset"], other["committed_offset"]) == (20, 40, None)
    assert (other["half_link"], other["halves"], other["half_ends"]) == (0, 1, 1)


def test_cancels_that_come_behind_later_ones() -> None:
    """What a record carries comes behind the other events of its batch."""
    (order,) = facts((0, TIMEOUTS, Code.CANCEL, 90, 5), (0, TIMEOUTS, Code.CANCEL, 80, 5))
    assert (order["timer_cancel_offset"], order["timer_ends"]) == (80, 2)


def test_events_about_no_topic_of_the_shop_are_no_facts() -> None:
    (order,) = facts((0, -1, Code.ASKED, 5, 1), (0, CANCELLED, Code.COMMIT, 7, 2))
    assert (order["cancelled_offset"], order["halves"], order["half_ends"]) == (7, 0, 1)
