"""Nodes that serve TLS call each other over TLS, and only the node that the shared log tells of."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import urlopen
from uuid import uuid4

import grpc
import pytest

from services.front.certificates import make_self_signed
from services.rpc.generated import definition_pb2, service_pb2
from sharedlog import postgres
from tests.acceptance.test_cluster import METADATA, SEGMENT_BYTES, SERVICE, SmallNode
from tests.certificates import an_authority, issued, write_pair
from tests.command import tidewheel
from tests.postgresql import running_postgresql

OK = definition_pb2.Code.OK
BODY = b"nobody between two nodes reads this"
SECONDS = 30


class Tapped:
    """A wire to a port: it keeps what goes through, can be cut, and may lead elsewhere from then on."""

    def __init__(self, stack: ExitStack) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.leads_to = ""
        self.heard = bytearray()
        self._ends: list[socket.socket] = []
        stack.callback(self.cut)
        stack.callback(self._listening.close)
        Thread(target=self._take, daemon=True).start()

    def cut(self) -> None:
        """End what is connected."""
        while self._ends:
            one = self._ends.pop()
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _take(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                host, _, port = self.leads_to.rpartition(":")
                far = socket.create_connection((host, int(port)))
                self._ends += near, far
                for one, other in ((near, far), (far, near)):
                    Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while said := one.recv(65_536):
                self.heard += said
                other.sendall(said)
            other.shutdown(socket.SHUT_WR)


class Impostor:
    """Speaks HTTP/2 over TLS at an address of its own, with its own certificate; counts who trusts it."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.trusted_count = self.met_count = 0
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.set_alpn_protocols(["h2"])
        self._context.load_cert_chain(*write_pair(folder, "impostor", *make_self_signed(["127.0.0.1"])))
        stack.callback(self._listening.close)
        Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        with suppress(OSError):
            while True:
                one, _ = self._listening.accept()
                self.met_count += 1
                with one, suppress(OSError), self._context.wrap_socket(one, server_side=True) as opened:
                    self.trusted_count += bool(opened.recv(1))


class SealedNode(SmallNode):
    """A node whose ports take nothing but TLS, with the certificate of these files."""

    def __init__(
        self, folder: Path, name: str, cluster: str, pair: tuple[Path, Path], trusts: Path, *options: str
    ) -> None:
        super().__init__(folder, name, cluster)
        self.pair, self._trusts = pair, trusts
        self.options += ("--tls-certificate", str(pair[0]), "--tls-key", str(pair[1]))
        self.options += ("--plaintext", "off", "--http-tls", "on", *options)

    @property
    def url(self) -> str:
        """Where its HTTP is."""
        return f"https://{self.http}"

    def view(self) -> dict[str, Any]:
        """What the node says of itself."""
        context = ssl.create_default_context(cafile=str(self._trusts))
        with urlopen(f"{self.url}/api/cluster", timeout=5, context=context) as answer:
            return dict(json.load(answer))

    def send(self, seconds: float = SECONDS) -> None:
        """Send a message as a client that verifies whom it has dialled, and has a certificate."""
        message = definition_pb2.Message(
            topic=definition_pb2.Resource(name="orders"),
            body=BODY,
            system_properties=definition_pb2.SystemProperties(message_id=uuid4().hex),
        )
        certificate, key = self.pair
        credentials = grpc.ssl_channel_credentials(
            self._trusts.read_bytes(), key.read_bytes(), certificate.read_bytes()
        )
        with grpc.secure_channel(self.listen, credentials) as channel:
            reply = channel.unary_unary(
                SERVICE + "SendMessage",
                request_serializer=service_pb2.SendMessageRequest.SerializeToString,
                response_deserializer=service_pb2.SendMessageResponse.FromString,
            )(service_pb2.SendMessageRequest(messages=[message]), metadata=METADATA, timeout=seconds)
        assert reply.status.code == OK, reply


class Pair:
    """A leader with a wire before it, and a node that follows; an authority has signed both certificates."""

    def __init__(self, stack: ExitStack, folder: Path, cluster: str, *options: str) -> None:
        self.folder, self.wire = folder, Tapped(stack)
        self.authority = write_pair(folder, "authority", *an_authority())[0]
        given = (folder, "a", cluster, self.pair("a"), self.authority, *options)
        self.leader = SealedNode(*given, "--advertise", self.wire.address)
        self.other = SealedNode(folder, "b", cluster, self.pair("b"), self.authority, *options)

    def pair(self, name: str) -> tuple[Path, Path]:
        """A certificate of this node, and its key: another one each time."""
        return write_pair(self.folder, name, *issued(self.authority, 90))

    def sent_over_http(self, topic: str) -> None:
        """Let the node that follows take a message by HTTP."""
        trusts = {"TIDEWHEEL_HTTP_CA": str(self.authority)}
        sent = tidewheel("send", topic, "by HTTP", "--http", self.other.url, environment=trusts)
        assert sent.returncode == 0, sent.stderr


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with running_postgresql(syncs=True) as url:
        yield url.replace("postgresql+psycopg", "postgresql")


@pytest.fixture(params=["servers", "servers and clients"])
def two(
    tmp_path: Path,
    database: str,
    request: pytest.FixtureRequest,
    eventually: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Pair]:
    """Node a leads, node b follows; certificates are asked of servers, or of clients too."""
    monkeypatch.setattr(postgres, "PARTITION_RECORDS", 5)
    monkeypatch.setenv("CHECKPOINT_RECORDS", "10")
    url = f"{database}&log={tmp_path.name}"
    assert tidewheel("cluster", "create", url, "--segment-bytes", SEGMENT_BYTES).returncode == 0
    clients = ("--tls-clients", str(tmp_path / "authority.pem")) if "clients" in request.param else ()
    with ExitStack() as stack:
        pair = Pair(stack, tmp_path, url, *clients)
        pair.leader.start()
        pair.wire.leads_to = pair.leader.listen
        stack.callback(stopped, pair.leader)
        eventually(lambda: pair.leader.role() == "leading")
        pair.other.start()
        stack.callback(stopped, pair.other)
        eventually(lambda: pair.other.view()["leader"])
        yield pair


def stopped(node: SealedNode) -> None:
    """Stop a node that still runs."""
    assert node.process is not None
    if node.process.poll() is None:
        assert node.stop() == 0, node.log()[-3_000:]


def test_what_a_node_forwards_goes_over_tls_and_to_the_node_that_the_log_tells_of(
    two: Pair, eventually: Any
) -> None:
    two.other.send()
    assert two.wire.heard.startswith(b"\x16"), "the leader was called, and by a hello of TLS"
    assert BODY not in two.wire.heard
    two.sent_over_http("papers")

    # Somebody else answers at the leader's address.
    with ExitStack() as stack:
        impostor = Impostor(stack, two.folder)
        two.wire.leads_to = impostor.address
        two.wire.cut()
        with pytest.raises(grpc.RpcError) as refused:
            two.other.send(seconds=3)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        said = f"What answers at {two.wire.address} does not show the certificate that its node has told"
        assert said in refused.value.details()
        assert (impostor.met_count > 0, impostor.trusted_count) == (True, 0)
        two.wire.leads_to = two.leader.listen
        two.wire.cut()
        two.other.send()

    # The leader's certificate is renewed while it leads.
    for _ in range(2):
        two.pair("a")
        two.wire.cut()
        two.other.send()
        two.sent_over_http("papers")
    assert two.leader.view()["epoch"] == two.other.view()["epoch"] == 1

    # A copy comes from a node with a renewed certificate, too.
    eventually(lambda: two.leader.view()["trimmed_below"] > 0)
    assert two.other.stop() == 0
    assert tidewheel("cluster", "refetch", "--store", two.other.store).returncode == 0
    two.other.start()
    eventually(lambda: f"node a, {two.leader.url}" in two.other.log())
    eventually(lambda: two.other.role() == "following")
    two.other.send()
    assert BODY not in two.wire.heard


def test_a_node_that_others_would_not_let_in_does_not_start(tmp_path: Path, database: str) -> None:
    url = f"{database}&log={tmp_path.name}"
    assert tidewheel("cluster", "create", url, "--segment-bytes", SEGMENT_BYTES).returncode == 0
    authority, _ = write_pair(tmp_path, "authority", *an_authority())
    certificate, key = write_pair(tmp_path, "own", *make_self_signed(["127.0.0.1"]))
    options = ("--tls-certificate", certificate, "--tls-key", key, "--tls-clients", authority)
    node = ("serve", "--cluster", url, "--node", "a", "--store", tmp_path / "a", "--listen", "127.0.0.1:0")
    refused = tidewheel(*node, "--http", "127.0.0.1:0", *options)
    assert refused.returncode == 2, refused.stderr
    assert "Nodes are each other's clients" in refused.stderr
