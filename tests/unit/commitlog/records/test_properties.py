"""Tests the conversion of messages to properties and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.records import properties
from commitlog.records.message import Message
from commitlog.records.record import Record
from tidewheel import property_names

KEYS = st.lists(
    st.text(st.sampled_from("ab 1\u00a0\t"), min_size=1, max_size=6).filter(str.strip), max_size=4
)


def stored(*keys: str) -> bytes:
    return properties.encode_message(Message(topic="t", body=b"x", message_id="M", keys=keys))


@given(KEYS)
def test_keys_come_back_as_they_were_sent(keys: list[str]) -> None:
    message = properties.to_message(Record(topic="t", body=b"x", properties=stored(*keys)))
    assert message.keys == tuple(keys)
    assert properties.value_of(stored(*keys), property_names.KEYS) == " ".join(keys), "as RocketMQ has them"


def test_keys_without_blanks_cost_nothing_more() -> None:
    assert stored("a", "b\u00a0c") == "UNIQ_KEY\x01M\x02KEYS\x01a b\u00a0c\x02".encode()
    assert b"TW_KEY_LENGTHS\x013 1\x02" in stored("a b", "c")


@pytest.mark.parametrize("lengths", ["", "1", "9", "3 9", "2 2", "x", "1 1 1 1", "-3 1", "3  1"])
def test_lengths_that_do_not_fit_are_ignored(lengths: str) -> None:
    assert properties.keys_in("a b c", lengths) == ("a", "b", "c")
    assert properties.keys_in("a b c", "3 1") == ("a b", "c")
