"""Producers are remembered while they are there, and nobody fills the memory with lines of them."""

from __future__ import annotations

import pytest

from commitlog.limits import ENTRIES_PER_REQUEST_MAX
from services.rpc.clients.producers import CHECKED_PLACES_MIN, Producers
from services.rpc.clients.session import Session
from services.rpc.clients.sessions import Sessions
from services.rpc.generated.definition_pb2 import Resource, Settings
from services.rpc.wire.caller import Caller
from tidewheel.errors import ClientMistake


@pytest.fixture
def sessions() -> Sessions:
    return Sessions(lambda: 1_000_000)


def test_those_who_are_gone_are_forgotten_as_others_come(sessions: Sessions) -> None:
    producers = Producers(sessions)
    sessions.seen(Caller("stays"))
    producers.add("orders", "stays", "")
    for number in range(2 * CHECKED_PLACES_MIN):
        producers.add("orders", f"gone-{number}", "")
    assert len(producers.views("orders")) <= CHECKED_PLACES_MIN
    assert producers.views()[0].client_id == "stays"


def test_a_client_that_declares_topics_without_end_gets_so_many_places(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.rpc.clients.producers.PLACES_MAX", 10)
    producers = Producers(sessions)
    sessions.seen(Caller("hostile"))
    for number in range(3 * CHECKED_PLACES_MIN):
        producers.add(f"topic-{number}", "hostile", "")
    assert len(producers.views()) == 10
    sessions.gone("hostile")
    sessions.seen(Caller("other"))
    for number in range(2 * CHECKED_PLACES_MIN):
        producers.add("orders", "other" if number else "another", "")
        producers.add(f"topic-{number}", "nobody", "")
    assert "other" in {view.client_id for view in producers.views("orders")}


def test_one_address_leaves_places_to_producers_of_others(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.rpc.clients.producers.PLACES_MAX", 40)
    monkeypatch.setattr("services.rpc.clients.producers.PLACES_PER_ADDRESS_MAX", 20)
    monkeypatch.setattr("services.rpc.clients.producers.PLACES_PER_CLIENT_MAX", 8)
    producers = Producers(sessions)
    for number in range(10):
        sessions.seen(Caller(f"hostile-{number}", host="h"))
        for topic in range(10):
            producers.add(f"topic-{topic}", f"hostile-{number}", "")
    assert len(producers.views()) == 20
    sessions.seen(Caller("other", host="elsewhere"))
    producers.add("orders", "other", "")
    assert [one.client_id for one in producers.views("orders")] == ["other"]


def test_a_client_gives_up_its_oldest_topic_for_one_beyond_its_places(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.rpc.clients.producers.PLACES_PER_CLIENT_MAX", 2)
    producers = Producers(sessions)
    sessions.seen(Caller("c"))
    for topic in ("a", "b", "c"):
        producers.add(topic, "c", "")
    assert [one.topic for one in producers.views()] == ["b", "c"]
    sessions.gone("c")
    for number in range(CHECKED_PLACES_MIN + 1):
        producers.add("b", f"new-{number}", "")
    assert "c" not in producers._of_client


def test_settings_that_name_topics_without_end_are_refused() -> None:
    session = Session("c", "JAVA", "5.2.0", 0)
    settings = Settings(client_type="PRODUCER")
    settings.publishing.topics.extend(
        Resource(name=f"t{number}") for number in range(ENTRIES_PER_REQUEST_MAX + 1)
    )
    with pytest.raises(ClientMistake, match="1025 topics"):
        session.describe(settings)
