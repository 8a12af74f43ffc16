"""Producers are remembered while they are there, and nobody fills the memory with lines of them."""

from __future__ import annotations

import pytest

from services.rpc.caller import Caller
from services.rpc.producers import LOOK_EACH_MIN, Producers
from services.rpc.sessions import Sessions


@pytest.fixture
def sessions() -> Sessions:
    return Sessions(lambda: 1_000_000)


def test_those_who_are_gone_are_forgotten_as_others_come(sessions: Sessions) -> None:
    producers = Producers(sessions)
    sessions.seen(Caller("stays"))
    producers.add("orders", "stays", "")
    for number in range(2 * LOOK_EACH_MIN):
        producers.add("orders", f"gone-{number}", "")
    assert len(producers.views("orders")) <= LOOK_EACH_MIN
    assert producers.views()[0].client_id == "stays"


def test_a_client_that_declares_topics_without_end_gets_so_many_places(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.rpc.producers.PLACES_MAX", 10)
    producers = Producers(sessions)
    sessions.seen(Caller("hostile"))
    for number in range(3 * LOOK_EACH_MIN):
        producers.add(f"topic-{number}", "hostile", "")
    assert len(producers.views()) == 10
    sessions.gone("hostile")
    sessions.seen(Caller("other"))
    for number in range(2 * LOOK_EACH_MIN):
        producers.add("orders", "other" if number else "another", "")
        producers.add(f"topic-{number}", "nobody", "")
    assert "other" in {view.client_id for view in producers.views("orders")}
