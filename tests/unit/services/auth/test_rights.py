"""The most specific rule decides; what no rule speaks of is denied; names cannot be split to escape."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.auth.rights import (
    VERBS,
    Effect,
    Kind,
    Need,
    Rights,
    Rule,
    Verb,
    check_rule,
    check_user_name,
    lacking,
)
from tidewheel.errors import ClientMistake

names = st.text("ab%", min_size=1, max_size=4)
patterns = st.builds(str.__add__, st.text("ab%", max_size=4), st.sampled_from(["", "*"])).filter(bool)
rules = st.lists(
    st.builds(
        Rule,
        st.sampled_from(["u", "v"]),
        st.just(Kind.TOPIC),
        patterns,
        st.sampled_from(Verb),
        st.sampled_from(Effect),
    )
)


def rights(*given_rules: Rule) -> Rights:
    made = Rights()
    for rule in given_rules:
        made.set(rule)
    return made


def on_topic(verb: Verb | None, name: str) -> Need:
    return Need(verb, Kind.TOPIC, name)


def test_what_no_rule_speaks_of_is_denied() -> None:
    assert not rights().allows("u", on_topic(Verb.SEND, "orders"))
    one = rights(Rule("u", Kind.TOPIC, "orders", Verb.SEND))
    assert one.allows("u", on_topic(Verb.SEND, "orders"))
    for user, need in (
        ("v", on_topic(Verb.SEND, "orders")),
        ("u", on_topic(Verb.RECEIVE, "orders")),
        ("u", on_topic(Verb.SEND, "orders2")),
        ("u", on_topic(Verb.SEND, "")),
        ("u", Need(Verb.RECEIVE, Kind.GROUP, "orders")),
    ):
        assert not one.allows(user, need)


def test_a_name_goes_before_a_prefix_and_a_longer_prefix_before_a_shorter() -> None:
    made = rights(
        Rule("u", Kind.TOPIC, "*", Verb.SEND, Effect.DENY),
        Rule("u", Kind.TOPIC, "or*", Verb.SEND),
        Rule("u", Kind.TOPIC, "order*", Verb.SEND, Effect.DENY),
        Rule("u", Kind.TOPIC, "orders", Verb.SEND),
    )
    allowed = [
        name
        for name in ("x", "or", "order", "orders", "orders2")
        if made.allows("u", on_topic(Verb.SEND, name))
    ]
    assert allowed == ["or", "orders"]


def test_any_right_will_do_where_none_is_named() -> None:
    made = rights(
        Rule("u", Kind.TOPIC, "orders", Verb.RECEIVE), Rule("u", Kind.TOPIC, "*", Verb.RECEIVE, Effect.DENY)
    )
    assert made.allows("u", on_topic(None, "orders"))
    assert not made.allows("u", on_topic(None, "carts"))


def test_a_rule_takes_the_place_of_one_about_the_same_and_can_be_taken_away() -> None:
    rule = Rule("u", Kind.TOPIC, "orders", Verb.SEND)
    made = rights(rule, Rule("u", Kind.TOPIC, "orders", Verb.SEND, Effect.DENY))
    assert [one.effect for one in made] == [Effect.DENY]
    assert made.remove(rule)
    assert not made.remove(rule)
    assert (list(made), made.count("u")) == ([], 0)


def test_the_rules_of_a_user_can_be_forgotten() -> None:
    made = rights(Rule("u", Kind.TOPIC, "*", Verb.SEND), Rule("v", Kind.GROUP, "g", Verb.RECEIVE))
    made.forget("u")
    assert [rule.user for rule in made] == ["v"]
    assert not made.allows("u", on_topic(Verb.SEND, "orders"))


@given(rules, names)
def test_the_rule_with_the_longest_pattern_that_fits_decides(given_rules: list[Rule], name: str) -> None:
    made = rights(*given_rules)

    def fits(pattern: str) -> bool:
        return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern

    def is_allowed(verb: Verb) -> bool:
        speaking = [one for one in made if one.user == "u" and one.verb is verb and fits(one.pattern)]
        decides = max(speaking, key=lambda one: ("*" not in one.pattern, len(one.pattern)), default=None)
        return decides is not None and decides.effect is Effect.ALLOW

    for verb in Verb:
        expected = is_allowed(verb) or (verb is Verb.VIEW and is_allowed(Verb.ADMIN))
        assert made.allows("u", on_topic(verb, name)) == expected


@given(rules, rules)
def test_rules_that_come_and_go_leave_what_was_there(first: list[Rule], second: list[Rule]) -> None:
    made = rights(*first)
    before = list(made)
    others = {(one.user, one.kind, one.pattern, one.verb) for one in before}
    fresh = [one for one in second if (one.user, one.kind, one.pattern, one.verb) not in others]
    for rule in fresh:
        made.set(rule)
    for rule in fresh:
        made.remove(rule)
    assert list(made) == before


@pytest.mark.parametrize("pattern", ["", "a b", "a*b", "**", "ü", "x" * 128, "a\n"])
def test_a_pattern_that_matches_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(ClientMistake, match="no name and no prefix"):
        check_rule(Rule("u", Kind.TOPIC, pattern, Verb.SEND))


def test_a_verb_that_a_group_does_not_have_is_refused() -> None:
    for verb in Verb:
        if verb in VERBS[Kind.GROUP]:
            check_rule(Rule("u", Kind.GROUP, "*", verb))
        else:
            with pytest.raises(ClientMistake, match="verbs for it are admin, receive"):
                check_rule(Rule("u", Kind.GROUP, "*", verb))


@pytest.mark.parametrize("name", ["", "a/b", "a,b", " a", "-a", "a b", "x" * 65, "a\n", "*"])
def test_a_name_that_no_header_could_carry_is_refused(name: str) -> None:
    with pytest.raises(ClientMistake, match="cannot be a user's name"):
        check_user_name(name)


def test_a_name_may_have_dots_and_dashes() -> None:
    check_user_name("orders-service.2_x")


def test_a_call_about_all_names_is_denied_where_one_of_them_is() -> None:
    made = rights(
        Rule("u", Kind.TOPIC, "*", Verb.ADMIN), Rule("u", Kind.TOPIC, "pay*", Verb.ADMIN, Effect.DENY)
    )
    about = ["*", "p*", "pay*", "payments*", "orders*"]
    assert [made.allows("u", on_topic(Verb.ADMIN, name)) for name in about] == [*[False] * 4, True]
    assert made.allows("u", on_topic(Verb.ADMIN, "orders"))


def test_what_is_missing_is_said_with_the_command_that_gives_it() -> None:
    receive = [Need(Verb.RECEIVE, Kind.TOPIC, "shop%a b"), Need(Verb.RECEIVE, Kind.GROUP, "g")]
    assert lacking("orders", receive) == (
        "'orders' has not receive on topic 'shop%a b', receive on group 'g'. "
        "Allow it: tidewheel auth acl allow orders receive --topic 'shop%a b' --group g"
    )
    both = [on_topic(Verb.SEND, "t"), on_topic(Verb.TRANSACT, "t")]
    assert lacking("u", both).endswith(
        "send on topic 't', transact on topic 't'. Allow it: tidewheel auth acl allow u send --topic t"
    )
    assert "and 96 more" in lacking("u", [on_topic(Verb.ADMIN, f"t{number}") for number in range(100)])
