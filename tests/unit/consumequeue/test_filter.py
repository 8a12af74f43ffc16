"""Tag filters: what they want, by hash and by the stored properties."""

from __future__ import annotations

import pytest

from commitlog import properties
from commitlog.errors import IllegalFilter
from consumequeue.entry import tags_code
from consumequeue.filter import parse_tags


def tagged(tag: str) -> bytes:
    return properties.encode({"color": "red", properties.TAG: tag, "size": "4"})


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


@pytest.mark.parametrize("wrong", ["||", "a||", "||a", "a || || b", "a | b", "a ||| b"])
def test_an_empty_tag_or_a_single_bar_is_refused(wrong: str) -> None:
    with pytest.raises(IllegalFilter):
        parse_tags(wrong)
