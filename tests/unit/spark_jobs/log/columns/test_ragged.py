"""Ranges compared where they lie, and columns with nulls between values: as slices of bytes say."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.log.columns.ragged import Ranges, ragged, spread

few = st.binary(max_size=6).map(lambda text: bytes(byte % 3 for byte in text))
values = st.lists(st.none() | few, min_size=1, max_size=12)


@given(values, st.integers(-1, 7), few)
def test_bytes_at_a_place(stored: list[bytes | None], place: int, wanted: bytes) -> None:
    found = Ranges.of(pa.array(stored, pa.binary())).have_at(place, wanted)
    expected = [bool(wanted) and place >= 0 and (one or b"")[place:].startswith(wanted) for one in stored]
    assert found.tolist() == expected


@given(values, st.data())
def test_bytes_of_others_at_their_places(stored: list[bytes | None], data: st.DataObject) -> None:
    count = len(stored)
    others = data.draw(st.lists(st.none() | few, min_size=count, max_size=count))
    places = data.draw(st.lists(st.integers(0, 7), min_size=count, max_size=count))
    ranges = Ranges.of(pa.array([None, *stored], pa.binary())[1:])
    found = ranges.equal_at(np.array(places), Ranges.of(pa.array(others, pa.binary())))
    expected = [
        bool(other) and (one or b"")[place:].startswith(other or b"")
        for one, other, place in zip(stored, others, places, strict=True)
    ]
    assert found.tolist() == expected


@given(values)
def test_values_with_nulls_between_them(stored: list[bytes | None]) -> None:
    places = np.array([at for at, one in enumerate(stored) if one is not None], np.int64)
    some = [one for one in stored if one is not None]
    data = np.frombuffer(b"".join(some) + b"end", np.uint8)
    lengths = np.array([len(one) for one in some], np.int64)
    column = spread(ragged(data, np.cumsum(lengths) - lengths, lengths), places, len(stored))
    column.validate(full=True)
    assert column.to_pylist() == stored
