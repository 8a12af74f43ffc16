"""Names of a mapping that the log does not have are told, with those that there are."""

from __future__ import annotations

from spark_jobs.inputs.mapping import SHOP, as_mapping
from spark_jobs.report.absent import absent_groups, absent_topics

OWN = as_mapping(
    {"topics": {"order_created": "sales", "order_paid": "money"}, "groups": {"order_created": "warehouse"}},
    "a test",
)


def test_a_topic_that_the_log_does_not_have_is_named_with_those_that_there_are() -> None:
    assert absent_topics(["orders", "sales", "rmq_sys_wheel_timer", "%DLQ%x", None], OWN) == [
        "The log has no record of topic money, which [topics] order_paid names. It has orders, sales."
    ]


def test_the_shops_topics_need_not_be_there_but_that_of_placed_orders() -> None:
    assert absent_topics([], SHOP) == [
        "The log has no record of topic order-created, which [topics] order_created names. It has none."
    ]
    assert absent_topics(["order-created"], SHOP) == []


def test_a_topic_that_the_user_does_not_have_is_not_missed() -> None:
    mapping = as_mapping(
        {"topics": {"order_paid": "", "order_timeouts": "", "order_created": "sales"}}, "a test"
    )
    assert absent_topics(["sales"], mapping) == []
    assert absent_groups(["sales", ""], [], mapping) == []


def test_a_group_that_has_acknowledged_nothing_is_named() -> None:
    (told,) = absent_groups(["sales"], [], OWN)
    assert told.startswith("Group warehouse, which [groups] order_created names, has acknowledged nothing")
    assert absent_groups(["sales"], ["sales"], OWN) == []
    assert absent_groups([], [], OWN) == [], "a topic that is not there is said already"
