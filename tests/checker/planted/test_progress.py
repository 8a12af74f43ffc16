"""Waiting times are counted only within a calm, from the time at which progress was possible."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checker.progress import CLIENTS, DUE_MS, LATE_MS, Waiting


class Run:
    """The lines of a history, in sequence."""

    def __init__(self) -> None:
        self.waiting, self._calls = Waiting(), 0

    def send(self, name: str, at_ms: int, **fields: Any) -> None:
        """Add a send that is answered ok at once."""
        self._calls += 1
        head = {
            "type": "invoke",
            "call": self._calls,
            "verb": "send",
            "id": name,
            "topic": "t",
            "time_ms": at_ms,
        }
        self.waiting.take({"kind": "plain", "line": ""} | head | fields)
        self.waiting.take({"type": "ok", "call": self._calls, "time_ms": at_ms})

    def ack(self, name: str, at_ms: int) -> None:
        self._calls += 1
        self.waiting.take(
            {"type": "invoke", "call": self._calls, "verb": "ack", "id": name, "time_ms": at_ms}
        )

    def line(self, kind: str, at_ms: int, **fields: Any) -> None:
        self.waiting.take({"type": kind, "time_ms": at_ms} | fields)

    def calm(self, from_ms: int) -> None:
        self.line("calm", from_ms, is_calm=True)

    def is_late(self, kind: str, at_ms: int) -> bool:
        """End the calm; return whether a subject of a kind was late."""
        self.line("calm", at_ms, is_calm=False)
        return any(of == kind for of, _ in self.waiting.late)


def test_a_half_waits_from_the_time_of_its_check_back_on() -> None:
    run = Run()
    run.calm(0)
    run.send("h", 0, kind="half", asks=True)
    assert run.waiting.pending(DUE_MS + 5)["half", "h"] == 5
    assert not run.is_late("half", DUE_MS + LATE_MS)


def test_a_half_is_late_once_a_calm_has_lasted_long_enough() -> None:
    run = Run()
    run.send("h", 0, kind="half", asks=True)
    run.calm(500_000)
    assert run.waiting.pending(500_001)["half", "h"] == 1, "what passed in a fault counts for nothing"
    assert run.is_late("half", 500_000 + LATE_MS + 1)


@pytest.mark.parametrize("kind", ["asked", "invoke"])
def test_a_half_that_is_asked_about_or_ended_waits_no_more(kind: str) -> None:
    run = Run()
    run.calm(0)
    run.send("h", 0, kind="half", asks=True)
    run.line(kind, LATE_MS, id="h", verb="end", call=99)
    assert not run.is_late("half", 10 * LATE_MS)


def test_a_half_whose_question_comes_before_its_send_is_noted_does_not_wait() -> None:
    run = Run()
    run.line("asked", 1, id="h")
    run.calm(2)
    run.send("h", 3, kind="half", asks=True)
    assert not run.is_late("half", 10 * LATE_MS)


def test_a_half_that_was_sent_while_a_clock_was_off_is_due_by_that_clock() -> None:
    run = Run()
    run.send("h", 1_000, kind="half", asks=True)
    run.line("clock", 2_000, from_ms=500, until_ms=2_000, offset_ms=3_600_000, node="a")
    run.calm(2_000)
    assert not run.is_late("half", 10 * LATE_MS)


def test_a_message_group_waits_from_its_last_delivery_on_while_one_is_left() -> None:
    run = Run()
    run.calm(0)
    for at, name in enumerate(("g-1", "g-2")):
        run.send(name, at, kind="fifo", line="g")
    run.line("seen", 20_000, id="g-1", call=99)
    run.ack("g-1", 30_000)
    assert not run.waiting.late
    assert run.waiting.pending(40_000)["group", "t/g"] == 10_000
    assert run.is_late("group", 30_000 + LATE_MS + 1)


def test_a_message_group_of_which_all_was_tried_waits_for_nothing() -> None:
    run = Run()
    run.calm(0)
    run.send("g-1", 0, kind="fifo", line="g")
    run.ack("g-1", 1)
    run.ack("g-1", 2)
    assert not run.is_late("group", 10 * LATE_MS)


def test_that_no_send_is_told_ok_is_late() -> None:
    run = Run()
    run.calm(0)
    run.send("p", 10)
    assert run.is_late(CLIENTS, 10 + LATE_MS + 1)


def test_what_waits_outside_of_calms_is_not_late() -> None:
    run = Run()
    run.calm(0)
    run.send("g-1", 0, kind="fifo", line="g")
    assert not run.is_late("group", 1_000)
    run.calm(900_000)
    assert not run.is_late("group", 900_000 + LATE_MS)
    assert run.waiting.longest_ms["group"] == LATE_MS
    assert (run.waiting.calm_count, run.waiting.calm_ms) == (2, 1_000 + LATE_MS)


def test_what_a_push_consumer_got_is_done_even_before_its_send_is_noted() -> None:
    run = Run()
    run.calm(0)
    run.line("came", 1, id="g-1")
    run.send("g-1", 2, kind="fifo", line="g")
    run.send("g-2", 3, kind="fifo", line="g")
    run.line("came", 4, id="g-2")
    assert not run.is_late("group", 10 * LATE_MS)
