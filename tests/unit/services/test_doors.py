"""A broker that others can reach does not start before somebody has said who may use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from commitlog.errors import OpenToAll
from services.config import ServeSettings, load
from services.doors import check_exposure, is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_this_machine_alone_reaches_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "broker.example", "localhost.example"])
def test_others_may_reach_everything_else(host: str) -> None:
    assert not is_loopback(host)


def test_an_address_that_others_reach_needs_a_word_about_who_may() -> None:
    check_exposure(load(ServeSettings))
    for flags, named in (({"listen": "0.0.0.0:1"}, "--auth"), ({"http": "[::]:1"}, "--http-token FILE")):
        with pytest.raises(OpenToAll, match=named):
            check_exposure(load(ServeSettings, **flags))
        check_exposure(load(ServeSettings, **flags, insecure=True))
    check_exposure(load(ServeSettings, listen="0.0.0.0:1", auth=True))
    check_exposure(load(ServeSettings, http="0.0.0.0:1", http_token=Path("token")))
    with pytest.raises(OpenToAll):
        check_exposure(load(ServeSettings, listen="0.0.0.0:1", http_token=Path("token")))
