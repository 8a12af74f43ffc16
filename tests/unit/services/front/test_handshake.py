"""A handshake that fails is told from one that does not by the heads of its records, however they are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.front.handshake import BROKER, CLIENT, Handshake

HELLO, CHANGE, ALERT, DATA = 22, 20, 21, 23
Said = tuple[str, int, bytes]

CLIENT_HANGS_UP = "TLS: the client hangs up in the handshake"
BROKER_HANGS_UP = "TLS: the broker hangs up in the handshake"
HELLOS: list[Said] = [(CLIENT, HELLO, bytes(500)), (BROKER, HELLO, bytes(120)), (BROKER, CHANGE, b"\1")]
SEALED: list[Said] = [*HELLOS, (BROKER, DATA, bytes(900)), (CLIENT, CHANGE, b"\1")]
FINISHED: list[Said] = [*SEALED, (CLIENT, DATA, bytes(53))]
UNTIL_KEYS: list[Said] = [*HELLOS[:2], (BROKER, HELLO, bytes(900))]
OLDER: list[Said] = [*UNTIL_KEYS, (CLIENT, HELLO, bytes(70)), (CLIENT, CHANGE, b"\1")]


def record(kind: int, content: bytes) -> bytes:
    return bytes((kind, 3, 3)) + len(content).to_bytes(2) + content


def watched(said: list[Said], cut: int = 10_000) -> Handshake:
    """A handshake in which that was said, in pieces of so many bytes."""
    handshake = Handshake()
    for side, kind, content in said:
        whole = record(kind, content)
        for place in range(0, len(whole), cut):
            handshake.said(side, whole[place : place + cut])
    return handshake


@pytest.mark.parametrize(
    "said",
    [
        pytest.param([*FINISHED, (BROKER, DATA, bytes(250))], id="1.3"),
        pytest.param([*OLDER, (CLIENT, HELLO, bytes(40)), (BROKER, CHANGE, b"\1")], id="1.2"),
        pytest.param([*OLDER, (CLIENT, HELLO, bytes(40)), (CLIENT, ALERT, bytes(26))], id="and good-bye"),
    ],
)
@given(cut=st.integers(1, 700))
def test_what_is_finished_has_not_failed_whoever_hangs_up(said: list[Said], cut: int) -> None:
    handshake = watched(said, cut)
    assert not handshake.is_going_on
    handshake.hung_up(BROKER)
    assert handshake.failure == ""


@pytest.mark.parametrize(
    ("said", "failure"),
    [
        ([*HELLOS[:1], (BROKER, ALERT, b"\2\x46")], "TLS: the broker says protocol version"),
        ([*UNTIL_KEYS, (CLIENT, ALERT, b"\2\x2d")], "TLS: the client says certificate expired"),
        ([*HELLOS[:1], (BROKER, ALERT, b"\2\xff")], "TLS: the broker says an unknown alert"),
        ([*SEALED, (CLIENT, DATA, bytes(19))], CLIENT_HANGS_UP),
    ],
)
@given(cut=st.integers(1, 700))
def test_an_alert_ends_it(said: list[Said], failure: str, cut: int) -> None:
    handshake = watched(said, cut)
    handshake.hung_up(BROKER)
    assert (handshake.is_going_on, handshake.failure) == (False, failure)


@pytest.mark.parametrize(
    ("said", "side", "failure"),
    [
        (HELLOS[:1], CLIENT, CLIENT_HANGS_UP),
        (SEALED, CLIENT, CLIENT_HANGS_UP),
        (SEALED, BROKER, BROKER_HANGS_UP),
        (FINISHED, BROKER, BROKER_HANGS_UP),
        (FINISHED, CLIENT, ""),
    ],
)
def test_who_hangs_up_first_has_ended_it(said: list[Said], side: str, failure: str) -> None:
    handshake = watched(said)
    assert handshake.is_going_on
    handshake.hung_up(side)
    handshake.hung_up(BROKER)
    assert handshake.failure == failure


@given(st.lists(st.tuples(st.sampled_from([CLIENT, BROKER]), st.binary(max_size=40))))
def test_whatever_is_said_is_no_bug(said: list[tuple[str, bytes]]) -> None:
    handshake = Handshake()
    for side, data in said:
        handshake.said(side, data)
