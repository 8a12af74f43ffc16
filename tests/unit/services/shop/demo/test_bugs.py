"""Bugs: who is armed for what, what the truth is, and how the audit's answer is compared with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from services.shop.demo import bugs
from services.shop.faults import FAULTS_VARIABLE, Fault, Faults, write_down
from tidewheel.errors import UnknownChoice

if TYPE_CHECKING:
    from pathlib import Path


def test_all_and_some_cases_are_chosen_in_their_order() -> None:
    assert bugs.chosen(()) == ()
    assert bugs.chosen(("all",)) == tuple(bugs.ARMED)
    assert bugs.chosen(("fired-late", "effect-twice", "fired-late")) == ("effect-twice", "fired-late")


def test_a_case_that_cannot_be_made_is_refused() -> None:
    with pytest.raises(UnknownChoice, match="--bugs fire: choose from all, order-without-message"):
        bugs.chosen(("fire",))


def test_every_case_has_a_line_of_the_log_that_tells_it() -> None:
    assert set(bugs.TELLING.values()) == set(bugs.ARMED)


def test_services_can_read_what_they_are_armed_with() -> None:
    faults = Faults.from_environment({FAULTS_VARIABLE: bugs.armed(bugs.ARMED, "orders")})
    assert faults.strikes(Fault.ROW_WITHOUT_MESSAGE, "order-without-message-1")
    assert not faults.strikes(Fault.ROW_WITHOUT_MESSAGE, "effect-twice-1")
    assert bugs.armed(["fired-late"], "orders") == ""


def finding(case: str, subject: str) -> dict[str, Any]:
    return {"case": case, "subject": "order", "subject_id": subject}


def test_the_truth_is_what_was_done_to_subjects_of_the_run(tmp_path: Path) -> None:
    log = tmp_path / "faults.jsonl"
    assert bugs.truth(log) == set()
    for fault, subject in (
        (Fault.POISON, "dead-lettered-1"),
        (Fault.POISON, "dead-lettered-1"),
        (Fault.DIE_AFTER_HALVES, "600001"),
        (Fault.KEEP_DEADLINE, "paid-but-timed-out-1"),
        (bugs.BROKER_AWAY, "fired-late-2"),
    ):
        write_down(log, fault, subject)
    assert bugs.truth(log) == {("dead-lettered", "dead-lettered-1"), ("fired-late", "fired-late-2")}


def test_the_answer_is_compared_subject_by_subject() -> None:
    expected = {("fired-late", "a"), ("fired-late", "b"), ("effect-twice", "c")}
    audited = {"findings": [finding("fired-late", "a"), finding("cart-not-cleared", "c")]}
    assert bugs.compared(expected, bugs.found(audited)) == {
        "effect-twice": {"expected": ["c"], "missed": ["c"], "surplus": []},
        "cart-not-cleared": {"expected": [], "missed": [], "surplus": ["c"]},
        "fired-late": {"expected": ["a", "b"], "missed": ["b"], "surplus": []},
    }
