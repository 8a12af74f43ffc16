"""TLS and plaintext on one port: certificates, those that end or change, and hands shaken badly."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from services.auth_files import write_for_owner
from services.front.certificates import self_signed
from tests.clients.conftest import BrokerProcess, Clients, new_message, serving, take

SECONDS = 10
OFFICIAL = """
import sys
from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer
listen, topic = sys.argv[1:]
configuration = ClientConfiguration(listen, Credentials())
producer = Producer(configuration, (topic,), tls_enable=True)
producer.startup()
message = Message()
message.topic, message.body = topic, b"sealed"
producer.send(message)
consumer = SimpleConsumer(configuration, "g-" + topic, {topic: FilterExpression()}, 5, tls_enable=True)
consumer.startup()
print([one.body.decode() for one in consumer.receive(32, 15)])
consumer.shutdown()
producer.shutdown()
"""


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with a certificate of its own making."""
    yield from serving(BrokerProcess(tmp_path_factory.mktemp("sealed") / "store"))


def own_certificate(broker: BrokerProcess) -> Path:
    return broker.store / "tls" / "certificate.pem"


def address(broker: BrokerProcess) -> tuple[str, int]:
    host, _, port = broker.listen.rpartition(":")
    return host, int(port)


def trusting(authority: Path, *protocols: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority))
    context.set_alpn_protocols(list(protocols or ("h2",)))
    return context


def shake_hands(broker: BrokerProcess, context: ssl.SSLContext) -> tuple[str | None, bytes | None]:
    """Returns the protocol agreed upon and the broker's certificate; raises OSError."""
    with (
        socket.create_connection(address(broker), SECONDS) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as sealed,
    ):
        return sealed.selected_alpn_protocol(), sealed.getpeercert(binary_form=True)


def is_fine(broker: BrokerProcess, clients: Clients) -> None:
    """A client that does all as it should notices nothing of the others."""
    topic = f"t-{uuid4().hex[:8]}"
    clients.producer(broker, topic).send(new_message(topic, "fine"))
    assert [one.body for one in take(clients.simple(broker, topic, f"g-{topic}"), 1)] == [b"fine"]


def test_the_official_client_works_over_tls_and_verifies_the_certificate(sealed: BrokerProcess) -> None:
    environment = os.environ | {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(own_certificate(sealed))}
    command = [sys.executable, "-c", OFFICIAL, sealed.listen, f"t-{uuid4().hex[:8]}"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ran.stdout == "['sealed']\n", ran.stderr


def test_h2_is_agreed_upon(sealed: BrokerProcess) -> None:
    assert shake_hands(sealed, trusting(own_certificate(sealed), "h2", "http/1.1"))[0] == "h2"


def test_who_does_not_trust_the_certificate_hangs_up_alone(
    sealed: BrokerProcess, clients: Clients, tmp_path: Path
) -> None:
    (tmp_path / "other.pem").write_bytes(self_signed(["127.0.0.1"])[0])
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(sealed, trusting(tmp_path / "other.pem"))
    is_fine(sealed, clients)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"\x16\x03\x01", id="half a hello"),
        pytest.param(b"\x16\x03\x01\x00\x05hello", id="no hello"),
        pytest.param(b"\x16PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="a preface behind a first byte of TLS"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64, id="no frames"),
        pytest.param(b"\x00" * 64, id="zeros"),
        pytest.param(b"\xff" * 64, id="ones"),
    ],
)
def test_a_hand_shaken_badly_is_let_go_and_the_others_do_not_notice(
    sealed: BrokerProcess, clients: Clients, said: bytes
) -> None:
    with socket.create_connection(address(sealed), SECONDS) as plain:
        plain.sendall(said)
        is_fine(sealed, clients)
        plain.shutdown(socket.SHUT_WR)
        while plain.recv(4096):
            pass


def test_a_client_that_offers_only_other_protocols_is_let_go(sealed: BrokerProcess, clients: Clients) -> None:
    context = trusting(own_certificate(sealed), "smtp")
    with (
        socket.create_connection(address(sealed), SECONDS) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as opened,
    ):
        assert opened.selected_alpn_protocol() is None
        assert opened.recv(4096) == b""
    is_fine(sealed, clients)


def files_of(folder: Path, *names: str) -> list[str]:
    """A certificate and its key as options; both files are there."""
    certificate, key = self_signed(list(names))
    (folder / "certificate.pem").write_bytes(certificate)
    write_for_owner(folder / "key.pem", key.decode())
    return ["--tls-certificate", str(folder / "certificate.pem"), "--tls-key", str(folder / "key.pem")]


def test_a_changed_certificate_serves_without_a_restart(tmp_path: Path, clients: Clients) -> None:
    for broker in serving(BrokerProcess(tmp_path / "store", *files_of(tmp_path, "127.0.0.1"))):
        authority = tmp_path / "certificate.pem"
        first = shake_hands(broker, trusting(authority))[1]
        files_of(tmp_path, "127.0.0.1")
        second = shake_hands(broker, trusting(authority))[1]
        assert first != second
        assert not (broker.store / "tls").exists()


def test_where_clients_need_a_certificate_none_comes_in_without(tmp_path: Path) -> None:
    (tmp_path / "client").mkdir()
    files_of(tmp_path / "client", "somebody")
    client = tmp_path / "client" / "certificate.pem"
    options = [*files_of(tmp_path, "127.0.0.1"), "--tls-clients", str(client)]
    for broker in serving(BrokerProcess(tmp_path / "store", *options)):
        without = trusting(tmp_path / "certificate.pem")
        without.maximum_version = ssl.TLSVersion.TLSv1_2  # in 1.3 a client hears of it after the handshake
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            shake_hands(broker, without)
        known = trusting(tmp_path / "certificate.pem")
        known.load_cert_chain(client, tmp_path / "client" / "key.pem")
        assert shake_hands(broker, known)[0] == "h2"
