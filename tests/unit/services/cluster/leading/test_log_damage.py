"""What a leader does about a record that another node cannot read."""

from __future__ import annotations

from services.cluster.leading.log_damage import LogDamage, LogState, UnreadableReport
from sharedlog.holdings import Holding, Unreadable

SAID = {"b": Unreadable(7, 700, "Record 7 is missing.")}
FAULT = "Record 7 is missing: the log has records 0 to 9."
BEHIND = {"a": Holding(9, 900), "b": Holding(3, 300)}


def found(fault: str) -> LogDamage:
    damage = LogDamage("a")
    (word,) = damage.unchecked_reports(SAID)
    assert word == UnreadableReport("b", SAID["b"])
    damage.record_check(word, fault, 1_000)
    return damage


def test_a_node_with_a_bad_disk_holds_nobody() -> None:
    damage = found("")
    assert damage.update_state(SAID, BEHIND, {"b": 700}) is LogState.WHOLE
    assert damage.sentences() == []
    assert damage.unchecked_reports(SAID) == []
    other = Unreadable(8, 800, "")
    assert damage.unchecked_reports({"b": other}) == [UnreadableReport("b", other)]


def test_answers_are_held_until_another_node_has_what_follows() -> None:
    damage = found(FAULT)
    assert damage.update_state(SAID, BEHIND, {"b": 700}) is LogState.HELD
    assert damage.update_state(SAID, BEHIND | {"a": Holding(90, 9_000)}, {}) is LogState.HELD, (
        "its own copy is no other"
    )
    assert damage.sentences() == [
        f"the shared log is damaged: {FAULT} Nothing is acknowledged until another node has a copy of what "
        "follows."
    ]
    assert damage.update_state(SAID, BEHIND | {"c": Holding(8)}, {}) is LogState.HELD, "a node without a copy"
    assert damage.update_state(SAID, BEHIND | {"c": Holding(8, 800)}, {}) is LogState.COPIED
    assert "Another node has what follows" in damage.sentences()[0]
    assert damage.update_state(SAID, BEHIND, {"c": 1_000}) is LogState.COPIED
    assert damage.update_state({}, BEHIND | {"b": Holding(8, 800)}, {}) is LogState.WHOLE
    assert damage.sentences() == []


def test_what_this_node_said_of_itself_before_it_led_is_no_word() -> None:
    damage = LogDamage("b")
    assert damage.unchecked_reports(SAID) == []
    assert damage.update_state(SAID, BEHIND, {}) is LogState.WHOLE


def test_a_word_that_was_forgotten_is_looked_into_when_it_is_said_again() -> None:
    damage = found(FAULT)
    assert damage.update_state(SAID, BEHIND, {}) is LogState.HELD
    assert damage.update_state({}, {"a": BEHIND["a"]}, {}) is LogState.WHOLE
    assert damage.unchecked_reports(SAID) == [UnreadableReport("b", SAID["b"])]


def test_the_node_that_cannot_read_on_is_no_copy_however_far_it_has_read() -> None:
    assert found(FAULT).update_state(SAID, BEHIND, {"b": 1_000}) is LogState.HELD
