"""Sentences of errors: ours around those of systems and libraries."""

from __future__ import annotations

import pytest

from tidewheel.errors import ConfigurationError


@pytest.mark.parametrize(
    ("detail", "told"),
    [
        ("--x is 'y': Write it as z.. Look.", "--x is 'y': Write it as z. Look."),
        ("It failed: it is 'a'..", "It failed: it is 'a'."),
        ("Wait ... and see...", "Wait ... and see..."),
        ("'../a' and a/.. and .. are folders.", "'../a' and a/.. and .. are folders."),
        ("Give FIRST..LAST.", "Give FIRST..LAST."),
    ],
)
def test_a_sentence_ends_with_one_stop(detail: str, told: str) -> None:
    error = ConfigurationError(detail)
    assert (str(error), error.detail) == (f"A setting cannot be used. {told}", told)
