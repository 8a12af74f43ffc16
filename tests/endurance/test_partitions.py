"""A shared log whose server is cut off in silence, both ways or one way: calls come back, and then go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Thread
from typing import NamedTuple

import pytest

from sharedlog.engine import Head
from sharedlog.errors import Refused, Unknown
from sharedlog.fold import Position
from sharedlog.postgres import PostgresLog
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY
from tests.endurance.hosts import TESTER, Hosts, running_hosts
from tests.postgresql import names_of_servers, running_servers

BEGIN = Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS))
SERVER = names_of_servers(0)[0]
CUTS = {
    "both ways": ((TESTER, SERVER), (SERVER, TESTER)),
    "to the server": ((TESTER, SERVER),),
    "from the server": ((SERVER, TESTER),),
}
COMES_BACK_SECONDS = 30.0
"""No promise: TCP alone gives up after a quarter of an hour, or never."""


class Place(NamedTuple):
    """A server on a host, and a log in it."""

    hosts: Hosts
    log: PostgresLog


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with running_hosts(SERVER) as hosts, running_servers(hosts=hosts) as servers:
        log = PostgresLog(servers.url)
        log.found(BEGIN)
        yield Place(hosts, log)
        log.close()


def at(end: int) -> Head:
    return Head(1, b"m" * 16, Position(end, end))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("verb", ["append", "read", "trouble"])
def test_a_call_over_a_connection_that_is_cut_comes_back(place: Place, cut: str, verb: str) -> None:
    head = place.log.head()
    following = at(head.position.end + 1)
    verbs: dict[str, Callable[[], object]] = {
        "append": lambda: place.log.append_if(head, [b"x"], following),
        "read": lambda: place.log.read(0, 1_000),
        "trouble": place.log.trouble,
    }
    for sender, receiver in CUTS[cut]:
        place.hosts.cut(sender, receiver)
    try:
        assert came_back(verbs[verb]) is Unknown
    finally:
        place.hosts.heal()
    assert place.log.head() in (head, following)


def came_back(call: Callable[[], object]) -> type[Exception] | None:
    """Return what a call has raised, None if nothing; fail if it does not come back."""
    raised: list[type[Exception] | None] = []

    def run() -> None:
        try:
            call()
        except (Unknown, Refused) as error:
            raised.append(type(error))
        else:
            raised.append(None)

    calling = Thread(target=run, daemon=True)
    calling.start()
    calling.join(COMES_BACK_SECONDS)
    assert not calling.is_alive(), "the call hangs"
    return raised[0]
