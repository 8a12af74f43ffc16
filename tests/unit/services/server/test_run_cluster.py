"""What a node tells others of how to dial it."""

from __future__ import annotations

from typing import Any

import pytest

from services.server.authentication import is_http_tls
from services.server.run_cluster import is_over_tls
from services.settings.config import ServeSettings, load


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, False),
        ({"plaintext": "off"}, True),
        ({"http_tls": "on"}, True),
        ({"listen": "10.0.0.1:8081"}, True),
        ({"advertise": "broker.example:8081"}, True),
        ({"http": "10.0.0.1:8088"}, True),
        ({"http": "10.0.0.1:8088", "http_tls": "off"}, False),
        ({"listen": "10.0.0.1:8081", "http": "10.0.0.1:8088", "http_tls": "off"}, True),
    ],
)
def test_nodes_dial_a_node_over_tls_unless_only_its_machine_reaches_its_plaintext(
    given: dict[str, Any], expected: bool
) -> None:
    settings = load(ServeSettings, **given)
    http = settings.http._replace(is_tls=is_http_tls(settings))
    assert is_over_tls(settings, http) is expected
