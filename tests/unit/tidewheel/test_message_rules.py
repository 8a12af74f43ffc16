"""What a message may say, against what is stored of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog import limits
from commitlog.records import properties
from commitlog.records.message import Message
from tidewheel.errors import PropertiesTooLarge
from tidewheel.message_rules import check_said, key_lengths

OF_NAMES = 1_500
"""What the names of reserved properties, separators, the id and the message group add at most, in bytes."""
texts = st.text(st.sampled_from("ab \U0001f600"), min_size=1, max_size=9).filter(str.strip)


def said(**given_texts: object) -> Message:
    return Message(topic="t", body=b"x", message_id="M1", **given_texts)


@given(
    st.lists(texts, min_size=1, max_size=40),
    st.integers(1, 1_000),
    st.dictionaries(texts, texts, max_size=5),
    st.integers(0, 17_000),
)
def test_what_is_taken_is_stored_in_little_more_than_the_bound(
    some: list[str], times: int, pairs: dict[str, str], trace_characters: int
) -> None:
    message = said(keys=tuple(some * times), properties=pairs, trace_context="x" * trace_characters)
    try:
        check_said(message)
    except PropertiesTooLarge:
        return
    stored = properties.encode_message(message)
    assert len(stored) <= limits.PROPERTIES_USER_BYTES_MAX + OF_NAMES


@pytest.mark.parametrize("key", ["b", "b ", "a b", "\U0001f600", "\U0001f600 ", "x" * 99 + " "])
def test_keys_count_as_they_are_stored_to_the_byte(key: str) -> None:
    lengths_bytes = len(str(len(key))) + 1 if " " in key else 0
    count = (limits.PROPERTIES_USER_BYTES_MAX + 1 + bool(lengths_bytes)) // (
        len(key.encode()) + 1 + lengths_bytes
    )
    check_said(said(keys=(key,) * count))
    stored = properties.encode_message(said(keys=(key,) * count))
    assert len(stored) <= limits.PROPERTIES_USER_BYTES_MAX + len(
        "UNIQ_KEY\x01M1\x02KEYS\x01\x02TW_KEY_LENGTHS\x01\x02"
    )
    with pytest.raises(PropertiesTooLarge, match=r"in all"):
        check_said(said(keys=(key,) * (count + 1)))


def test_lengths_of_keys_are_told_where_one_holds_a_blank() -> None:
    assert [key_lengths(keys) for keys in ((), ("a", "bc"), ("a ", "bc"))] == ["", "", "2 2"]
