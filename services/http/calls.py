"""HTTP and HTTPS calls to a broker, shared by the commands and the shop's services.

With TLS, the broker's certificate must be trusted by the system's authorities, or by the file that
`TIDEWHEEL_HTTP_CA` names. If the broker has created its certificate, this file is the certificate itself
(`<store>/tls/certificate.pem`), and for cluster nodes it is `<store>/access/nodes.pem`. Verification cannot
be disabled. If there are several addresses (cluster nodes), the first that accepts a connection is used.

A proxy from the environment is used according to `tidewheel.client.address`: never for loopback addresses,
and never for a token over plain HTTP. Redirects are not followed, because a broker never sends them and the
target would receive the token.
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
    """The HTTP interface of a broker. `http` and `token` take precedence over the environment."""

    def __init__(self, http: str | None, token: str | None = None, program: str = "tidewheel") -> None:
        """`program` is the User-Agent, which the broker stores in its journal."""
        settings = client_settings(http)
        self._program = program
        self.address: HttpAddress = reachable(settings.http.all)
        self._token = secret_in(settings.http_token, "http_token") if token is None else token
        tls = trusting(settings.http_ca) if self.address.is_tls else None
        self._proxy = proxy_of(self.address.url, has_token=bool(self._token), schemes=PROXIES)
        self._opener = opener(tls, self._proxy)

    def open(self, method: str, path: str, body: bytes | None, wait_seconds: float) -> Any:
        """Return the answer to a request. Raises `BrokerUnreachable`, HTTPError, OSError, HTTPException."""
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
        """Return the error for a request that was accepted but not answered in time."""
        return AnswerLate(
            f"{self.address} said nothing for {wait_seconds:.0f} s. See whether it was done before you ask "
            "again, and what the broker waits for: its log, and of a node tidewheel cluster status."
        )


class Unfollowed(HTTPRedirectHandler):
    """Treats redirects as errors."""

    def redirect_request(self, *_: Any) -> None:
        """Do not follow redirects."""


def opener(tls: ssl.SSLContext | None = None, proxy: Proxy | None = None) -> OpenerDirector:
    """Return a URL opener that uses the given proxy and does not follow redirects."""
    proxies = ProxyHandler({} if proxy is None else dict.fromkeys(("http", "https"), proxy.url))
    return build_opener(proxies, Unfollowed(), HTTPSHandler(context=tls))


def client_settings(http: str | None) -> ClientSettings:
    """Return the broker to call. `http` takes precedence over the environment and the file.

    A broker's wildcard listen address (0.0.0.0) is replaced by the loopback address. A settings file that was
    not specified explicitly but is in the working directory may come from an untrusted source. It must not
    cause a token to be sent to another machine. Raises `ConfigurationError`, `TokenAstray`.
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
    """Return the first address that accepts a connection, or the first address if there is only one or none
    accepts.
    """
    for address in addresses if len(addresses) > 1 else ():
        with suppress(OSError), socket.create_connection(address.bare, timeout=CONNECT_SECONDS):
            return address
    return addresses[0]


def trusting(authorities: Path | None) -> ssl.SSLContext:
    """Return a TLS context that trusts the certificates in a file or of the system; raise
    `ConfigurationError`.
    """
    try:
        context = ssl.create_default_context(cafile=str(authorities) if authorities else None)
    except OSError as error:  # SSLError is a subclass of OSError
        raise ConfigurationError(
            f"TIDEWHEEL_HTTP_CA is {str(authorities)!r}: {error.strerror or error}."
            " Name a file of certificates (PEM)."
        ) from error
    if authorities:
        # accept a non-root certificate as a trust anchor
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def untrusted(address: HttpAddress, error: ssl.SSLCertVerificationError) -> BrokerUnreachable:
    """Return the error for a certificate that is not trusted or does not match the host."""
    return BrokerUnreachable(
        f"What answers at {address} is not trusted: {error.verify_message}. If it is your broker, set "
        "TIDEWHEEL_HTTP_CA to its certificate: certificate.pem in the folder tls of its store."
    )
