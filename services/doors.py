"""Who may come in, from the settings: the guard of the protocol port, the token of the HTTP port.

A broker that others can reach serves nobody who has not said who it is, unless its owner wants it to
(`--insecure`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from ipaddress import ip_address
from typing import NamedTuple

from commitlog.errors import OpenToAll
from services.auth_files import auth_key, http_token, key_beside
from services.config import ServeSettings
from services.live.live_broker import LiveBroker
from services.refusals import Refusals
from services.rpc.guard import Guard


class Doors(NamedTuple):
    """What is asked of whom: no guard and an empty token ask nobody anything."""

    refusals: Refusals
    guard: Guard | None
    token: str


def check_exposure(settings: ServeSettings) -> None:
    """Raises `OpenToAll` for an address that others can reach and may use without saying who they are."""
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


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address; of names only `localhost` is known to be one."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def doors(settings: ServeSettings, live: LiveBroker, clock: Callable[[], int]) -> Doors:
    """Return the doors of a broker; raises `ConfigurationError` for a key or a token that cannot be used."""
    refusals = Refusals(clock)
    live.access.lock_with(partial(auth_key, settings.auth_key or key_beside(settings.store)))
    guard = None
    if settings.auth:
        live.access.open_all()
        guard = Guard(live.access, refusals, clock)
    return Doors(refusals, guard, http_token(settings.http_token) if settings.http_token else "")
