"""Properties of many records: by shapes, by marks or one by one, they are what the codec says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.records import properties
from commitlog.records.record import Record, encode
from spark_jobs.log.columns import shapes
from spark_jobs.log.columns.properties import Properties
from spark_jobs.log.columns.records import Records
from spark_jobs.log.columns.shapes import Shape, Shapes
from tidewheel import property_names

NAMES = ("KEYS", "TAGS", "UNIQ_KEY", "TW_TIMER_OFFSET", "DLQ_ORIGIN_MESSAGE_ID")
TOPICS = ("t", "u", "orders")
Seen = tuple[str, dict[str, str], dict[str, str]]


def topic_of(at: int) -> str:
    return TOPICS[at // 3 % 3]


def read(stored: Sequence[bytes], known: Shapes | None = None) -> list[Seen]:
    """(topic, values of `NAMES`, users' properties) of each string, in records of a few topics."""
    whole = [
        encode(Record(topic=topic_of(at), body=b"", properties=one), with_crc=False)
        for at, one in enumerate(stored)
    ]
    lengths = np.array(list(map(len, whole)))
    records = Records.at(np.frombuffer(b"".join(whole), np.uint8), np.cumsum(lengths) - lengths)
    found = Properties(records, NAMES, known or Shapes())
    topics = found.topics.to_pylist()
    values = {name: found.values(name).to_pylist() for name in NAMES}
    return [
        (
            topics[at],
            {name: values[name][at].decode(errors="replace") for name in NAMES if values[name][at]},
            dict(users),
        )
        for at, users in enumerate(found.of_users().to_pylist())
    ]


def expected(stored: Sequence[bytes]) -> list[Seen]:
    decoded = [properties.decode(one) for one in stored]
    return [
        (
            topic_of(at),
            {name: value for name, value in one.items() if name in NAMES},
            {name: value for name, value in one.items() if name not in property_names.RESERVED},
        )
        for at, one in enumerate(decoded)
    ]


pieces = st.lists(
    st.sampled_from([b"KEYS", b"TAGS", b"a", b"bc", b"", b"\x01", b"\x02", b"\0", b"12"]), max_size=9
)
odd = pieces.map(b"".join)
regular = st.lists(
    st.tuples(st.sampled_from([*NAMES, "own", "", "TW_TIMER_KEY"]), st.text("ab\0é", max_size=3)), max_size=4
).map(lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode())


@pytest.mark.parametrize("strings_min", [1, 2, 64])
@settings(max_examples=200)
@given(st.lists(st.lists(regular | odd, min_size=1, max_size=12), min_size=1, max_size=3))
def test_properties_are_what_the_codec_says(strings_min: int, batches: list[list[bytes]]) -> None:
    known = Shapes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "STRINGS_MIN", strings_min)
        for stored in batches:
            assert read(stored, known) == expected(stored)


def test_a_mark_where_the_example_has_a_value_is_another_shape() -> None:
    example = b"KEYS\x01order-number-1\x02TAGS\x01paid\x02"
    alike = b"KEYS\x01o\x02own\x01ber-1234\x02TAGS\x01paid\x02"
    assert len(alike) == len(example)
    stored = [example] * 100 + [alike] * 3 + [example] * 100
    assert read(stored) == expected(stored)


def test_names_of_one_length_are_told_apart() -> None:
    stored = [b"KEYS\x01order\x02TAGS\x01paid1\x02", b"TAGS\x01order\x02KEYS\x01paid1\x02"] * 100
    assert read(stored) == expected(stored)


def test_shapes_are_bounded() -> None:
    known = Shapes()
    for width in range(1, 700):
        stored = [b"KEYS\x01%s\x02" % (b"x" * width)] * shapes.STRINGS_MIN
        assert read(stored, known) == expected(stored)


@pytest.mark.parametrize(
    "example", [b"", b"KEYS", b"KEYS\x01a", b"KEYS\x01a\x01\x02", b"KEYS\x02", b"a\x01\0\x02"]
)
def test_what_is_not_regular_is_no_shape(example: bytes) -> None:
    assert Shape.of(b"t" + len(example).to_bytes(2, "big") + example, 1) is None
