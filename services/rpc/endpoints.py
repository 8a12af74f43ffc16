"""Which address a client is told to use, in two spellings.

A client is told the address that it dialled itself: it is the one that surely reaches us, through whatever
forwards ports in between. A fixed address (`advertise`) overrides it.

Two spellings, because some clients, Python's among them, open their Telemetry stream only when a route names
an endpoint set they have not got yet (reference/wire-protocol.md 4.7), and without that stream nobody can be
asked how a transaction ended. So to them each boot starts with the other spelling, and one that has no stream
is given the other one at a later refresh of its routes (`services.rpc.sessions`). Every other client is told
the first spelling by every boot: an address that changes is a new broker to it, also while it shuts down.
Both spellings reach the same socket:

| dialled       | first spelling       | second spelling                         |
|---------------|----------------------|-----------------------------------------|
| IPv4 address  | scheme IPv4          | scheme DOMAIN_NAME, the same text       |
| IPv6 address  | compressed text      | full text                               |
| name          | as dialled           | the other case (names have no case)     |
| several       | all of them          | all, the last one in another text       |

Of several addresses, as the nodes of a cluster have, both spellings name all: a client that is told of one
node alone fails with that. Another text of an IPv4 address has its last digit as `%31`, say: gRPC's core,
which the Python client uses, decodes it as in any URI. Of other clients that are told a second spelling,
Rust's takes one address, and .NET's uses the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from services.rpc.generated.definition_pb2 import Address, AddressScheme, Endpoints


@dataclass(frozen=True, slots=True)
class Advertised:
    """What this broker tells clients about its address; `boot` counts the starts of its store."""

    host: str
    port: int
    boot: int
    fixed: bool = False

    def endpoints(self, dialled: Endpoints, redials: int | None) -> Endpoints:
        """Return the endpoints for a client that dialled `dialled` and was made to redial `redials` times.

        None is for a client that is never made to redial.
        """
        known = Endpoints(addresses=[Address(host=self.host, port=self.port)])
        chosen = dialled if dialled.addresses and not self.fixed else known
        return spelling(chosen, second=redials is not None and (self.boot + redials) % 2 == 1)

    def steady(self, dialled: Endpoints) -> Endpoints:
        """Return one address that is the same for a client whichever spelling it was given."""
        known = Address(host=self.host, port=self.port)
        chosen = dialled.addresses[0] if dialled.addresses and not self.fixed else known
        return spelling(
            Endpoints(addresses=[Address(host=chosen.host.lower(), port=chosen.port)]), second=False
        )


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
