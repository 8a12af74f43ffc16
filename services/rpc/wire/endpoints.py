"""The address that the broker advertises to a client, and its spelling.

A client gets the address that it dialled, because this address reaches the broker through any port forwarding
in between. A fixed address (`advertise`) overrides it.

Different spellings are needed because some clients, including Python's, open their Telemetry stream only when
a route contains an endpoint set that no other route contains (reference/wire-protocol.md 4.7). Without this
stream, they cannot receive transaction check-backs. A client that has lost its stream therefore gets another
spelling at the next refresh of its routes (`services.rpc.clients.sessions`). All other clients always get the
first spelling, because they treat a changed address as a new broker, even during their shutdown.

A spelling is identified by a number, which is computed from the boot (in a cluster: the epoch) and the number
of redials in that boot:

    number = BOOT * boot + redials % (BOOT - 1)        later boots never repeat a number of those before

With only two spellings, a client that misses a boot, because it requests routes only every 30 s, could get a
spelling that it already has. Spellings of the same number lead to the same socket:

| dialled       | gRPC's core (`DECODES_PERCENT`)   | others, by the number's parity                  |
|---------------|-----------------------------------|-------------------------------------------------|
| IPv4 address  | scheme IPv4, some digits as %31   | scheme IPv4, or DOMAIN_NAME with the same text  |
| IPv6 address  | as others                         | compressed text, or full text                   |
| name          | some characters as %61            | as dialled, or the other case                   |
| several       | all of them, some digits as %31   | all, the last one in another text if odd        |

The bits of the number select the characters, beginning with the last one. The number of distinct spellings is
2 to the number of characters, for example 512 for 127.0.0.1. The gRPC core library, which the Python client
uses, decodes an address like any URI. A client with a stream keeps the spelling for which the stream was
opened (it is contained in its settings), even after a restart.

Each spelling of several addresses, such as the nodes of a cluster, contains all addresses, because a client
with the address of only one node would fail with that node. Among the other clients that get a second
spelling, Rust's client accepts one address, and .NET's uses the first.

Limitation: with only two spellings, a client that missed a boot may need one more refresh.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import unquote

from services.rpc.generated.definition_pb2 import Address, AddressScheme, Endpoints

DECODES_PERCENT: Final = frozenset(("PYTHON",))
"""Languages whose libraries parse an address as part of a URI."""
BOOT: Final = 17
"""The distance between the numbers of two boots.

It is odd, so that consecutive boots also differ in parity.
"""


@dataclass(frozen=True, slots=True)
class Advertised:
    """The advertised address of this broker. `boot` is the number of starts of its store."""

    host: str
    port: int
    boot: int
    fixed: bool = False

    def endpoints(
        self,
        dialled: Endpoints,
        redials: int | None,
        *,
        decodes_percent: bool = False,
        known: Endpoints | None = None,
    ) -> Endpoints:
        """Return the endpoints for a client that dialled `dialled` and was made to redial `redials` times.

        `redials` is None for a client that never has to redial. `known` are the endpoints for which the
        client has opened its current stream. They are returned if they contain the same addresses.
        """
        chosen = self._chosen(dialled)
        if known is not None and addressed(known) == addressed(chosen):
            return known
        number = 0 if redials is None else BOOT * self.boot + redials % (BOOT - 1)
        if decodes_percent and all(is_plain(one.host) for one in chosen.addresses):
            return spelled(chosen, number)
        return spelling(chosen, second=number % 2 == 1)

    def steady(self, dialled: Endpoints) -> Endpoints:
        """Return one address that is the same for all spellings of a client."""
        chosen = self._chosen(dialled).addresses[0]
        return spelling(
            Endpoints(addresses=[Address(host=unquote(chosen.host).lower(), port=chosen.port)]), second=False
        )

    def _chosen(self, dialled: Endpoints) -> Endpoints:
        if dialled.addresses and not self.fixed:
            return dialled
        return Endpoints(addresses=[Address(host=self.host, port=self.port)])


def addressed(endpoints: Endpoints) -> list[tuple[str, int]]:
    """Return the addresses of endpoints without percent encoding."""
    return [(unquote(one.host).lower(), one.port) for one in endpoints.addresses]


def is_plain(host: str) -> bool:
    """Return whether all characters of a host may be percent-encoded: IPv4 addresses and ASCII names."""
    return host.isascii() and not isinstance(parsed(host), IPv6Address)


def spelled(endpoints: Endpoints, number: int) -> Endpoints:
    """Return endpoints with percent-encoded characters: one bit of `number` per character, beginning with the
    last.
    """
    addresses: list[Address] = []
    for one in reversed(endpoints.addresses):
        host = "".join(
            f"%{ord(character):x}" if number >> place & 1 else character
            for place, character in reversed(list(enumerate(reversed(one.host))))
        )
        number >>= len(one.host)
        addresses.append(Address(host=host, port=one.port))
    scheme = scheme_of(endpoints.addresses[0].host)
    return Endpoints(scheme=scheme, addresses=list(reversed(addresses)))


def spelling(endpoints: Endpoints, second: bool) -> Endpoints:
    """Return the endpoints in their first or second spelling."""
    addresses = list(endpoints.addresses)
    if len(addresses) > 1:
        if second:
            *others, last = addresses
            addresses = [*others, Address(host=other_text(last.host), port=last.port)]
        return Endpoints(scheme=scheme_of(addresses[0].host), addresses=addresses)
    scheme, host = spell_host(addresses[0].host, second)
    return Endpoints(scheme=scheme, addresses=[Address(host=host, port=addresses[0].port)])


def spell_host(host: str, second: bool) -> tuple[AddressScheme, str]:
    """Return the scheme and text of a host in its first or second spelling."""
    match parsed(host):
        case IPv4Address():
            return (AddressScheme.DOMAIN_NAME if second else AddressScheme.IPv4), host
        case IPv6Address() as address:
            return AddressScheme.IPv6, address.exploded if second else address.compressed
        case _:
            return AddressScheme.DOMAIN_NAME, host.swapcase() if second else host


def other_text(host: str) -> str:
    """Return a host in a different spelling than it was dialled."""
    match parsed(host):
        case IPv4Address():
            return f"{host[:-1]}%{ord(host[-1]):x}"
        case IPv6Address() as address:
            return address.exploded if host != address.exploded else address.compressed
        case _:
            return host.swapcase()


def scheme_of(host: str) -> AddressScheme:
    """Return the address scheme with which clients understand a host."""
    return spell_host(host, second=False)[0]


def parsed(host: str) -> IPv4Address | IPv6Address | None:
    """Parse a host as an IP address. Returns None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None
