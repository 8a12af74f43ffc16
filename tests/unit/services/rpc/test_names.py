"""Names of the wire become words of the store, and never longer ones than are refused later."""

from __future__ import annotations

from commitlog import limits
from services.rpc.generated.definition_pb2 import Resource
from services.rpc.names import stored_name


def test_a_namespace_is_a_prefix() -> None:
    assert stored_name(Resource(name="orders")) == "orders"
    assert stored_name(Resource(resource_namespace="shop", name="orders")) == "shop%orders"


def test_a_name_without_end_is_cut_to_one_that_is_still_too_long() -> None:
    for resource in (
        Resource(name="a" * 70_000),
        Resource(resource_namespace="a" * 70_000, name="b" * 70_000),
    ):
        assert limits.TOPIC_CHARACTERS_MAX < len(stored_name(resource)) < 1_000
