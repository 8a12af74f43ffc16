"""Clients that need it are made to redial until they have a stream; clients that went are forgotten."""

from __future__ import annotations

import pytest

from commitlog import limits
from services.rpc.clients.session import DESCRIBED_BYTES_MAX, Session
from services.rpc.clients.sessions import FORGET_AFTER_MS, PRESENT_MS, REDIAL_AFTER_MS, Sessions
from services.rpc.generated.definition_pb2 import Address, Endpoints, Settings
from services.rpc.generated.service_pb2 import TelemetryCommand
from services.rpc.wire.caller import Caller
from services.rpc.wire.errors import TooManyClients

PYTHON = Caller("python-client", language="PYTHON")


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


def test_a_client_without_a_stream_redials_at_a_later_refresh_of_its_routes() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    turns = []
    for _ in range(3):
        turns += [sessions.redials(PYTHON), sessions.redials(PYTHON)]
        clock.now_ms += REDIAL_AFTER_MS
    assert turns == [0, 0, 1, 1, 2, 2]


def test_a_client_that_called_before_it_asked_for_routes_gets_the_boots_own_spelling() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    sessions.seen(PYTHON)
    clock.now_ms += 2 * REDIAL_AFTER_MS
    assert sessions.redials(PYTHON) == 0


def test_a_client_with_a_stream_is_left_in_peace_until_it_has_lost_it() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    stream = sessions.open_stream(PYTHON)
    for _ in range(3):
        clock.now_ms += REDIAL_AFTER_MS
        assert sessions.redials(PYTHON) == 0
    sessions.close_stream(stream)
    assert sessions.redials(PYTHON) == 1, "its routes are refreshed each 30 s only"
    clock.now_ms += REDIAL_AFTER_MS - 1
    assert sessions.redials(PYTHON) == 1, "the topics of one refresh agree"


def test_a_client_that_was_given_up_as_absent_redials_when_it_is_back() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    sessions.redials(PYTHON)
    sessions.close_stream(sessions.open_stream(PYTHON))
    clock.now_ms += REDIAL_AFTER_MS
    sessions.gone(PYTHON.client_id)
    assert sessions.redials(PYTHON) == 1


@pytest.mark.parametrize("language", ["JAVA", "GO", "CPP", "HTTP", ""])
def test_a_library_that_opens_its_stream_again_by_itself_is_never_made_to_redial(language: str) -> None:
    clock = Clock()
    sessions = Sessions(clock)
    caller = Caller("client", language=language)
    for _ in range(3):
        assert sessions.redials(caller) is None
        sessions.close_stream(sessions.open_stream(caller))
        clock.now_ms += REDIAL_AFTER_MS


def test_a_client_that_asks_for_routes_after_its_goodbye_is_told_what_it_knows() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    sessions.redials(PYTHON)
    clock.now_ms += REDIAL_AFTER_MS
    assert sessions.redials(PYTHON) == 1
    stream = sessions.open_stream(PYTHON)
    clock.now_ms += 3 * REDIAL_AFTER_MS
    sessions.gone(PYTHON.client_id, said_goodbye=True)
    assert sessions.redials(PYTHON) == 1
    sessions.close_stream(stream)
    clock.now_ms += REDIAL_AFTER_MS - 1
    assert sessions.redials(PYTHON) == 1
    clock.now_ms += 1
    assert sessions.redials(PYTHON) == 2, "it was no goodbye for good"


def test_no_more_is_remembered_of_those_that_left_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.rpc.clients.sessions.DEPARTED_MAX", 2)
    clock = Clock()
    sessions = Sessions(clock)
    crowd = [Caller(name, language="PYTHON") for name in ("first", "second", "third")]
    for _ in range(2):
        for caller in crowd:
            sessions.redials(caller)
        clock.now_ms += REDIAL_AFTER_MS
    for caller in crowd:
        sessions.gone(caller.client_id, said_goodbye=True)
    assert [sessions.redials(caller) for caller in crowd] == [0, 1, 1]


def test_a_client_that_is_silent_is_forgotten_but_not_one_with_a_stream() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    sessions.seen(Caller("silent"))
    sessions.open_stream(Caller("listening"))
    clock.now_ms += FORGET_AFTER_MS
    sessions.seen(Caller("new"))
    assert {session.client_id for session in sessions} == {"listening", "new"}


def test_a_client_is_present_while_it_listens_or_was_heard_from_just_now() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    sessions.seen(Caller("silent"))
    sessions.open_stream(Caller("listening"))
    clock.now_ms += PRESENT_MS
    sessions.seen(Caller("new"))
    assert set(sessions.present()) == {"listening", "new"}


def test_what_a_client_says_of_itself_is_kept_unless_it_is_too_much() -> None:
    session = Session("c", "JAVA", "5.2.0", 0)
    command = TelemetryCommand(settings=Settings(client_type="PRODUCER"))
    session.describe(command.settings)
    assert session.described == command.settings
    command.settings.user_agent.hostname = "x" * DESCRIBED_BYTES_MAX
    session.describe(command.settings)
    assert session.described is None


def test_no_more_clients_are_kept_than_may_be_until_some_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "CLIENTS_MAX", 3)
    clock = Clock()
    sessions = Sessions(clock)
    streams = [sessions.open_stream(Caller(name)) for name in ("first", "second", "third")]
    with pytest.raises(TooManyClients, match="the broker has 3 clients"):
        sessions.seen(Caller("fourth"))
    for stream in streams:
        sessions.close_stream(stream)
    clock.now_ms += FORGET_AFTER_MS
    sessions.seen(Caller("fourth"))
    assert [session.client_id for session in sessions] == ["fourth"]


def test_a_client_with_a_stream_keeps_the_address_for_which_it_opened_the_stream() -> None:
    sessions = Sessions(Clock())
    own = Endpoints(addresses=[Address(host="10.0.0.%37", port=8081)])
    assert sessions.dialled(PYTHON) is None
    stream = sessions.open_stream(PYTHON)
    assert sessions.dialled(PYTHON) is None, "it has not said yet for which"
    stream.session.describe(Settings(access_point=own))
    assert sessions.dialled(PYTHON) == own
    sessions.close_stream(stream)
    assert sessions.dialled(PYTHON) is None
