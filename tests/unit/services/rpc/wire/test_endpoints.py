"""Every start of a store is another endpoint set to its clients, on the same socket."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address
from itertools import product
from urllib.parse import unquote

import grpc
import pytest

from services.rpc.generated.definition_pb2 import Address, AddressScheme, Endpoints
from services.rpc.wire.endpoints import Advertised


def dialled(*addresses: tuple[str, int]) -> Endpoints:
    return Endpoints(
        scheme=AddressScheme.IPv4, addresses=[Address(host=host, port=port) for host, port in addresses]
    )


def facade(endpoints: Endpoints) -> str:
    """Return what the Python client compares: the scheme and the sorted addresses."""
    addresses = sorted(f"{address.host}:{address.port}" for address in endpoints.addresses)
    return f"{endpoints.scheme} {','.join(addresses)}"


@pytest.mark.parametrize(
    "asked",
    [
        dialled(("127.0.0.1", 8081)),
        dialled(("localhost", 8081)),
        dialled(("::1", 8081)),
        dialled(("10.0.0.1", 8081), ("10.0.0.2", 8081)),
        dialled(),
    ],
    ids=["ipv4", "name", "ipv6", "several", "nothing"],
)
def test_the_next_boot_and_the_next_turn_are_new_to_the_client(asked: Endpoints) -> None:
    first, next_boot = (Advertised("127.0.0.1", 8081, boot) for boot in (6, 7))
    told = facade(first.endpoints(asked, redials=0))
    assert told != facade(next_boot.endpoints(asked, redials=0))
    assert told != facade(first.endpoints(asked, redials=1))
    assert told == facade(next_boot.endpoints(asked, redials=1))


@pytest.mark.parametrize(
    "asked",
    [
        dialled(("127.0.0.1", 8081)),
        dialled(("node-a", 8081)),
        dialled(("10.0.0.1", 8081), ("10.0.0.2", 8081)),
    ],
    ids=["ipv4", "name", "several"],
)
def test_no_boot_repeats_what_the_python_client_was_told_by_one_of_the_last(asked: Endpoints) -> None:
    """A client asks for routes each 30 s only, so it may miss boots, and each boot may make it redial."""
    boots = range(100, 103)
    told = [
        facade(Advertised("h", 8081, boot).endpoints(asked, redials, decodes_percent=True))
        for boot in boots
        for redials in range(3)
    ]
    assert len(set(told)) == len(told)
    hosts = [[unquote(one.partition(":")[0]) for one in text[2:].split(",")] for text in told]
    assert all(sorted(one) == [address.host for address in asked.addresses] for one in hosts)


def test_who_has_a_stream_is_told_the_address_for_which_it_has_opened_the_stream() -> None:
    asked = dialled(("10.0.0.1", 8081), ("10.0.0.2", 8081))
    before, now = (Advertised("h", 8081, boot) for boot in (3, 4))
    known = before.endpoints(asked, 0, decodes_percent=True)
    assert now.endpoints(asked, 0, decodes_percent=True) != known
    assert now.endpoints(asked, 0, decodes_percent=True, known=known) == known
    other = dialled(("10.0.0.9", 8081))
    assert now.endpoints(asked, 0, decodes_percent=True, known=other) != other


@pytest.mark.parametrize("hosts", [("10.0.0.1", "10.0.0.20"), ("::1", "2001:db8::2")])
def test_each_spelling_of_several_addresses_names_them_all(hosts: tuple[str, str]) -> None:
    asked = dialled(*((host, 8081) for host in hosts))
    for boot in (6, 7):
        told = Advertised("10.0.0.9", 8081, boot).endpoints(asked, redials=0)
        assert [ip_address(unquote(one.host)) for one in told.addresses] == [ip_address(one) for one in hosts]


def test_what_the_python_client_is_told_of_a_node_that_lives_reaches_it_in_both_spellings() -> None:
    asyncio.run(reached_in_both_spellings())


async def reached_in_both_spellings() -> None:
    server = grpc.aio.server()
    lives = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        gone = closed.getsockname()[1]
    try:
        for boot, order in product((6, 7, 30), ((gone, lives), (lives, gone))):
            asked = dialled(*(("127.0.0.1", number) for number in order))
            node = Advertised("127.0.0.1", lives, boot)
            told = facade(node.endpoints(asked, redials=0, decodes_percent=True)).partition(" ")[2]
            async with grpc.aio.insecure_channel(f"ipv4:{told}") as channel:
                with pytest.raises(grpc.aio.AioRpcError) as answered:
                    await channel.unary_unary("/no/such")(b"", timeout=10)
            assert answered.value.code() == grpc.StatusCode.UNIMPLEMENTED, told
    finally:
        await server.stop(None)


def test_a_client_that_redials_by_itself_is_told_the_same_by_every_boot() -> None:
    asked = dialled(("192.168.1.5", 17881))
    for boot in (6, 7):
        assert facade(Advertised("10.0.0.1", 8081, boot).endpoints(asked, None)) == "1 192.168.1.5:17881"


def test_a_client_is_told_what_it_dialled_unless_an_address_is_fixed() -> None:
    asked = dialled(("192.168.1.5", 17881))
    assert facade(Advertised("10.0.0.1", 8081, 0).endpoints(asked, 0)) == "1 192.168.1.5:17881"
    assert facade(Advertised("10.0.0.1", 8081, 0, fixed=True).endpoints(asked, 0)) == "1 10.0.0.1:8081"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_metrics_go_to_one_address_that_is_the_same_in_both_spellings(host: str) -> None:
    for boot, turn in ((6, 0), (6, 1), (7, 0)):
        advertised = Advertised("10.0.0.1", 8081, boot)
        told = advertised.endpoints(dialled((host, 8081)), turn)
        assert advertised.steady(told) == advertised.steady(dialled((host, 8081), ("10.0.0.2", 1)))
        told = advertised.endpoints(dialled((host, 8081)), turn, decodes_percent=True)
        assert advertised.steady(told) == advertised.steady(dialled((host, 8081), ("10.0.0.2", 1)))
    assert facade(Advertised("10.0.0.1", 8081, 0, fixed=True).steady(dialled((host, 1)))) == "1 10.0.0.1:8081"


def test_a_name_has_one_address_because_the_python_client_takes_no_more() -> None:
    for boot in (0, 1):
        told = Advertised("h", 1, boot).endpoints(dialled(("broker.example", 8081)), 0)
        assert told.scheme == AddressScheme.DOMAIN_NAME
        assert len(told.addresses) == 1
