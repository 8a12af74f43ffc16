"""Keys of many records are those that the broker's own codec finds in each."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.records import properties
from commitlog.records.message import Message
from spark_jobs.log.columns.keys import first_keys, key_lists
from tidewheel import property_names

TEXTS = st.text(st.sampled_from("ab 1\u00a0\té"), min_size=1, max_size=6)
SENT = st.lists(TEXTS.filter(str.strip), min_size=1, max_size=4).map(
    lambda keys: properties.decode(
        properties.encode_message(Message(topic="t", body=b"", message_id="M", keys=tuple(keys)))
    )
)
ODD = st.fixed_dictionaries({
    property_names.KEYS: TEXTS,
    property_names.KEY_LENGTHS: st.text(st.sampled_from("0123 -x٣"), min_size=1, max_size=5),
})  # fmt: skip
PLAIN = st.fixed_dictionaries({property_names.KEYS: TEXTS})
STORED: st.SearchStrategy[dict[str, str]] = st.one_of(SENT, ODD, PLAIN, st.just({}))


def column(stored: list[dict[str, str]], name: str) -> pa.StringArray:
    return pa.array([one.get(name) for one in stored], pa.string())


@given(st.lists(STORED, max_size=8))
def test_keys_are_those_that_the_codec_finds(stored: list[dict[str, str]]) -> None:
    joined, lengths = column(stored, property_names.KEYS), column(stored, property_names.KEY_LENGTHS)
    expected = [list(properties.keys_of(one)) for one in stored]
    assert key_lists(joined, lengths).to_pylist() == expected
    assert first_keys(joined, lengths).to_pylist() == [next(iter(keys), None) for keys in expected]


@pytest.mark.parametrize("lengths", [[None], ["6"], ["4 1"]])
def test_keys_of_a_part_of_a_column(lengths: list[str | None]) -> None:
    joined, given_lengths = pa.array(["x y", "ab c d"]).slice(1), pa.array(["3", *lengths]).slice(1)
    [keys] = key_lists(joined, given_lengths).to_pylist()
    assert first_keys(joined, given_lengths).to_pylist() == keys[:1]
    assert keys == list(properties.keys_in("ab c d", lengths[0] or ""))
