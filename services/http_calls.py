"""Calls to a broker's HTTP interface, plain or over TLS: what the commands and the shop's services share.

Over TLS the broker must show a certificate that the authorities of the system vouch for, or those in the file
that `TIDEWHEEL_HTTP_CA` names: for a certificate that a broker has made for itself, that very certificate
(`<store>/tls/certificate.pem`). There is no way to look past a wrong one.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from commitlog.errors import BrokerUnreachable, ConfigurationError
from services.config import ClientSettings, HttpAddress, load, secret_in

JSON = "application/json"


class HttpCalls:
    """A broker's HTTP interface at an address; `http` goes before the environment."""

    def __init__(self, http: str | None) -> None:
        settings = load(ClientSettings, http=http)
        self.address: HttpAddress = settings.http
        self._token = secret_in(settings.http_token, "http_token")
        self._tls = trusting(settings.http_ca) if self.address.is_tls else None

    def open(self, method: str, path: str, body: bytes | None, wait_seconds: float) -> Any:
        """Return the answer to a request; raises `BrokerUnreachable`, HTTPError, OSError, HTTPException."""
        headers = {"Content-Type": JSON} if body is not None else {}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = Request(f"{self.address.url}{path}", body, headers, method=method)
        try:
            return urlopen(request, timeout=wait_seconds, context=self._tls)
        except URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise untrusted(self.address, error.reason) from None
            raise

    def unreachable(self) -> BrokerUnreachable:
        """Return the error for an address where no broker answers."""
        tls = "" if self.address.is_tls else " One that is reached from elsewhere speaks https://."
        return BrokerUnreachable(
            f"There is no Tidewheel HTTP interface at {self.address}."
            f" Start a broker with 'tidewheel serve', or name its HTTP address with --http.{tls}"
        )


def trusting(authorities: Path | None) -> ssl.SSLContext:
    """Return a context that trusts a file's certificates, or the system's; raises `ConfigurationError`."""
    try:
        return ssl.create_default_context(cafile=str(authorities) if authorities else None)
    except OSError as error:  # an SSLError is one
        raise ConfigurationError(
            f"TIDEWHEEL_HTTP_CA is {str(authorities)!r}: {error.strerror or error}."
            " Name a file of certificates (PEM)."
        ) from error


def untrusted(address: HttpAddress, error: ssl.SSLCertVerificationError) -> BrokerUnreachable:
    """Return the error for a certificate that nobody vouches for, or that is another's."""
    return BrokerUnreachable(
        f"What answers at {address} is not trusted: {error.verify_message}. If it is your broker, set "
        "TIDEWHEEL_HTTP_CA to its certificate: certificate.pem in the folder tls of its store."
    )
