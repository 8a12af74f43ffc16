"""Tests which records tag filters match, by tag hash and by stored properties."""

from __future__ import annotations

import pytest

from commitlog import limits
from commitlog.records import properties
from commitlog.records.message import Message
from consumequeue.entry import tags_code
from consumequeue.filters.errors import IllegalFilter
from consumequeue.filters.filter import parse_tags
from services.broker.spine.validation import check_message
from tidewheel import property_names


def tagged(tag: str) -> bytes:
    return properties.encode({"color": "red", property_names.TAG: tag, "size": "4"})


@pytest.mark.parametrize("expression", ["", "  ", "*", " * "])
def test_a_star_or_nothing_wants_everything(expression: str) -> None:
    wanted = parse_tags(expression)
    assert wanted.tags_codes is None
    assert wanted.matches(tagged("any"))
    assert wanted.matches(b"")


def test_tags_are_wanted_by_hash_and_by_name() -> None:
    wanted = parse_tags("paid || sent")
    assert wanted.tags_codes == {tags_code("paid"), tags_code("sent")}
    assert wanted.matches(tagged("paid"))
    assert wanted.matches(tagged("sent"))
    assert not wanted.matches(tagged("open"))
    assert not wanted.matches(b"")


def test_a_tag_with_the_hash_of_a_wanted_one_is_not_wanted() -> None:
    assert tags_code("Aa") == tags_code("BB")
    assert not parse_tags("Aa").matches(tagged("BB"))


@pytest.mark.parametrize("expression", ["a||b", "a||||b", "||a||b||", " a ||\t|| b ", "a || || b", "b||a||b"])
def test_empty_parts_are_skipped_and_parts_are_trimmed_as_rocketmq_does(expression: str) -> None:
    wanted = parse_tags(expression)
    assert all(wanted.matches(tagged(tag)) for tag in ("a", "b"))
    assert not any(wanted.matches(tagged(tag)) for tag in ("", "c", "||"))


def test_a_star_beside_bars_is_a_tag_like_any_other() -> None:
    assert parse_tags("*||").matches(tagged("*"))
    assert not parse_tags("*||").matches(tagged("any"))


@pytest.mark.parametrize(
    "tag", ["x" * limits.TAG_BYTES_MAX, "b " * 8_000 + "b", " a", "a ", "\u3000a", "*a"], ids=range(6)
)
def test_a_tag_that_can_be_sent_can_be_asked_for(tag: str) -> None:
    message = Message(topic="t", body=b"x", message_id="1", tag=tag)
    check_message(message, message.message_type)
    wanted = parse_tags(tag)
    assert wanted.matches(tagged(tag))
    assert tags_code(tag) in (wanted.tags_codes or ())


def test_what_is_longer_than_any_tags_may_be_is_not_read() -> None:
    with pytest.raises(IllegalFilter, match=f"the limit is {limits.TAG_BYTES_MAX}"):
        parse_tags("x" * (limits.TAG_BYTES_MAX + 1))


def test_more_tags_than_may_be_are_refused() -> None:
    assert parse_tags("||".join(map(str, range(limits.FILTER_TAGS_MAX)))).matches(tagged("0"))
    with pytest.raises(IllegalFilter, match=f"asks for {limits.FILTER_TAGS_MAX + 1} tags"):
        parse_tags("||".join(map(str, range(limits.FILTER_TAGS_MAX + 1))))


@pytest.mark.parametrize("wrong", ["||", "||||", " || || ", "a | b", "a ||| b"])
def test_no_tag_at_all_or_a_single_bar_is_refused(wrong: str) -> None:
    with pytest.raises(IllegalFilter):
        parse_tags(wrong)
