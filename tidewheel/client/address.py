"""Connection parameters of a client: broker addresses, token, and trusted certificates.

Arguments take precedence over environment variables. The commands read the same variables:

    TIDEWHEEL_HTTP         comma-separated [http[s]://]HOST:PORT of the nodes; default 127.0.0.1:8088
    TIDEWHEEL_HTTP_TOKEN   path of a file that contains the token
    TIDEWHEEL_HTTP_CA      path of a PEM file of trusted certificates; default: the system's

The file tidewheel.toml is not read, because it configures the broker and the commands.

Proxies from the environment (http_proxy, https_proxy, all_proxy, no_proxy) are used, with two exceptions:
1. loopback addresses, which refer to a different machine when they are resolved by a proxy;
2. plain HTTP requests with a token, because the proxy could read the token.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Collection
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tidewheel.errors import ConfigurationError

USUAL: Final = "127.0.0.1:8088"
EVERY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
"""Maps wildcard listen addresses to the address that a client on the same machine uses."""
WITHOUT_PROXY: Final = "to call the broker without a proxy, name its host in no_proxy"
PROXIES: Final = frozenset(("http", "https", "socks5", "socks5h"))
"""Supported proxy schemes. The two SOCKS schemes require the package socksio."""
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+")
_TOKEN: Final = re.compile(r"tw_[0-9a-f]{12}_[A-Za-z0-9_-]{16}")
TOKEN_IN_FILE: Final = "write it into a file that its owner alone reads, and name that file."
_EXAMPLE: Final = "http://127.0.0.1:8088"
_BEYOND: Final = frozenset("@?#")
"""A URL that contains one of these characters may include a password or a token and is not printed."""
_CONTROLS: Final = frozenset(map(chr, (*range(33), *range(127, 256))))


@dataclass(frozen=True, slots=True)
class Broker:
    """HTTP endpoints of a broker. The URLs are interchangeable and have no trailing slash."""

    urls: tuple[str, ...]
    token: str = field(repr=False)
    authorities: str

    @property
    def is_tls(self) -> bool:
        """Whether at least one URL uses https."""
        return any(url.startswith("https:") for url in self.urls)

    @property
    def direct_urls(self) -> tuple[str, ...]:
        """The URLs that are called without a proxy. Raises `ConfigurationError` as `proxy_of` does."""
        return tuple(url for url in self.urls if self.proxy_of(url) is None)

    def proxy_of(self, url: str) -> Proxy | None:
        """Return the proxy to use for a URL, or None. Raises `ConfigurationError` as `proxy_of` does."""
        return proxy_of(url, has_token=bool(self.token))

    def tls(self) -> ssl.SSLContext:
        """Return a TLS context that trusts the configured certificates. Raises `ConfigurationError`."""
        try:
            context = ssl.create_default_context(cafile=self.authorities or None)
        except OSError as error:  # SSLError is a subclass of OSError
            raise ConfigurationError(
                f"The file of certificates (authorities, or TIDEWHEEL_HTTP_CA) is {self.authorities!r}: "
                f"{error.strerror or error}. Name a file of certificates (PEM)."
            ) from None
        if self.authorities:
            # accept a non-root certificate as a trust anchor
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context


def broker(url: str | None, token: str | None, authorities: str | None) -> Broker:
    """Return the broker given by the arguments or the environment. Raises `ConfigurationError`."""
    name = "url" if url is not None else "TIDEWHEEL_HTTP"
    if not isinstance(url, str | None):
        raise ConfigurationError(f"{name} is a {type(url).__name__}: write it as {_EXAMPLE}.")
    given = url if url is not None else os.environ.get("TIDEWHEEL_HTTP") or USUAL
    urls = tuple(_url(one.strip(), name) for one in given.split(","))
    return Broker(
        urls,
        _token(token),
        authorities if authorities is not None else os.environ.get("TIDEWHEEL_HTTP_CA", ""),
    )


def _url(text: str, name: str) -> str:
    has_scheme = "://" in text
    shown = "more than an address" if set(text) & _BEYOND else repr(text[:100])
    try:
        parts = urlsplit(text if has_scheme else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        reason = "" if set(text) & _BEYOND else f" {error}."  # the message may contain a password
        raise ConfigurationError(f"{name} is {shown}:{reason} Write it as {_EXAMPLE}.") from None
    if (
        parts.scheme not in ("http", "https")
        or not host
        or not _is_host(host)
        or (port is None and not has_scheme)
    ):
        raise ConfigurationError(f"{name} is {shown}: write it as {_EXAMPLE}.")
    if parts.query or parts.fragment or parts.username is not None:
        raise ConfigurationError(
            f"{name} is more than an address: write it as {_EXAMPLE}, and give a token by its own argument."
        )
    bare = f"[{host}]" if ":" in host else host
    place = EVERY_ADDRESS.get(host, bare) + (f":{port}" if port is not None else "")
    return f"{parts.scheme}://{place}{parts.path.rstrip('/')}"


def _is_host(host: str) -> bool:
    if ":" in host:  # `urlsplit` has removed the brackets of an IPv6 address
        return True
    try:
        return _HOST.fullmatch(host.encode("idna").decode()) is not None
    except UnicodeError:
        return False


def _token(token: str | None) -> str:
    found, name = token, "token"
    if found is None and (path := os.environ.get("TIDEWHEEL_HTTP_TOKEN")):
        name = "TIDEWHEEL_HTTP_TOKEN"
        try:
            found = Path(path).read_text().strip()
        except (OSError, ValueError) as error:
            if has_token(path):
                raise ConfigurationError(f"{name} has a token itself: {TOKEN_IN_FILE}") from None
            raise ConfigurationError(f"{name} is {path!r}: {error}. Name a file that you can read.") from None
    if found is not None and not isinstance(found, str):
        raise ConfigurationError(f"The token ({name}) is a {type(found).__name__}: give a text.")
    if found and (not found.isascii() or _CONTROLS & set(found)):
        raise ConfigurationError(f"The token ({name}) has blanks, or characters that no token has.")
    return found or ""


def has_token(path: object) -> bool:
    """Return whether a path contains an access token."""
    return _TOKEN.search(str(path)) is not None


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy from the environment. The URL may contain a password; `shown` is safe to print."""

    url: str = field(repr=False)
    shown: str


def proxy_of(url: str, *, has_token: bool, schemes: Collection[str] = PROXIES) -> Proxy | None:
    """Return the proxy that the environment specifies for a URL, or None for a direct connection.

    Raises `ConfigurationError` if the proxy is malformed or its scheme is not in `schemes`.
    """
    from urllib.request import getproxies, proxy_bypass

    parts, proxies = urlsplit(url), getproxies()
    found = next(((name, proxies[name]) for name in (parts.scheme, "all") if proxies.get(name)), None)
    if found is None or is_direct(url, has_token=has_token) or proxy_bypass(parts.netloc):
        return None
    variable, text = f"{found[0]}_proxy", found[1] if "://" in found[1] else f"http://{found[1]}"
    try:
        given = urlsplit(text)
        host, port = given.hostname, given.port
    except ValueError:
        host = port = None
    if not host or given.scheme not in schemes:
        raise ConfigurationError(
            f"{variable} ({text.partition('://')[0]}://...) is no proxy that can be used for {parts.netloc}. "
            f"Write it as http://HOST:PORT; {WITHOUT_PROXY}."
        )
    place = f"[{host}]" if ":" in host else host
    return Proxy(text, f"{given.scheme}://{place}{'' if port is None else f':{port}'} ({variable})")


def is_direct(url: str, *, has_token: bool) -> bool:
    """Return whether requests to a URL bypass the proxy."""
    parts = urlsplit(url)
    return (has_token and parts.scheme != "https") or is_loopback(parts.hostname or "")


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address. The only accepted host name is `localhost`."""
    try:
        address = ip_address(host)
    except ValueError:
        return host.lower().removesuffix(".") == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
