"""Which address a client is told to use, and in which of its spellings.

A client is told the address that it dialled itself: it is the one that surely reaches us, through whatever
forwards ports in between. A fixed address (`advertise`) overrides it.

Spellings, because some clients, Python's among them, open their Telemetry stream only when a route names an
endpoint set that no other route of theirs names (reference/wire-protocol.md 4.7), and without that stream
they cannot be asked how a transaction ended. A client that has lost its stream is therefore told another
spelling at the next refresh of its routes (`services.rpc.clients.sessions`). All other clients are told the
first spelling by every boot: an address that changes is a new broker to them, also while they shut down.

A spelling is a number, made of the boot (in a cluster: the epoch) and the count of redials in that boot:

    number = BOOT * boot + redials % (BOOT - 1)        later boots never repeat a number of those before

Two spellings alone would repeat: a client that misses a boot, since it asks for routes each 30 s only, was
told by the next boot but one what it knew. Spellings of one number reach the same socket:

| dialled       | gRPC's core (`DECODES_PERCENT`)   | others, by the number's parity                  |
|---------------|-----------------------------------|-------------------------------------------------|
| IPv4 address  | scheme IPv4, some digits as %31   | scheme IPv4, or DOMAIN_NAME with the same text  |
| IPv6 address  | as others                         | compressed text, or full text                   |
| name          | some characters as %61            | as dialled, or the other case                   |
| several       | all of them, some digits as %31   | all, the last one in another text if odd        |

The bits of the number say which characters, the last one first: 2 to the number of characters are told apart,
512 for 127.0.0.1. gRPC's core, which the Python client uses, decodes an address as any URI. A client that has
a stream keeps the spelling for which it opened the stream (its settings name it), whichever boot answers.

Each spelling of several addresses, as of the nodes of a cluster, names all of them: a client with the address
of one node fails with that node. Of the other clients with a second spelling, Rust's takes one address, and
.NET's uses the first.

Weak spot: with two spellings a client that missed a boot may need one refresh more.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import unquote

from services.rpc.generated.definition_pb2 import Address, AddressScheme, Endpoints

DECODES_PERCENT: Final = frozenset(("PYTHON",))
"""Languages whose libraries take an address as part of a URI."""
BOOT: Final = 17
"""How far apart the numbers of two boots are: odd, so that boots differ in parity, too."""


@dataclass(frozen=True, slots=True)
class Advertised:
    """What this broker tells clients about its address; `boot` counts the starts of its store."""

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

        `redials` is None for a client that is never made to redial. `known` are the endpoints for which the
        client has opened the stream that it has; they stay if they spell the same addresses.
        """
        chosen = self._chosen(dialled)
        if known is not None and addressed(known) == addressed(chosen):
            return known
        number = 0 if redials is None else BOOT * self.boot + redials % (BOOT - 1)
        if decodes_percent and all(is_plain(one.host) for one in chosen.addresses):
            return spelled(chosen, number)
        return spelling(chosen, second=number % 2 == 1)

    def steady(self, dialled: Endpoints) -> Endpoints:
        """Return one address that is the same for a client whichever spelling it was given."""
        chosen = self._chosen(dialled).addresses[0]
        return spelling(
            Endpoints(addresses=[Address(host=unquote(chosen.host).lower(), port=chosen.port)]), second=False
        )

    def _chosen(self, dialled: Endpoints) -> Endpoints:
        if dialled.addresses and not self.fixed:
            return dialled
        return Endpoints(addresses=[Address(host=self.host, port=self.port)])


def addressed(endpoints: Endpoints) -> list[tuple[str, int]]:
    """Return the addresses of endpoints, the same for each of their spellings by percent."""
    return [(unquote(one.host).lower(), one.port) for one in endpoints.addresses]


def is_plain(host: str) -> bool:
    """Return whether each character of a host may be written as %XX: IPv4 addresses and names in ASCII."""
    return host.isascii() and not isinstance(parsed(host), IPv6Address)


def spelled(endpoints: Endpoints, number: int) -> Endpoints:
    """Return endpoints in a spelling by percent: a bit of `number` for each character, the last one first."""
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
    """Return a host in another text than it was dialled in."""
    match parsed(host):
        case IPv4Address():
            return f"{host[:-1]}%{ord(host[-1]):x}"
        case IPv6Address() as address:
            return address.exploded if host != address.exploded else address.compressed
        case _:
            return host.swapcase()


def scheme_of(host: str) -> AddressScheme:
    """Return the scheme under which clients understand a host."""
    return spell_host(host, second=False)[0]


def parsed(host: str) -> IPv4Address | IPv6Address | None:
    """Return a host as an address; None when it is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None
