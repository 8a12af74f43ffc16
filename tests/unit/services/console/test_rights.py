"""The actions that a page offers, by the rules of its user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.auth.rights import Kind, Need, Verb
from services.console.pages.audits import Audits
from services.console.pages.table import pages_of
from services.console.rights import NEEDS, Caller
from services.console.sparklines import Samples

OPERATOR = (
    ("topic", "*", "view"),
    ("topic", "or*", "admin"),
    ("topic", "or*", "send"),
    ("group", "shop", "admin"),
)


def caller(*rules: tuple[str, str, str], has_all_rights: bool = False) -> Caller:
    """Return a user with rules, as `GET /api/whoami` describes it."""
    shapes = [
        {"user": "ann", "kind": kind, "pattern": pattern, "verb": verb, "effect": "allow"}
        for kind, pattern, verb in rules
    ]
    said: dict[str, Any] = {"user": "ann", "has_all_rights": has_all_rights, "rules": shapes}
    return Caller(said)


def test_every_action_has_its_needs() -> None:
    actions = [(page.path, verb) for page in pages_of(Audits(Path()), Samples()) for verb in page.acts]
    assert sorted(NEEDS) == sorted(actions)


@pytest.mark.parametrize(
    ("verb", "kind", "name", "expected"),
    [
        ("admin", "topic", "orders", True),
        ("admin", "topic", "carts", False),
        ("admin", "topic", "", True),
        ("admin", "topic", "*", False),
        ("admin", "topic", "or*", True),
        ("admin", "group", "shop", True),
        ("admin", "group", "shops", False),
        ("view", "topic", "carts", True),
    ],
)
def test_an_operator_may_act_on_its_topics(verb: str, kind: str, name: str, expected: bool) -> None:
    assert caller(*OPERATOR).may(verb, kind, name) is expected


def test_a_caller_with_all_rights_misses_none() -> None:
    needs = [Need(Verb.ADMIN, kind, "*") for kind in Kind]
    assert caller(has_all_rights=True).refusal(needs) == ""
    assert not caller().may("view", "topic")


def test_a_refusal_names_the_command() -> None:
    said = caller().refusal([Need(Verb.ADMIN, Kind.TOPIC, "")])
    assert "tidewheel auth acl allow ann admin --topic NAME" in said
