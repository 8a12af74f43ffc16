"""Tests that recent half messages are kept until they are committed, and that their total size is limited."""

from __future__ import annotations

import pytest

from commitlog import limits
from commitlog.records.message import Message
from txn import half
from txn.recent_halves import RecentHalves, Sent


@pytest.mark.parametrize(
    "message",
    [
        Message(topic="t", body=b"x", message_id="M1"),
        Message(topic="t", body=b"x", message_id="M1", check_immunity_ms=1_500, gzip=True, born_ms=7),
        Message(topic="t", body=b"x", message_id="M1", tag="a", keys=("k", "l"), properties={"shop": "n"}),
    ],
)
def test_a_commit_is_the_same_of_the_message_as_of_its_half(message: Message) -> None:
    read = half.committed_record(half.half_record(message, 3, 7_000))
    assert half.commit_properties(message) == read.properties
    assert (read.topic, read.queue_id) == ("t", 3)


def test_a_half_is_remembered_until_it_ends_or_many_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECENT_HALVES_BYTES_MAX", 4_000)
    recent, message = RecentHalves(), Message(topic="t", body=b"x", message_id="M1")
    for number in range(3):
        recent.add(f"T{number}", Sent(number, message, 0, 200))
    assert recent.take("T0") is None
    assert recent.take("T2") == Sent(2, message, 0, 200)
    assert recent.take("T2") is None
    recent.add("T3", Sent(3, message, 0, 200))
    assert recent.take("T1") == Sent(1, message, 0, 200)
