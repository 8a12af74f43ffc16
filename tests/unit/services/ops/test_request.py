"""What a caller is told of a query or a body that is wrong."""

from __future__ import annotations

import json

import pytest

from services.ops.request import Nothing, parse
from tidewheel.errors import ClientMistake


def test_a_long_name_is_cut_in_the_sentence_that_tells_of_it() -> None:
    with pytest.raises(ClientMistake) as refused:
        parse(Nothing, json.dumps({"a" * (1 << 20): 1}).encode())
    assert len(str(refused.value)) < 500
    assert "a... (1048576 characters) is nothing that is known here" in str(refused.value)


def test_a_short_name_is_told_whole() -> None:
    with pytest.raises(ClientMistake, match="tpoic is nothing that is known here"):
        parse(Nothing, b'{"tpoic": 1}')
