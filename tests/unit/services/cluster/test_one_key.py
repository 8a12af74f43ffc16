"""A node whose key of users' secrets is another one than the leader's does not join."""

from __future__ import annotations

import pytest

from services.cluster.errors import OtherKey
from services.cluster.one_key import OneKey
from sharedlog.record import Kind, SharedRecord, body_of


def told(kind: Kind, **facts: str) -> SharedRecord:
    return SharedRecord(b"c" * 16, kind, 7, b"h" * 16, 0, 0, body_of(facts))


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
@pytest.mark.parametrize("kind", [Kind.EPOCH, Kind.BEAT])
def test_another_key_than_the_leaders_is_told_with_what_to_do(
    own: str, leaders: str, said: str, kind: Kind
) -> None:
    one = OneKey("b", own)
    one.note(told(kind, node="a", key=leaders))
    with pytest.raises(OtherKey) as raised:
        one.check()
    assert said in str(raised.value)
    assert "stop all nodes and start a first" in str(raised.value)


def test_the_same_key_and_no_key_on_either_side_are_fine() -> None:
    for key in ("k", ""):
        one = OneKey("b", key)
        one.check()
        one.note(told(Kind.EPOCH, node="a", key=key))
        one.note(told(Kind.BEAT))
        one.check()


def test_who_led_last_may_bring_another_key_and_the_others_may_not_keep_theirs() -> None:
    back, other = OneKey("a", "new"), OneKey("b", "old")
    for one in (back, other):
        one.note(told(Kind.EPOCH, node="a", key="old"))
        one.check()
    for one in (back, other):
        one.note(told(Kind.EPOCH, node="a", key="new"))
    back.check()
    with pytest.raises(OtherKey):
        other.check()


def test_what_a_leader_says_of_its_key_is_what_others_read() -> None:
    one = OneKey("b", "k2")
    one.note(told(Kind.BEAT, **OneKey("a", "k1").facts))
    with pytest.raises(OtherKey):
        one.check()
