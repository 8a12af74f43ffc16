"""Names of the wire become words of the store, and never longer ones than are refused later."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog import limits
from services.rpc.generated.definition_pb2 import Resource
from services.rpc.wire.names import stored_name
from tidewheel.errors import IllegalTopic


def test_a_namespace_is_a_prefix() -> None:
    assert stored_name(Resource(name="orders")) == "orders"
    assert stored_name(Resource(resource_namespace="shop", name="orders")) == "shop%orders"


def test_no_name_in_a_namespace_is_no_name() -> None:
    assert stored_name(Resource(resource_namespace="shop")) == ""


@pytest.mark.parametrize("namespace", ["%", "%DLQ", "%RETRY", "shop%", "a%b", "%" * 70_000])
def test_a_namespace_does_not_hold_what_ends_one(namespace: str) -> None:
    with pytest.raises(IllegalTopic, match="must not hold '%'"):
        stored_name(Resource(resource_namespace=namespace, name="g"))


spaces, names = st.text("ab._-|%", min_size=1, max_size=4), st.text("ab%|", min_size=1, max_size=6)


@given(st.tuples(spaces, names), st.tuples(spaces, names))
def test_no_two_names_in_namespaces_are_the_same_word(one: tuple[str, str], other: tuple[str, str]) -> None:
    words = [
        stored_name(Resource(resource_namespace=namespace, name=name))
        for namespace, name in (one, other)
        if "%" not in namespace
    ]
    assert len(set(words)) == len({pair for pair in (one, other) if "%" not in pair[0]})
    assert not any(word.startswith("%") for word in words)


def test_a_name_without_end_is_cut_to_one_that_is_still_too_long() -> None:
    for resource in (
        Resource(name="a" * 70_000),
        Resource(resource_namespace="a" * 70_000, name="b" * 70_000),
    ):
        assert limits.TOPIC_CHARACTERS_MAX < len(stored_name(resource)) < 1_000
