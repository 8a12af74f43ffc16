"""How a message ends after its function has raised."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.client.endings import Backoff, Dead, Reject, Retried, Retry, end_after
from tidewheel.client.spans import span_ms
from tidewheel.errors import ClientMistake, ConfigurationError

SPANS = st.integers(0, 10**7).map(lambda count: f"{count}ms")


@given(SPANS, st.floats(1, 1e6), SPANS, st.integers(1, 10_000))
def test_pauses_grow_up_to_the_longest(first: str, factor: float, longest: str, attempt: int) -> None:
    backoff = Backoff(first, factor, longest)
    now_ms, next_ms = backoff.after_ms(attempt), backoff.after_ms(attempt + 1)
    assert 0 <= now_ms <= next_ms <= span_ms(longest, "longest")
    assert backoff.after_ms(1) == min(span_ms(first, "first"), span_ms(longest, "longest"))


def test_pauses_are_multiplied() -> None:
    backoff = Backoff("1s", 2, "10s", attempts=6)
    assert [backoff.after_ms(attempt) for attempt in range(1, 7)] == [
        1_000,
        2_000,
        4_000,
        8_000,
        10_000,
        10_000,
    ]


@pytest.mark.parametrize(
    ("error", "attempt", "end"),
    [
        (ValueError(), 1, Retried(1_000)),
        (ValueError(), 2, Retried(2_000)),
        (ValueError("no"), 3, Dead("attempt 3 of 3: ValueError: no")),
        (KeyError("k"), 1, Dead("KeyError: 'k'")),
        (Reject("no"), 1, Dead("no")),
        (Retry("5m"), 1, Retried(300_000)),
        (Retry("5m"), 9, Retried(300_000)),
        (Retry(), 1, Retried(1_000)),
        (Retry(), 3, Dead("attempt 3 of 3: Retry: the function wants the message again")),
    ],
)
def test_an_exception_decides_with_its_attempt(error: Exception, attempt: int, end: object) -> None:
    assert end_after(error, attempt, Backoff("1s", attempts=3), (LookupError,)) == end


def test_an_exception_without_a_text_decides_too() -> None:
    class Wordless(Reject):
        def __str__(self) -> str:
            raise ValueError("it has no text")

    assert end_after(Wordless(), 1, None, ()) == Dead("Wordless without a text")


def test_without_a_backoff_the_group_decides() -> None:
    for error in (ValueError(), Retry()):
        assert end_after(error, 99, None, ()) == Retried(None)


@pytest.mark.parametrize(
    "options",
    [
        {"factor": 0.5},
        {"factor": float("nan")},
        {"attempts": 0},
        {"first": 3},
        {"longest": "-1s"},
        {"longest": "12h1ms"},
    ],
)
def test_a_backoff_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises((ConfigurationError, ClientMistake)):
        Backoff(**{"first": "1s"} | options)


def test_the_longest_pause_may_have_what_a_pause_has_at_most() -> None:
    assert Backoff("12h", longest="12h").after_ms(1) == 12 * 3_600_000
