"""A node trusts the certificate that another one has told, whoever has signed it, and no other."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from threading import Thread

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from commitlog.disk.real_disk import RealDisk
from services.cluster.copies import transfer
from services.cluster.copies.checkpoints import find_copies
from services.cluster.errors import CopyRefused
from services.cluster.forwarding.channels import channel_to, is_certificate_error
from services.cluster.peers import (
    CERTIFICATE_BYTES_MAX,
    CertificateMismatch,
    Identity,
    connect_to,
    follow_certificate,
    load_identity,
    name_in,
)
from services.front.certificates import TlsFiles, make_self_signed, make_server_context
from sharedlog.engine import Head
from sharedlog.fold import Fold, Position
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY, Kind, SharedRecord, encode, encode_facts
from tests.certificates import an_authority, issued, write_pair
from tests.genesis import genesis_of
from tests.memory_engine import MemoryEngine
from tidewheel.errors import ConfigurationError

ANSWER = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
CLUSTER = b"one cluster's id"
SECONDS = 60


def kinds(folder: Path) -> dict[str, tuple[bytes, bytes]]:
    """A certificate and its key of each kind that a node may have."""
    authority, _ = write_pair(folder, "authority", *an_authority())
    return {
        "its own": make_self_signed(["127.0.0.1", "localhost"]),
        "signed": issued(authority, 9),
        "an authority": named(x509.SubjectAlternativeName([x509.DNSName("node.example")]), is_authority=True),
        "wildcard": named(x509.SubjectAlternativeName([x509.DNSName("*.shop.example")])),
        "no such extension": named(None),
    }


def named(names: x509.ExtensionType | None, *, is_authority: bool = False) -> tuple[bytes, bytes]:
    """A certificate with these names, or none, that has signed itself; and its key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name.from_rfc4514_string("CN=broker.example")
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=9))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    if names is not None:
        certificate = certificate.add_extension(names, critical=False)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), pem


@contextmanager
def serving(context: ssl.SSLContext | None) -> Iterator[str]:
    """Answer each request with 404, over TLS if there is a context; yields host and port."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with suppress(OSError):
            while True:
                one, _ = listening.accept()
                with one, suppress(OSError):
                    opened = one if context is None else context.wrap_socket(one, server_side=True)
                    if opened.recv(65_536):
                        opened.sendall(ANSWER)
                    opened.close()

    Thread(target=answer, daemon=True).start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


@pytest.mark.parametrize("kind", ["its own", "signed", "an authority", "wildcard", "no such extension"])
def test_http_takes_the_certificate_that_was_told_and_no_other(tmp_path: Path, kind: str) -> None:
    pair = kinds(tmp_path)[kind]
    files = TlsFiles(*write_pair(tmp_path, "node", *pair))
    others = [make_self_signed(["127.0.0.1"])[0], (tmp_path / "authority.pem").read_bytes()]
    with serving(make_server_context(files)) as address:
        connection = connect_to(f"https://{address}", pair[0].decode(), SECONDS)
        connection.request("GET", "/")
        assert connection.getresponse().status == 404
        connection.close()
        for other in others[: 1 if kind == "signed" else 2]:
            with pytest.raises(
                CertificateMismatch, match=f"at https://{address} does not show the certificate"
            ):
                connect_to(f"https://{address}", other.decode(), SECONDS)


def test_where_nothing_is_told_or_nothing_is_served_over_tls_nothing_is_sent(tmp_path: Path) -> None:
    told = make_self_signed(["127.0.0.1"])[0].decode()
    with serving(None) as address:
        with pytest.raises(CertificateMismatch, match="does not show the certificate"):
            connect_to(f"https://{address}", told, SECONDS)
        with pytest.raises(CertificateMismatch, match="has told no certificate in the shared log"):
            connect_to(f"https://{address}", "", SECONDS)
        connection = connect_to(f"http://{address}", "", SECONDS)
        connection.request("GET", "/")
        assert connection.getresponse().status == 404
        connection.close()


def test_a_copy_is_fetched_from_no_other_node(tmp_path: Path) -> None:
    files = TlsFiles(*write_pair(tmp_path, "node", *make_self_signed(["127.0.0.1"])))
    (tmp_path / "store").mkdir()
    disk = RealDisk(tmp_path / "store")
    with serving(make_server_context(files)) as address:
        for told, said in (
            (files.certificate.read_text(), "gives no copy"),
            (make_self_signed(["x"])[0].decode(), "does not show"),
        ):
            with pytest.raises(CopyRefused, match=said):
                transfer.fetch_copy(f"https://{address}", told, "secret", disk, lambda _: None)
    disk.close()


@pytest.mark.parametrize("kind", ["its own", "signed", "an authority", "wildcard", "no such extension"])
def test_grpc_takes_the_certificate_that_was_told_and_no_other(tmp_path: Path, kind: str) -> None:
    certificate, key = kinds(tmp_path)[kind]

    async def call(port: int, told: str) -> bytes:
        channel = channel_to(f"127.0.0.1:{port}", told, Identity(), [])
        try:
            return bytes(await channel.unary_unary("/any/method")(b"said", timeout=SECONDS))
        finally:
            await channel.close(None)

    async def calls() -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Echo(),))
        credentials = grpc.ssl_server_credentials([(key, certificate)])
        port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        assert await call(port, certificate.decode()) == b"said"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(port, make_self_signed(["127.0.0.1"])[0].decode())
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert is_certificate_error(refused.value)
        await server.stop(None)

    asyncio.run(calls())


class Echo(grpc.GenericRpcHandler):
    """Answers each call with its request."""

    def service(self, _: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        async def echo(request: bytes, _: object) -> bytes:
            return request

        return grpc.unary_unary_rpc_method_handler(echo)


def test_who_does_not_listen_is_not_another_node() -> None:
    async def call() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        channel = channel_to(f"127.0.0.1:{port}", make_self_signed(["127.0.0.1"])[0].decode(), Identity(), [])
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary("/any/method")(b"said", timeout=SECONDS)
        assert not is_certificate_error(refused.value)
        await channel.close(None)

    asyncio.run(call())


def test_a_name_of_a_certificate_is_one_that_it_says(tmp_path: Path) -> None:
    found = {kind: name_in(pair[0].decode()) for kind, pair in kinds(tmp_path).items()}
    assert found == {
        "its own": "localhost",
        "signed": "127.0.0.1",
        "an authority": "node.example",
        "wildcard": "node.shop.example",
        "no such extension": "broker.example",
    }


def test_what_is_told_is_the_first_of_a_chain_alone_and_follows_the_files(tmp_path: Path) -> None:
    authority, _ = write_pair(tmp_path, "authority", *an_authority())
    leaf, key = issued(authority, 9)
    files = TlsFiles(*write_pair(tmp_path, "node", leaf + authority.read_bytes(), key))
    current = follow_certificate(files)
    assert current() == Identity(leaf.decode())
    anew = make_self_signed(["127.0.0.1"])
    write_pair(tmp_path, "node", *anew)
    assert current() == Identity(anew[0].decode())
    files.key.write_bytes(key)  # another one's: what is served goes on, and so does what is told
    assert current() == Identity(anew[0].decode())


@pytest.mark.parametrize("names", [0, 2_000])
def test_a_certificate_without_a_name_or_too_long_is_no_nodes(tmp_path: Path, names: int) -> None:
    told = [x509.DNSName(f"node-{number}.example") for number in range(names)]
    pair = named(x509.SubjectAlternativeName(told or [x509.RFC822Name("somebody@example")]))
    assert (len(pair[0]) > CERTIFICATE_BYTES_MAX) == bool(names)
    with pytest.raises(ConfigurationError, match="names no host, or is longer than 16384 bytes"):
        load_identity(TlsFiles(*write_pair(tmp_path, "node", *pair)))


def test_where_clients_need_a_certificate_a_nodes_must_be_good_for_one(tmp_path: Path) -> None:
    authority, _ = write_pair(tmp_path, "authority", *an_authority())
    leaf, key = issued(authority, 9)
    good = TlsFiles(*write_pair(tmp_path, "good", leaf, key), clients=authority)
    assert load_identity(good) == Identity(leaf.decode(), leaf, key)
    for name, pair in (("own", make_self_signed(["127.0.0.1"])), ("ended", issued(authority, -1))):
        with pytest.raises(ConfigurationError, match="no other node would let this one in"):
            load_identity(TlsFiles(*write_pair(tmp_path, name, *pair), clients=authority))


def test_a_node_without_a_fold_learns_the_certificate_that_the_leader_has_told_last() -> None:
    nowhere = Position(0, CHAIN_AT_GENESIS)
    engine = MemoryEngine(Random(1), Head(0, NOBODY, nowhere))
    engine.is_well = True
    engine.create_log(encode(genesis_of(CLUSTER)))
    told = [
        (Kind.EPOCH, b"h" * 16, {"node": "a", "certificate": "first"}),
        (Kind.BEAT, b"h" * 16, {"clock_ms": 1, "certificate": "second"}),
        (Kind.BEAT, b"h" * 16, {"clock_ms": 2}),
        (Kind.CHECKPOINT, NOBODY, {"node": "b", "next_record": 2, "end": 0, "certificate": "of b"}),
    ]
    for kind, holder, facts in told:
        one = SharedRecord(CLUSTER, kind, 1, holder, 0, CHAIN_AT_GENESIS, encode_facts(facts))
        engine.append_unchecked(encode(one))
    found = find_copies(engine, CLUSTER, "c")
    assert found.epoch is not None
    assert found.epoch.facts == {"node": "a", "certificate": "second"}
    assert [(node, one.certificate) for node, one in found.copies] == [("b", "of b")]
    fold = Fold(CLUSTER)
    for one in engine.read(0, 1 << 20):
        fold.apply_record(one.offset, one.stored)
    assert fold.leads == found.epoch.facts
    assert Fold.thaw(fold.freeze()).leads == fold.leads
