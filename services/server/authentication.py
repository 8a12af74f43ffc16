"""Access control from the settings: the guard of the gRPC port, and the requirements of the HTTP port.

A broker that is reachable from other machines requires authentication, unless the option `--insecure` is set.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from services.auth.refusals import Refusals
from services.live.live_broker import LiveBroker
from services.ops.gate import Demands
from services.ops.requests.origins import Names, names_of
from services.process.private_files import auth_key, http_token, key_of
from services.rpc.guard import Guard
from services.server.errors import OpenToAll
from services.settings.config import ServeSettings
from tidewheel.client.address import is_loopback
from tidewheel.errors import ConfigurationError


class Authentication(NamedTuple):
    """Access control of both ports.

    If there is no guard, or the token is empty, callers are not authenticated.
    """

    refusals: Refusals
    guard: Guard | None
    demands: Demands


def check_exposure(settings: ServeSettings) -> None:
    """Raise `OpenToAll` if other machines can reach an address that requires no authentication.

    Raises `ConfigurationError` if plaintext is allowed together with client certificates, which would then be
    pointless.
    """
    if settings.tls_clients and settings.plaintext == "on":
        raise ConfigurationError(
            "--plaintext on lets everybody in, --tls-clients only clients with a certificate. Leave one away."
        )
    if settings.insecure:
        return
    if not settings.auth and not is_loopback(settings.listen.host):
        raise OpenToAll(
            f"--listen is {settings.listen}: ask callers who they are with --auth, or say --insecure."
        )
    if settings.http_token is None and not is_loopback(settings.http.host):
        raise OpenToAll(
            f"--http is {settings.http}: ask for a token with --http-token FILE, or say --insecure."
        )


def authentication(settings: ServeSettings, live: LiveBroker, clock: Callable[[], int]) -> Authentication:
    """Return the access control of both ports. Raises `ConfigurationError` for an invalid key or token."""
    refusals = Refusals(clock)
    # a key in the store of a node would not be shared with other nodes
    if settings.auth_key or not settings.cluster:
        live.access.set_key_source(partial(auth_key, settings.auth_key or key_of(settings.store)))
    guard = None
    if settings.auth:
        live.access.enable_authentication()
        guard = Guard(live.access, refusals, clock)
    return Authentication(refusals, guard, http_demands(settings))


def http_demands(settings: ServeSettings) -> Demands:
    """Return the requirements of the HTTP interface. Raises `ConfigurationError` for an invalid token."""
    token = http_token(settings.http_token) if settings.http_token else ""
    return Demands(token, http_names(settings))


def http_names(settings: ServeSettings) -> Names:
    """Return the host names that requests to the HTTP interface may use."""
    hosts = [settings.http.host, *([settings.advertise.host] if settings.advertise else [])]
    return names_of(hosts, is_loopback(settings.http.host), settings.http_hosts.split(","))


def is_http_tls(settings: ServeSettings) -> bool:
    """Return whether HTTP uses TLS. By default, it does if other machines can reach it."""
    auto = "off" if is_loopback(settings.http.host) and not settings.http.is_tls else "on"
    return (auto if settings.http_tls == "auto" else settings.http_tls) == "on"
