"""HTTP/2 peers that mean no good, before they have said who they are: the broker bounds what they cost it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import grpc
import pytest

from commitlog.limits import CONNECTION_STREAMS_MAX, HEADERS_BYTES_MAX
from tests.attacks.http2 import ATTACKS, HUNG_UP_ON_WITH, MAX_HEADER_LIST_SIZE, OF_TABLES, Attacker
from tests.endurance.conftest import BrokerProcess

CONNECTIONS, BYTES_EACH, SECONDS, TOLD_SECONDS = 4, 2_000_000, 1.0, 20.0
"""An attack that the broker ends may take `TOLD_SECONDS`: a busy machine needs more than one second."""
GROWTH_BYTES_MAX = 64 * 1024 * 1024
"""For all attacks together; those on calls and headers alone once took 700 MB, and more with more bytes."""
ANSWER_SECONDS = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    store = tmp_path_factory.mktemp("hostile") / "store"
    one = BrokerProcess(store, "--segment-bytes", str(1 << 24), "--auth")
    one.start()
    yield one
    assert one.stop() == 0


def resident_bytes(broker: BrokerProcess) -> int:
    assert broker.process is not None
    status = Path(f"/proc/{broker.process.pid}/status").read_text()
    (line,) = [one for one in status.splitlines() if one.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


def is_healthy(broker: BrokerProcess) -> bool:
    """Whether somebody else is served."""
    with grpc.insecure_channel(broker.listen) as channel:
        return bool(channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=ANSWER_SECONDS))


def attackers(broker: BrokerProcess, seconds: float = SECONDS) -> list[Attacker]:
    host, _, port = broker.listen.rpartition(":")
    return [Attacker((host, int(port)), BYTES_EACH, seconds) for _ in range(CONNECTIONS)]


@pytest.mark.parametrize("name", OF_TABLES)
def test_a_table_that_was_agreed_not_to_be_ends_its_connection(broker: BrokerProcess, name: str) -> None:
    host, _, port = broker.listen.rpartition(":")
    peer = Attacker((host, int(port)), BYTES_EACH, SECONDS, acknowledges=True)
    calls = ATTACKS[name]()
    peer.attack(islice(calls, 1))
    peer.attack(islice(calls, 5))
    peer.hear(TOLD_SECONDS)
    peer.close()
    assert any("COMPRESSION_ERROR" in one for one in peer.told)
    assert "compression error" in broker.log()


def test_a_peer_is_told_how_many_calls_and_headers_it_may_have(broker: BrokerProcess) -> None:
    (one, *others) = attackers(broker)
    assert one.concurrent_max == CONNECTION_STREAMS_MAX
    assert one.limits[MAX_HEADER_LIST_SIZE] == HEADERS_BYTES_MAX
    for each in (one, *others):
        each.close()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from Linux's /proc")
def test_what_peers_say_before_anybody_has_let_them_in_takes_little_memory_and_keeps_nobody_waiting(
    broker: BrokerProcess,
) -> None:
    assert is_healthy(broker)
    before = resident_bytes(broker)
    for name, attack in ATTACKS.items():
        several = attackers(broker, TOLD_SECONDS if name in HUNG_UP_ON_WITH else SECONDS)
        with ThreadPoolExecutor(CONNECTIONS) as at_once:
            attacking = [at_once.submit(one.attack, attack()) for one in several]
            assert is_healthy(broker), name
            for one in attacking:
                one.result()
        for peer in several:
            if name in HUNG_UP_ON_WITH:
                peer.hear(TOLD_SECONDS)
                assert any(HUNG_UP_ON_WITH[name] in one for one in peer.told), (name, peer.told)
            peer.close()
        assert is_healthy(broker), name
        assert resident_bytes(broker) - before < GROWTH_BYTES_MAX, name
    assert "enhance your calm" in broker.log()
