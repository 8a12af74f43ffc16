"""A node whose key of users' secrets is another one than the leader's does not join."""

from __future__ import annotations

import pytest

from services.cluster.errors import KeyMismatch
from services.cluster.key_check import check_key


@pytest.mark.parametrize(
    ("own", "leaders", "said"),
    [
        (
            "k1",
            "k2",
            "This node has another --auth-key than node a, which leads epoch 7: give it the same file",
        ),
        (
            "",
            "k2",
            "Node a, which leads epoch 7, has an --auth-key, and this node has none: give it the same",
        ),
        (
            "k1",
            "",
            "This node has an --auth-key, and node a, which leads epoch 7, has none: take it away here",
        ),
    ],
)
def test_another_key_than_the_leaders_is_told_with_what_to_do(own: str, leaders: str, said: str) -> None:
    with pytest.raises(KeyMismatch) as raised:
        check_key("b", own, 7, {"node": "a", "key": leaders})
    assert said in str(raised.value)
    assert "stop all nodes and start a first" in str(raised.value)


def test_the_same_key_and_no_key_on_either_side_are_fine() -> None:
    for key in ("k", ""):
        check_key("b", key, 0, {})
        check_key("b", key, 7, {"node": "a", "key": key})
    check_key("b", "", 7, {"node": "a"})


def test_who_led_last_may_bring_another_key_and_the_others_may_not_keep_theirs() -> None:
    check_key("a", "new", 7, {"node": "a", "key": "old"})
    with pytest.raises(KeyMismatch):
        check_key("b", "old", 8, {"node": "a", "key": "new"})
