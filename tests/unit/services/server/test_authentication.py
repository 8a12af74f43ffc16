"""A broker that others can reach does not start before somebody has said who may use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.server.authentication import check_exposure, http_names, is_http_tls
from services.server.errors import OpenToAll
from services.settings.config import ServeSettings, load
from tidewheel.client.address import is_loopback
from tidewheel.errors import ConfigurationError


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_this_machine_alone_reaches_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "broker.example", "localhost.example"])
def test_others_may_reach_everything_else(host: str) -> None:
    assert not is_loopback(host)


def test_client_certificates_keep_plaintext_out(tmp_path: Path) -> None:
    authorities = tmp_path / "clients.pem"
    assert not load(ServeSettings).is_tls_only
    assert load(ServeSettings, plaintext="off").is_tls_only
    assert load(ServeSettings, tls_clients=authorities).is_tls_only
    with pytest.raises(ConfigurationError, match="--tls-clients only clients"):
        check_exposure(load(ServeSettings, tls_clients=authorities, plaintext="on"))


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ({}, False),
        ({"http": "0.0.0.0:1"}, True),
        ({"http": "broker.example:1"}, True),
        ({"http": "0.0.0.0:1", "http_tls": "off"}, False),
        ({"http_tls": "on"}, True),
    ],
)
def test_http_is_sealed_where_others_reach_it(flags: dict[str, str], wanted: bool) -> None:
    assert is_http_tls(load(ServeSettings, **flags)) is wanted


def test_the_names_of_http_are_what_it_listens_on_and_what_its_owner_gives() -> None:
    given = {"http": "0.0.0.0:1", "advertise": "broker.example:2", "http_hosts": "ops.example, other.example"}
    names = http_names(load(ServeSettings, **given))
    assert all(names.has(one) for one in ("broker.example", "ops.example", "other.example", "10.0.0.1"))
    assert names.given == {"ops.example", "other.example"}


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
