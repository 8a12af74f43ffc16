"""Calls to a broker's HTTP interface, plain or over TLS: what the commands and the shop's services share.

Over TLS the broker must show a certificate that the authorities of the system vouch for, or those in the file
that `TIDEWHEEL_HTTP_CA` names: for a certificate that a broker has made for itself, that very certificate
(`<store>/tls/certificate.pem`), and of nodes those in `<store>/access/nodes.pem`. There is no way to look
past a wrong one. Of several addresses, of nodes, the first is called that takes a connection.

A proxy that the environment names is used by the rules of `tidewheel.client.address`: never for loopback, nor
for a token over plain HTTP. A redirect is no answer of a broker, and is not followed: it would get the token.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import (
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
)

from services.http.errors import TokenAstray
from services.settings.config import (
    ClientSettings,
    HttpAddress,
    HttpAddresses,
    look_up,
    secret_in,
)
from services.settings.setting import settings_of
from services.settings.sources import FILE_NAME, FILE_VARIABLE
from tidewheel.client.address import WITHOUT_PROXY, Proxy, is_loopback, proxy_of
from tidewheel.errors import AnswerLate, BrokerUnreachable, ConfigurationError

JSON = "application/json"
CONNECT_SECONDS = 2
PROXIES = ("http", "https")
EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class HttpCalls:
    """A broker's HTTP interface at an address; `http` goes before the environment, and so does a `token`."""

    def __init__(self, http: str | None, token: str | None = None, program: str = "tidewheel") -> None:
        """`program` is the User-Agent, which the journal keeps (`services.ops.journal`)."""
        settings = client_settings(http)
        self._program = program
        self.address: HttpAddress = reachable(settings.http.all)
        self._token = secret_in(settings.http_token, "http_token") if token is None else token
        tls = trusting(settings.http_ca) if self.address.is_tls else None
        self._proxy = proxy_of(self.address.url, has_token=bool(self._token), schemes=PROXIES)
        self._opener = opener(tls, self._proxy)

    def open(self, method: str, path: str, body: bytes | None, wait_seconds: float) -> Any:
        """Return the answer to a request; raises `BrokerUnreachable`, HTTPError, OSError, HTTPException."""
        headers = {"User-Agent": self._program}
        if body is not None:
            headers["Content-Type"] = JSON
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = Request(f"{self.address.url}{path}", body, headers, method=method)
        try:
            return self._opener.open(request, timeout=wait_seconds)
        except URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise untrusted(self.address, error.reason) from None
            raise

    def unreachable(self) -> BrokerUnreachable:
        """Return the error for an address where no broker answers."""
        tls = "" if self.address.is_tls else " One that is reached from elsewhere speaks https://."
        if self._proxy is not None:
            return BrokerUnreachable(
                f"There is no Tidewheel HTTP interface at {self.address}, by the proxy {self._proxy.shown}. "
                f"See whether the proxy serves; {WITHOUT_PROXY}."
            )
        return BrokerUnreachable(
            f"There is no Tidewheel HTTP interface at {self.address}."
            f" Start a broker with 'tidewheel serve', or name its HTTP address with --http.{tls}"
        )

    def late(self, wait_seconds: float) -> AnswerLate:
        """Return the error for a request that was taken, and not answered in time."""
        return AnswerLate(
            f"{self.address} said nothing for {wait_seconds:.0f} s. See whether it was done before you ask "
            "again, and what the broker waits for: its log, and of a node tidewheel cluster status."
        )


class Unfollowed(HTTPRedirectHandler):
    """Takes a redirect for a refusal."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


def opener(tls: ssl.SSLContext | None = None, proxy: Proxy | None = None) -> OpenerDirector:
    """Return what opens URLs, through a proxy if one is given; follows no redirect."""
    proxies = ProxyHandler({} if proxy is None else dict.fromkeys(("http", "https"), proxy.url))
    return build_opener(proxies, Unfollowed(), HTTPSHandler(context=tls))


def client_settings(http: str | None) -> ClientSettings:
    """Return which broker is called; `http` goes before the environment and the file.

    What a broker listens on may be "every address" (0.0.0.0): from here that is this machine. A file that
    nobody has named, but that lies in the working directory, may have come with somebody's code: it sends a
    token nowhere else. Raises `ConfigurationError`, `TokenAstray`.
    """
    found = look_up(settings_of(ClientSettings), {"http": http})
    addresses = tuple(
        one._replace(host=EVERY_ADDRESS.get(one.host, one.host)) for one in found["http"].value.all
    )
    token = found["http_token"].value
    is_unnamed = found["http"].origin == f"http in {FILE_NAME}" and not os.environ.get(FILE_VARIABLE)
    away = [one for one in addresses if not is_loopback(one.host)]
    if token and is_unnamed and away:
        raise TokenAstray(
            f"http in {FILE_NAME} would have {token} sent to {away[0]}. If that is your broker, say so by "
            f"--http, or name the file: export {FILE_VARIABLE}={FILE_NAME}."
        )
    return ClientSettings(HttpAddresses(addresses), token, found["http_ca"].value)


def reachable(addresses: Sequence[HttpAddress]) -> HttpAddress:
    """Return the first address that takes a connection; the first of all if none does, or it is alone."""
    for address in addresses if len(addresses) > 1 else ():
        with suppress(OSError), socket.create_connection(address.bare, timeout=CONNECT_SECONDS):
            return address
    return addresses[0]


def trusting(authorities: Path | None) -> ssl.SSLContext:
    """Return a context that trusts a file's certificates, or the system's; raises `ConfigurationError`."""
    try:
        context = ssl.create_default_context(cafile=str(authorities) if authorities else None)
    except OSError as error:  # an SSLError is one
        raise ConfigurationError(
            f"TIDEWHEEL_HTTP_CA is {str(authorities)!r}: {error.strerror or error}."
            " Name a file of certificates (PEM)."
        ) from error
    if authorities:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # one in the file is trusted, whoever signed it
    return context


def untrusted(address: HttpAddress, error: ssl.SSLCertVerificationError) -> BrokerUnreachable:
    """Return the error for a certificate that nobody vouches for, or that is another's."""
    return BrokerUnreachable(
        f"What answers at {address} is not trusted: {error.verify_message}. If it is your broker, set "
        "TIDEWHEEL_HTTP_CA to its certificate: certificate.pem in the folder tls of its store."
    )
