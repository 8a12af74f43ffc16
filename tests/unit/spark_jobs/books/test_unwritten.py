"""Which orders explain what carts lack: never more than is missing, never more than was ordered."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.books.unwritten import explained

quantities = st.dictionaries(st.sampled_from("abc"), st.integers(0, 4), max_size=3)


def test_a_deficit_is_put_down_to_the_order_whose_entry_is_missing() -> None:
    assert explained({"apple": 1}, [("first", {"apple": 1})]) == {"first": {"apple": 1}}


def test_an_order_of_which_all_is_missing_goes_before_an_older_one() -> None:
    orders = [("older", {"apple": 1, "pear": 1}), ("newer", {"apple": 1})]
    assert explained({"apple": 1}, orders) == {"newer": {"apple": 1}}


def test_an_order_takes_out_no_more_than_the_cart_has_held() -> None:
    assert explained({"apple": 1}, [("one", {"apple": 3, "pear": 1})]) == {"one": {"apple": 1}}


def test_what_no_cart_lacks_is_no_missing_entry() -> None:
    assert explained({}, [("one", {"apple": 1}), ("none", {})]) == {}


@given(quantities, st.dictionaries(st.text(max_size=2), quantities))
def test_no_more_is_explained_than_is_missing_and_was_ordered(
    deficits: dict[str, int], orders: dict[str, dict[str, int]]
) -> None:
    found = explained(deficits, orders.items())
    taken: Counter[str] = Counter()
    for order_id, articles in found.items():
        assert articles
        assert all(0 < count <= orders[order_id][sku] for sku, count in articles.items())
        taken.update(articles)
    assert all(count <= deficits.get(sku, 0) for sku, count in taken.items())
    for order_id in orders.keys() - found.keys():
        assert all(
            not count or taken[sku] == deficits.get(sku, 0) for sku, count in orders[order_id].items()
        ), "an order that could explain what is left is not left out"
