"""Who is called is cut off in silence, both ways or one way: calls come back.

A shared log goes on then. A call to a node that waits for its answer is given up though its deadline is far.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import NamedTuple

import grpc
import pytest

from services.cluster.forwarding.channel_pool import OPTIONS
from services.cluster.peers import connect_to
from sharedlog.engine import Head
from sharedlog.errors import EngineRefused, EngineUnavailable
from sharedlog.fold import Position
from sharedlog.postgres import PostgresLog
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY
from tests.endurance.hosts import TESTER, Hosts, running_hosts
from tests.postgresql import names_of_servers, running_servers

BEGIN = Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS))
SERVER = names_of_servers(0)[0]
CUTS = ("both ways", "to the server", "from the server")
PEER, DEADLINE_SECONDS = "peer", 120.0
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
        log.create_log(BEGIN)
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
        "trouble": place.log.check_settings,
    }
    cut_off(place.hosts, SERVER, cut)
    try:
        assert came_back(verbs[verb]) is EngineUnavailable
    finally:
        place.hosts.heal()
    assert head_again(place.log) in (head, following)


def head_again(log: PostgresLog) -> Head:
    """Return the head once it is told: the server may have given up the connection meanwhile."""
    with suppress(EngineUnavailable):
        return log.head()
    return log.head()


class Peer(NamedTuple):
    """A node that answers nobody, on a host of its own."""

    hosts: Hosts
    grpc_address: str
    http_url: str


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    script = str(Path(__file__).with_name("late_peer.py"))
    with running_hosts(PEER) as hosts:
        command = [*hosts.command(PEER), sys.executable, script, hosts.address(PEER)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as serving:
            assert serving.stdout is not None
            ports = serving.stdout.readline().split()
            calls, http = (f"{hosts.address(PEER)}:{port}" for port in ports)
            yield Peer(hosts, calls, f"http://{http}")
            serving.kill()


@pytest.mark.parametrize("cut", CUTS)
def test_a_forwarded_call_ends_so_that_it_is_asked_again(peer: Peer, cut: str) -> None:
    with grpc.insecure_channel(peer.grpc_address, options=OPTIONS) as channel:
        call = channel.unary_unary("/any/Call", None, None)
        asked = call.future(b"x", timeout=DEADLINE_SECONDS, wait_for_ready=True)
        grpc.channel_ready_future(channel).result(COMES_BACK_SECONDS)
        cut_off(peer.hosts, PEER, cut)
        try:
            with pytest.raises(grpc.RpcError) as ended:
                asked.result(COMES_BACK_SECONDS)
        finally:
            peer.hosts.heal()
    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("cut", CUTS)
def test_a_request_to_a_node_that_is_cut_off_ends(peer: Peer, cut: str) -> None:
    connection = connect_to(peer.http_url, "", DEADLINE_SECONDS)
    connection.request("POST", "/", b"x")
    cut_off(peer.hosts, PEER, cut)
    began = monotonic()
    try:
        with pytest.raises(TimeoutError):
            connection.getresponse()
        with pytest.raises(TimeoutError):
            connect_to(peer.http_url, "", DEADLINE_SECONDS)
    finally:
        peer.hosts.heal()
        connection.close()
    assert monotonic() < began + DEADLINE_SECONDS / 2, "no promise: less than the deadline"


def cut_off(hosts: Hosts, host: str, cut: str) -> None:
    """Cut a host off from the test."""
    if cut in ("both ways", "to the server"):
        hosts.cut(TESTER, host)
    if cut in ("both ways", "from the server"):
        hosts.cut(host, TESTER)


def came_back(call: Callable[[], object]) -> type[Exception] | None:
    """Return what a call has raised, None if nothing; fail if it does not come back."""
    raised: list[type[Exception] | None] = []

    def run() -> None:
        try:
            call()
        except (EngineUnavailable, EngineRefused) as error:
            raised.append(type(error))
        else:
            raised.append(None)

    calling = Thread(target=run, daemon=True)
    calling.start()
    calling.join(COMES_BACK_SECONDS)
    assert not calling.is_alive(), "the call hangs"
    return raised[0]
