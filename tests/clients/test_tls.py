"""TLS and plaintext on one port: certificates, those that end or change, and hands shaken badly."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen
from uuid import uuid4

import grpc
import pytest

from services.front.admission import SILENT
from services.front.certificates import make_self_signed
from services.front.port import LEFT, NO_HTTP2, PLAINTEXT
from services.process.private_files import write_for_owner
from tests.certificates import an_authority, issued, write_pair
from tests.clients.conftest import BrokerProcess, Clients, new_message, serving, take, wait_until
from tests.command import tidewheel

SECONDS = 60
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = 4
"""The type of the frame with which HTTP/2 begins."""
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
    (tmp_path / "other.pem").write_bytes(make_self_signed(["127.0.0.1"])[0])
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


def refused(broker: BrokerProcess) -> Counter[str]:
    """How often the broker has sent somebody away, by reason."""
    with urlopen(f"http://{broker.http}/api/refused") as answer:
        return Counter(json.load(answer)["counts"])


@contextmanager
def listed(broker: BrokerProcess, *reasons: str) -> Iterator[None]:
    """What is done meanwhile is refused once, for one of these reasons."""
    before = refused(broker)
    yield
    wait_until(lambda: refused(broker).total() > before.total(), SECONDS)
    assert refused(broker) - before in [Counter({reason: 1}) for reason in reasons]


NO_HELLO = ("TLS: unexpected message", "TLS: wrong version number")
NO_CERTIFICATE = ("TLS: peer did not return a certificate", "TLS: certificate verify failed")
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.mark.parametrize("offered", [["http/1.1"], ["foo"], ["smtp", "http/1.1"]])
def test_a_client_that_offers_only_other_protocols_is_told_so(
    sealed: BrokerProcess, clients: Clients, offered: list[str]
) -> None:
    with (
        listed(sealed, NO_HTTP2),
        pytest.raises(ssl.SSLError, match=r"(?i)no.application.protocol"),
    ):
        shake_hands(sealed, trusting(own_certificate(sealed), *offered))
    is_fine(sealed, clients)


def test_a_tool_that_offers_no_protocol_sees_the_certificate_and_is_let_go(sealed: BrokerProcess) -> None:
    with listed(sealed, NO_HTTP2):
        shown = ssl.get_server_certificate(address(sealed), ca_certs=str(own_certificate(sealed)))
    assert shown == own_certificate(sealed).read_text()


def test_half_a_hello_is_waited_for_so_long_and_listed(sealed: BrokerProcess, clients: Clients) -> None:
    with listed(sealed, SILENT), socket.create_connection(address(sealed), 3 * SECONDS) as plain:
        plain.sendall(b"\x16\x03\x01\x02\x00\x01")
        is_fine(sealed, clients)
        assert plain.recv(4096) == b""


@pytest.mark.parametrize(
    "said", [b"\x16\x03\x01\x00\x05hello", b"\x16" + PREFACE], ids=["no hello", "a preface"]
)
def test_what_is_no_hello_is_listed(sealed: BrokerProcess, said: bytes) -> None:
    with listed(sealed, *NO_HELLO), socket.create_connection(address(sealed), SECONDS) as plain:
        plain.sendall(said)
        assert plain.recv(4096) == b""


@pytest.mark.parametrize("version", VERSIONS)
def test_a_plaintext_preface_behind_a_handshake_ends_the_connection_alone(
    sealed: BrokerProcess, clients: Clients, version: ssl.TLSVersion
) -> None:
    context = trusting(own_certificate(sealed))
    context.maximum_version = version
    with (
        socket.create_connection(address(sealed), SECONDS) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as opened,
        listed(sealed, "TLS: wrong version number"),
    ):
        assert opened.recv(4096)[3] == SETTINGS
        os.write(opened.fileno(), PREFACE)
        assert ends(opened)
    is_fine(sealed, clients)


def test_tls_behind_a_plaintext_preface_ends_the_connection_alone(
    sealed: BrokerProcess, clients: Clients
) -> None:
    with (
        socket.create_connection(address(sealed), SECONDS) as plain,
        listed(sealed, "HTTP/2: frame size error"),
    ):
        plain.sendall(PREFACE + b"\x16\x03\x01\x00\x05hello" * 8)
        assert ends(plain)
    is_fine(sealed, clients)


def ends(connection: socket.socket) -> bool:
    """Read until the other side has hung up."""
    try:
        while connection.recv(4096):
            pass
    except (ConnectionResetError, ssl.SSLError):
        pass
    return True


def test_a_client_that_leaves_in_the_handshake_is_listed(sealed: BrokerProcess, clients: Clients) -> None:
    context, out = trusting(own_certificate(sealed)), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="127.0.0.1").do_handshake()
    with listed(sealed, LEFT), socket.create_connection(address(sealed), SECONDS) as plain:
        plain.sendall(out.read())
        assert plain.recv(1) == b"\x16"
    is_fine(sealed, clients)


def files_of(folder: Path, *names: str) -> list[str]:
    """A certificate and its key as options; both files are there."""
    certificate, key = make_self_signed(list(names))
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


@pytest.fixture(scope="module")
def vouching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker for clients of one authority, `authority.pem` beside its store, with its key."""
    folder = tmp_path_factory.mktemp("vouching")
    write_pair(folder, "authority", *an_authority())
    yield from serving(BrokerProcess(folder / "store", "--tls-clients", str(folder / "authority.pem")))


def shown(broker: BrokerProcess, version: ssl.TLSVersion, pair: tuple[Path, Path] | None) -> bytes:
    """What the broker says first to a client with this certificate: nothing if it hangs up."""
    context = trusting(own_certificate(broker))
    context.maximum_version = version
    if pair:
        context.load_cert_chain(*pair)
    try:
        with (
            socket.create_connection(address(broker), SECONDS) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as opened,
        ):
            return opened.recv(4096)
    except (ssl.SSLError, ConnectionResetError):
        return b""


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("whose", ["nobody's", "expired", "another authority's"])
def test_a_client_without_a_valid_certificate_is_let_go_and_listed(
    vouching: BrokerProcess, tmp_path: Path, version: ssl.TLSVersion, whose: str
) -> None:
    authority = vouching.store.with_name("authority.pem")
    good = write_pair(tmp_path, "good", *issued(authority, 9))
    pair = None
    if whose == "expired":
        pair = write_pair(tmp_path, "expired", *issued(authority, -1))
    elif whose == "another authority's":
        pair = write_pair(tmp_path, "other", *make_self_signed(["somebody"]))
    with listed(vouching, *NO_CERTIFICATE):
        assert shown(vouching, version, pair) == b""
        assert shown(vouching, version, good)[3] == SETTINGS


def test_an_expired_certificate_of_the_broker_is_warned_of_and_told_by_the_doctor(tmp_path: Path) -> None:
    write_pair(tmp_path, "authority", *an_authority())
    authority = tmp_path / "authority.pem"
    certificate, key = write_pair(tmp_path, "expired", *issued(authority, -1))
    options = ["--tls-certificate", str(certificate), "--tls-key", str(key)]
    for broker in serving(BrokerProcess(tmp_path / "store", *options)):
        assert "TLS certificate has expired" in broker.store.with_suffix(".log").read_text()
        with (
            listed(broker, "TLS: the client says certificate expired"),
            pytest.raises(ssl.SSLCertVerificationError, match="expired"),
        ):
            shake_hands(broker, trusting(authority))
        told = tidewheel("doctor", "client", broker.listen, "--ca", str(authority))
        assert (told.returncode, "expired" in told.stdout) == (1, True), told.stdout + told.stderr


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
        with listed(broker, PLAINTEXT), grpc.insecure_channel(broker.listen) as channel:
            ask = channel.unary_unary("/apache.rocketmq.v2.MessagingService/QueryRoute")
            with pytest.raises(grpc.RpcError) as refused:
                ask(b"", timeout=SECONDS)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "TLS only" in refused.value.details()


def test_a_broker_that_stops_refuses_nobody(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "store")
    broker.start()
    with socket.create_connection(address(broker), SECONDS) as plain:
        plain.sendall(PREFACE + bytes([0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]))
        assert plain.recv(4096)[3] == SETTINGS
        assert broker.stop() == 0
        assert ends(plain)
    assert "connection refused" not in broker.store.with_suffix(".log").read_text()
