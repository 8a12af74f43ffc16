"""Roles: which rules they are, and what those allow."""

from __future__ import annotations

import pytest

from services.auth.rights import Kind, Need, Rights, Verb, check_rule
from services.auth.roles import Role, rules_of
from tidewheel.errors import ClientMistake


def rights_of(role: Role, topics: tuple[str, ...] = (), groups: tuple[str, ...] = ()) -> Rights:
    rights = Rights()
    for rule in rules_of(role, "eve", topics, groups):
        check_rule(rule)
        rights.set(rule)
    return rights


def may(rights: Rights, verb: Verb | None, kind: Kind, name: str) -> bool:
    return rights.allows("eve", Need(verb, kind, name))


def test_a_viewer_sees_all_and_may_nothing_else() -> None:
    rights = rights_of(Role.VIEWER)
    for kind in Kind:
        assert may(rights, Verb.VIEW, kind, "*")
        assert may(rights, Verb.VIEW, kind, "orders")
        assert not may(rights, Verb.ADMIN, kind, "orders")
    assert not any(may(rights, verb, Kind.TOPIC, "orders") for verb in (Verb.SEND, Verb.RECEIVE, None))
    assert rights.allows_some("eve", Verb.VIEW, Kind.TOPIC)
    assert not rights.allows_some("eve", Verb.ADMIN, Kind.TOPIC)


def test_an_operator_sees_all_and_changes_what_is_named() -> None:
    rights = rights_of(Role.OPERATOR, ("orders*",), ("shop",))
    assert may(rights, Verb.VIEW, Kind.TOPIC, "*")
    assert may(rights, Verb.ADMIN, Kind.TOPIC, "orders-eu")
    assert may(rights, Verb.SEND, Kind.TOPIC, "orders-eu")
    assert may(rights, Verb.ADMIN, Kind.GROUP, "shop")
    assert not may(rights, Verb.ADMIN, Kind.TOPIC, "carts")
    assert not may(rights, Verb.ADMIN, Kind.GROUP, "*")


def test_an_admin_does_all_which_contains_seeing_it() -> None:
    rights = rights_of(Role.ADMIN)
    for kind in Kind:
        assert may(rights, Verb.ADMIN, kind, "*")
        assert may(rights, Verb.VIEW, kind, "*")
        assert rights.allows_some("eve", Verb.VIEW, kind)


@pytest.mark.parametrize(
    ("role", "topics", "groups"),
    [
        (Role.OPERATOR, (), ()),
        (Role.OPERATOR, ("*",), ("shop",)),
        (Role.OPERATOR, ("orders",), ("*",)),
        (Role.VIEWER, ("orders",), ()),
        (Role.ADMIN, (), ("shop",)),
    ],
)
def test_a_role_for_other_names_than_it_takes_is_refused(
    role: Role, topics: tuple[str, ...], groups: tuple[str, ...]
) -> None:
    with pytest.raises(ClientMistake):
        rules_of(role, "eve", topics, groups)
