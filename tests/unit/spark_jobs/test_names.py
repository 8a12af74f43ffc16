"""What sentences call an order and its columns: the user's names, and words where there are none."""

from __future__ import annotations

from spark_jobs.inputs.mapping import SHOP, as_mapping
from spark_jobs.names import OrderNames


def test_the_users_names_come_first_and_words_in_place_of_the_shops() -> None:
    orders = {"table": "purchase", "total_pence": "worth", "paid_ms": ""}
    given = {"orders": orders, "topics": {"order_created": "sales"}}
    names = OrderNames.of_mapping(as_mapping(given, "a test"))
    assert (names.order, names.of("total_pence"), names.of("placed_ms")) == (
        "purchase",
        "worth",
        "time of the order",
    )
    assert names.of("committed_ms") == "message in sales"
    assert OrderNames.of_json(names.as_json()) == names


def test_the_shop_has_words() -> None:
    assert OrderNames.of_mapping(SHOP) == OrderNames()
