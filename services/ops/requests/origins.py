"""Detection of requests from pages of other sites, by the header fields Host, Origin and Sec-Fetch-Site.

A browser on the machine of a broker can reach its loopback address, so a web page can send requests there:

| attack                               | detected by                                                        |
|--------------------------------------|--------------------------------------------------------------------|
| a page sends requests to another     | `Origin`, `Sec-Fetch-Site: cross-site` or `same-site` (a different |
| site (CSRF)                          | port)                                                              |
| the name of a page resolves to the   | `Host`, which contains this name. The browser treats the page and  |
| broker (DNS rebinding)               | the broker as the same site, so the page can read the answers      |

Rules:
- `Host` must be a name of the broker, which is a name on which it listens, the name of the machine, or a
  configured name. A name can be rebound, but an address cannot. Therefore, a broker that does not listen only
  on loopback accepts any address.
- `Origin`, if present, must be the host and port of the request, or a configured name.
- `Sec-Fetch-Site`, which a page cannot set, must be `same-origin` or `none` (entered by a user).
- A request without `Origin` and `Sec-Fetch-Site` comes from another program, or from a page of the broker.

Cost: a few dictionary look-ups.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from services.ops.requests.errors import ForeignHost, ForeignPage

ANY_NAME: Final = "*"
LOCALHOST: Final = "localhost"
OWN_SITES: Final = ("", "same-origin", "none")


@dataclass(frozen=True, slots=True)
class Names:
    """The names and addresses of a broker.

    `names` contains all names, and `given` contains the names that the operator configured.
    """

    names: frozenset[str] = frozenset((LOCALHOST,))
    given: frozenset[str] = frozenset()
    only_loopback: bool = True

    def has(self, host: str) -> bool:
        """Return whether a name or an address may identify the broker."""
        if host in self.names or ANY_NAME in self.given:
            return True
        try:
            address = ip_address(host)
        except ValueError:
            return False
        return address.is_loopback or not self.only_loopback

    def __str__(self) -> str:
        addresses = "127.0.0.1" if self.only_loopback else "its addresses"
        return ", ".join((*sorted(self.names), addresses))


def names_of(hosts: Iterable[str], is_loopback: bool, given: Iterable[str] = ()) -> Names:
    """Return the names of a broker that serves these hosts.

    `given` are additional names from its operator.
    """
    more = frozenset(one.strip().lower().rstrip(".") for one in given if one.strip())
    own = [LOCALHOST, *hosts, "" if is_loopback else socket.gethostname()]
    names = frozenset(one.lower() for one in own if one and not is_address(one))
    return Names(names | more - {ANY_NAME}, more, is_loopback)


def is_address(host: str) -> bool:
    """Return whether a host is an IP address and not a name."""
    try:
        return bool(ip_address(host))
    except ValueError:
        return False


def check_origin(headers: Mapping[str, str], names: Names) -> None:
    """Raise `ForeignHost` or `ForeignPage` for a request that a page of another site may have sent."""
    host = headers.get("host", "")
    if not names.has(host_in(host)):
        raise ForeignHost(
            f"The request is for {host[:100]!r}, and the broker is {names}. Dial one of these,"
            " or start it with --http-hosts NAME."
        )
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "")
    if origin is not None and not is_own(origin, host, names):
        raise ForeignPage(f"Its origin is {origin[:100]!r}. If it may ask: --http-hosts NAME, its host.")
    if site not in OWN_SITES:
        raise ForeignPage(f"The browser says: {site[:100]}. Open the address in a tab of its own.")


def is_own(origin: str, host: str, names: Names) -> bool:
    """Return whether an origin has the host and port of the request, or a configured name."""
    asking = urlsplit(origin).netloc.lower()
    return bool(asking) and (asking == host.lower() or host_in(asking) in names.given)


def host_in(authority: str) -> str:
    """Return the host of HOST or HOST:PORT in lower case, with an IPv6 address without brackets."""
    text = authority.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")
