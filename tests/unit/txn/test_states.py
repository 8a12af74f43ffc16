"""Tests the state transitions of transactions, the transaction IDs, and the check-back times."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog import limits
from commitlog.facts.facts import CheckBackSent, HalfEnded, HalfStored, facts_of
from commitlog.records import properties
from commitlog.records.message import Message
from commitlog.records.record import TYPE_COMMIT, TYPE_SYSTEM, Record
from tidewheel import property_names
from txn import half
from txn.checkback import CheckBackPolicy
from txn.errors import InvalidTransactionId
from txn.outcomes import OpenHalf, Outcomes
from txn.states import OUTCOMES, RESOLVING, Event, State, after


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)))
def test_the_first_end_wins_only_the_same_may_be_repeated_and_an_operator_ends_what_expired(
    state: State, event: Event
) -> None:
    is_open = state is State.OPEN or (state is State.EXPIRED and event in RESOLVING)
    expected = OUTCOMES[event] if is_open or state is OUTCOMES[event] else None
    assert after(state, event) is expected


@given(st.integers(0, 2**63 - 1), st.text(min_size=1))
def test_a_transaction_id_leads_back_to_its_half(offset: int, message_id: str) -> None:
    assert half.half_offset(half.transaction_id(offset, message_id), message_id) == offset


@pytest.mark.parametrize(
    "forged", ["", "x", "0" * 24, "-" + "0" * 23, " " * 24, half.transaction_id(5, "other")]
)
def test_an_id_that_we_did_not_write_is_refused(forged: str) -> None:
    with pytest.raises(InvalidTransactionId, match="was not given out by this store"):
        half.half_offset(forged, "mine")


def test_the_commit_is_the_message_and_names_its_half() -> None:
    sent = {"born_ms": 7, "born_host": ("10.1.2.3", 4_567), "gzip": True, "check_immunity_ms": 2_000}
    message = Message(topic="orders", body=b"paid", message_id="M1", tag="t", keys=("k",), transactional=True)
    message = replace(message, **sent)
    stored = half.half_record(message, 3, 7_000)
    stored.physical_offset = 4096
    committed = half.committed_record(stored)
    assert (committed.topic, committed.queue_id, committed.type) == ("orders", 3, TYPE_COMMIT)
    assert committed.half_offset == 4096
    assert properties.to_message(committed) == message
    assert properties.to_message(stored) == message


@pytest.mark.parametrize("keys", [("k",), ("R 0040's;$1",), ("a", "b c")])
@pytest.mark.parametrize("state", [State.ROLLED_BACK, State.EXPIRED])
def test_an_outcome_names_its_half_and_is_read_back(state: State, keys: tuple[str, ...]) -> None:
    stored = half.half_record(Message(topic="t", body=b"x", message_id="M1", keys=keys), 0, 7_000)
    stored.physical_offset = 77
    record = half.outcome_record(stored, state)
    assert (record.half_offset, record.type) == (77, TYPE_SYSTEM)
    (end,) = facts_of(record)
    assert isinstance(end, HalfEnded)
    assert half.state_after(end) is state
    assert properties.keys_of(properties.of_record(record)) == keys


def test_check_backs_pause_longer_each_time_up_to_a_limit() -> None:
    policy = CheckBackPolicy(immunity_ms=6, interval_ms=10, interval_ms_max=35, count_max=4)
    assert policy.first_check_ms(100, None) == 106
    assert policy.first_check_ms(100, 50) == 150
    assert [policy.next_check_ms(0, count) for count in (1, 2, 3, 99)] == [10, 20, 35, 35]
    assert [policy.is_exhausted(count) for count in (3, 4)] == [False, True]


def test_an_end_is_known_from_the_moment_it_is_appended() -> None:
    halves = Outcomes()
    assert halves.state(5) is None
    halves.open_half(5, OpenHalf(1_000, 7_000))
    assert halves.state(5) is State.OPEN
    halves.end(5, State.ROLLED_BACK, 2_000, 899)
    assert halves.state(5) is State.ROLLED_BACK
    ended = halves.ended(5)
    assert ended is not None
    assert ended.durable_at == 900


def test_ends_are_forgotten_oldest_first_when_their_records_are_published() -> None:
    halves = Outcomes()
    for offset in (1, 2, 3):
        halves.end(offset, State.COMMITTED, 0, offset * 10)
    for published_offset, known in ((9, [1, 2, 3]), (15, [2, 3]), (99, [3])):
        halves.forget(published_offset, 1)
        assert [offset for offset in (1, 2, 3) if halves.ended(offset)] == known


@pytest.mark.parametrize(("ended", "again"), list(product((State.COMMITTED, State.ROLLED_BACK), State)))
def test_a_half_that_has_ended_does_not_end_again(ended: State, again: State) -> None:
    halves = Outcomes()
    halves.end(5, ended, 0, 10)
    with pytest.raises(AssertionError, match="ends twice"):
        halves.end(5, again, 0, 20)


def check_ms_of(record: Record) -> int:
    (fact,) = facts_of(record)
    assert isinstance(fact, HalfStored | CheckBackSent)
    return half.check_ms_of(fact, record.store_ms)


def test_records_say_when_to_ask_next_and_older_ones_go_by_the_default_times() -> None:
    message = Message(topic="t", body=b"x", message_id="M1", check_immunity_ms=1_500)
    stored, asked = half.half_record(message, 0, 7_000), half.check_record(5, 2, 8_000)
    assert (check_ms_of(stored), check_ms_of(asked)) == (7_000, 8_000)
    assert property_names.CHECK_MS not in properties.decode(half.committed_record(stored).properties)
    assert property_names.CHECK_MS not in properties.decode(
        half.committed_timer_record(stored, "w").properties
    )
    assert check_ms_of(half.check_record(5, 2)) == 2 * limits.CHECK_INTERVAL_MS
    kept = {
        name: value for name, value in properties.decode(stored.properties).items() if name != "TW_CHECK_MS"
    }
    stored.store_ms, stored.properties = 100, properties.encode(kept)
    assert check_ms_of(stored) == 2_100
    del kept[property_names.CHECK_IMMUNITY_SECONDS]
    stored.properties = properties.encode(kept)
    assert check_ms_of(stored) == 100 + limits.CHECK_IMMUNITY_MS
