"""The judge of histories finds what breaks a promise, and nothing in a history that keeps them all."""

from __future__ import annotations

from tests.endurance.histories import Delivered, History, Outcome, Sent


def line_of(count: int) -> History:
    """A message group of which each was tried 0.5 s after it was seen, and seen one second after another."""
    history = History()
    for number in range(1, count + 1):
        message_id = f"line-{number}"
        history.sends(Sent(message_id, "lines", Outcome.OK, group="line", number=number))
        history.delivered.append(Delivered(message_id, ("lines", 0, number), number - 0.5, number, 0))
        history.tried_s[message_id] = number + 0.5
        history.acknowledged_s[message_id] = number + 0.6
    return history


def test_a_message_group_in_order_breaks_nothing() -> None:
    assert line_of(5).violations() == []


def test_one_that_comes_again_behind_a_later_one_is_found() -> None:
    history = line_of(5)
    history.delivered.append(Delivered("line-2", ("lines", 0, 2), 7.0, 8.0, 0))
    assert any(one == "order: line-2 behind line-5" for one in history.violations())


def test_one_that_comes_before_an_earlier_one_was_tried_is_found_and_so_are_those_behind_it() -> None:
    history = line_of(5)
    history.tried_s["line-2"] = 4.2
    assert [one for one in history.violations() if one.startswith("order")] == [
        "order: line-3 before line-2 was acknowledged",
        "order: line-4 before line-2 was acknowledged",
    ]


def test_the_number_of_the_newest_message_of_a_group_is_known() -> None:
    history = line_of(5)
    assert (history.last_numbers["line"], history.last_numbers["other"]) == (5, 0)


def test_a_place_that_a_client_does_not_tell_is_no_second_place() -> None:
    """A push consumer does not tell places; what it has not acknowledged comes again to another consumer."""
    history = History()
    history.sends(Sent("M", "official", Outcome.OK))
    for place in (("official", -1, -1), ("official", 2, 5)):
        history.delivered.append(Delivered("M", place, 1.0, 2.0, 0))
    assert history.violations() == []
    history.delivered.append(Delivered("M", ("official", 2, 6), 1.0, 2.0, 0))
    assert [one.split(" at ")[0] for one in history.violations()] == ["twice: M"]
