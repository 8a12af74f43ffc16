"""Who may come in, from the settings: the guard of the protocol port, the demands of the HTTP port.

A broker that others can reach serves nobody who has not said who it is, unless its owner wants it to
(`--insecure`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from services.auth.refusals import Refusals
from services.live.live_broker import LiveBroker
from services.ops.gate import Demands
from services.ops.origins import Names, names_of
from services.process.private_files import auth_key, http_token, key_of
from services.rpc.guard import Guard
from services.server.errors import OpenToAll
from services.settings.config import ServeSettings
from tidewheel.client.address import is_loopback
from tidewheel.errors import ConfigurationError


class Authentication(NamedTuple):
    """Authentication of both ports: no guard, or an empty token, asks nobody who calls."""

    refusals: Refusals
    guard: Guard | None
    demands: Demands


def check_exposure(settings: ServeSettings) -> None:
    """Raise `OpenToAll` for an address that others can reach and may use without saying who they are.

    Raise `ConfigurationError` for plaintext beside client certificates: nobody would need one.
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
    """Return what both ports ask; raise `ConfigurationError` for a key or a token that cannot be used."""
    refusals = Refusals(clock)
    if settings.auth_key or not settings.cluster:  # a key in a node's store would be that node's alone
        live.access.set_key_source(partial(auth_key, settings.auth_key or key_of(settings.store)))
    guard = None
    if settings.auth:
        live.access.open_all()
        guard = Guard(live.access, refusals, clock)
    return Authentication(refusals, guard, http_demands(settings))


def http_demands(settings: ServeSettings) -> Demands:
    """Return what the HTTP interface asks of requests; raise `ConfigurationError` for a bad token."""
    token = http_token(settings.http_token) if settings.http_token else ""
    return Demands(token, http_names(settings))


def http_names(settings: ServeSettings) -> Names:
    """Return by which names the HTTP interface may be dialled."""
    hosts = [settings.http.host, *([settings.advertise.host] if settings.advertise else [])]
    return names_of(hosts, is_loopback(settings.http.host), settings.http_hosts.split(","))


def is_http_tls(settings: ServeSettings) -> bool:
    """Return whether HTTP is served over TLS: by default where others than this machine reach it."""
    auto = "off" if is_loopback(settings.http.host) and not settings.http.is_tls else "on"
    return (auto if settings.http_tls == "auto" else settings.http_tls) == "on"
