"""What a node writes into its store, and tells others, and clients, of how to dial it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from commitlog import layout
from services.rpc.generated.definition_pb2 import Address, AddressScheme, Endpoints
from services.rpc.wire.endpoints import Advertised
from services.server.authentication import is_http_tls
from services.server.run_cluster import is_over_tls, join, told_by_leader
from services.settings.config import ServeSettings, load
from tidewheel.errors import ConfigurationError

CLUSTER = b"c" * 16


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


def test_a_store_says_whose_it_is_durably_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: int) -> None:
        raise OSError("the disk fails")

    with monkeypatch.context() as sick:
        sick.setattr(os, "fsync", fails)
        with pytest.raises(OSError, match="the disk fails"):
            join(tmp_path, CLUSTER, "a")
    assert not (tmp_path / layout.CLUSTER).exists(), "what a power cut may leave empty is not there"
    join(tmp_path, CLUSTER, "a")
    join(tmp_path, CLUSTER, "a")
    with pytest.raises(ConfigurationError, match="not 'b' of"):
        join(tmp_path, CLUSTER, "b")


def test_a_store_that_has_lost_whose_it_is_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / layout.CLUSTER).touch()
    with pytest.raises(ConfigurationError, match="Give node 'a' an empty --store"):
        join(tmp_path, CLUSTER, "a")


def test_a_leader_tells_what_was_dialled_though_nodes_reach_it_elsewhere() -> None:
    dialled = Endpoints(scheme=AddressScheme.IPv4, addresses=[Address(host="10.0.0.2", port=8081)])
    for advertise in (False, True):
        told = told_by_leader(Advertised("10.0.0.1", 8081, boot=7, fixed=advertise), epoch=3)
        assert told.endpoints(dialled, None) == dialled
        assert told.steady(dialled) == dialled


def test_nodes_agree_on_the_address_that_makes_a_client_redial() -> None:
    dialled = Endpoints(addresses=[Address(host="10.0.0.2", port=8081)])
    nodes = [Advertised("10.0.0.1", 8081, boot=0), Advertised("10.0.0.3", 8081, boot=1)]
    told = [[told_by_leader(one, epoch).endpoints(dialled, 0) for epoch in (3, 4)] for one in nodes]
    assert told[0] == told[1]
    assert told[0][0] != told[0][1], "who lost its stream with a node is made to redial by the next leader"
