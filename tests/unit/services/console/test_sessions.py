"""Sessions and links: once, for so long, so many."""

from __future__ import annotations

from services.console import sessions
from services.console.sessions import Session, Sessions


class Clock:
    """Seconds, as told."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_link_is_void_after_its_use_and_after_its_time() -> None:
    clock = Clock()
    open_sessions = Sessions(clock)
    key = open_sessions.new_link("token")
    name = open_sessions.enter(key)
    assert name is not None
    found = open_sessions.find(name)
    assert found is not None
    assert found.token == "token"
    assert open_sessions.enter(key) is None
    late = open_sessions.new_link()
    clock.now_s += sessions.LINK_SECONDS
    assert open_sessions.enter(late) is None
    assert open_sessions.enter("") is None
    assert open_sessions.enter("\ud800") is None


def test_a_session_ends_when_it_is_closed_or_left_alone() -> None:
    clock = Clock()
    open_sessions = Sessions(clock)
    closed, left = open_sessions.open(Session("")), open_sessions.open(Session(""))
    open_sessions.close(closed)
    assert open_sessions.find(closed) is None
    clock.now_s += sessions.IDLE_SECONDS - 1
    assert open_sessions.find(left)
    clock.now_s += sessions.IDLE_SECONDS - 1
    assert open_sessions.find(left)
    clock.now_s += sessions.IDLE_SECONDS + 1
    assert open_sessions.find(left) is None


def test_a_look_that_is_no_use_does_not_keep_a_session_open() -> None:
    clock = Clock()
    open_sessions = Sessions(clock)
    name = open_sessions.open(Session(""))
    clock.now_s += sessions.IDLE_SECONDS - 1
    assert open_sessions.find(name, is_use=False)
    clock.now_s += 2
    assert open_sessions.find(name, is_use=False) is None


def test_one_session_too_many_ends_the_one_unused_for_longest() -> None:
    clock = Clock()
    open_sessions = Sessions(clock)
    names = []
    for _ in range(sessions.SESSIONS_MAX):
        clock.now_s += 1
        names.append(open_sessions.open(Session("")))
    assert open_sessions.find(names[0])
    open_sessions.open(Session(""))
    assert open_sessions.find(names[0])
    assert open_sessions.find(names[1]) is None


def test_a_note_is_taken_once() -> None:
    session = Session("", note="CANCELLED")
    assert session.take_note() == "CANCELLED"
    assert session.take_note() == ""
