"""Messages that are sent again."""

from __future__ import annotations

from services.console.pages.topics import kept_properties


def test_timers_of_a_message_are_not_set_again() -> None:
    found = {"TW_TIMER_KEY": "k", "TW_TIMER_VERDICT": "v", "a": "b"}
    assert kept_properties({"properties": found}) == {"a": "b"}
