"""Whether a request may be one of a foreign web page: judged by its Host, Origin and Sec-Fetch-Site.

A browser on the machine of a broker reaches its loopback, and a web page can have it ask there:

| attack                            | what gives it away                                                    |
|-----------------------------------|-----------------------------------------------------------------------|
| a page asks another site (CSRF)   | `Origin`, `Sec-Fetch-Site: cross-site` or `same-site` (another port)  |
| a page's own name is made to      | `Host` is that name: the browser takes page and broker for one site,  |
| lead to the broker (DNS rebinding)| and lets the page read the answers                                    |

Rules:
- `Host` must be a name of the broker: what it listens on, this machine's name, or one that its owner gave.
  A name can be rebound, an address cannot: so where it listens on more than loopback, any address will do.
- `Origin`, where it is given, must be of the very host and port asked, or of a name that the owner gave.
- `Sec-Fetch-Site`, which no page can write itself, must be `same-origin` or `none` (typed in by a user).
- Who sends none of the two is no browser, or one that asks for its own page.

Cost: a few dictionary look-ups.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from services.ops.errors import ForeignHost, ForeignPage

ANY_NAME: Final = "*"
LOCALHOST: Final = "localhost"
OWN_SITES: Final = ("", "same-origin", "none")


@dataclass(frozen=True, slots=True)
class Names:
    """What a broker is called: `names` in all, `given` of those by its owner, and which addresses it has."""

    names: frozenset[str] = frozenset((LOCALHOST,))
    given: frozenset[str] = frozenset()
    only_loopback: bool = True

    def has(self, host: str) -> bool:
        """Return whether a name or an address may be meant for the broker."""
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
    """Return the names of a broker that serves these hosts; `given` are further names of its owner's."""
    more = frozenset(one.strip().lower().rstrip(".") for one in given if one.strip())
    own = [LOCALHOST, *hosts, "" if is_loopback else socket.gethostname()]
    names = frozenset(one.lower() for one in own if one and not is_address(one))
    return Names(names | more - {ANY_NAME}, more, is_loopback)


def is_address(host: str) -> bool:
    """Return whether a host is an address and not a name."""
    try:
        return bool(ip_address(host))
    except ValueError:
        return False


def check_origin(headers: Mapping[str, str], names: Names) -> None:
    """Raise `ForeignHost` or `ForeignPage` for a request that a foreign page may have made."""
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
    """Return whether an origin is of the host and port asked, or of a name that the owner gave."""
    asking = urlsplit(origin).netloc.lower()
    return bool(asking) and (asking == host.lower() or host_in(asking) in names.given)


def host_in(authority: str) -> str:
    """Return the host of HOST or HOST:PORT, in small letters, an address of IPv6 without brackets."""
    text = authority.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")
