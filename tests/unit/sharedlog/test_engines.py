"""Tests the parsing of shared log URLs and the removal of passwords from them."""

from __future__ import annotations

from pathlib import Path
from random import Random

import psycopg
import pytest

from sharedlog.engines import create, engine_of, read_genesis, without_password
from sharedlog.errors import ClusterExists, NoCluster, SessionRefused
from sharedlog.holdings import Holding
from sharedlog.kafka import KafkaLog
from sharedlog.record import NOBODY, Kind, SharedRecord, encode, encode_facts
from sharedlog.versions import SUPPORTED
from tests.memory_engine import MemoryEngine
from tests.postgresql import running_postgresql
from tidewheel.errors import ConfigurationError


@pytest.mark.parametrize("url", ["", "db/orders", "redis://db/0", "postgresql://db", "postgresql://db/"])
def test_what_names_no_shared_log_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(ConfigurationError, match="postgresql://USER@HOST:PORT/DATABASE"):
        engine_of(url)


def test_a_name_that_would_be_sql_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="letters, digits and _"):
        engine_of("postgresql://db/orders?log=x;drop")


def test_a_password_is_not_shown() -> None:
    assert (
        without_password("postgresql://u:secret@db:5432/orders?log=a")
        == "postgresql://u@db:5432/orders?log=a"
    )
    assert without_password("postgresql://db/orders") == "postgresql://db/orders"
    for password in ("p/ss", "p?ss", "p/s?s", "p@ss", "p:s/s", "p#s?s", "12/3"):
        shown = without_password(f"postgresql://u:{password}@db:5432/orders?log=a")
        assert shown == "postgresql://u@db:5432/orders?log=a", password
    given = "postgresql://db:5432,[::1]:5433/orders?user=u@srv"
    assert without_password(given) == given
    given = "postgresql:///orders?password=secret&host=db&user=u"
    assert without_password(given) == "postgresql:///orders?host=db&user=u"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:sec ret@db/orders",
        "postgresql://u:sec%zzret@db/orders",
        "postgresql://u:sec@ret@db/orders",
        "postgresql://u:secret@[::1/orders",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        engine_of(url)
    assert "sec" not in str(raised.value)
    assert "ret" not in str(raised.value)


def test_a_cluster_begins_once_and_each_log_of_a_database_is_its_own() -> None:
    with running_postgresql() as server:
        url = server.replace("postgresql+psycopg", "postgresql")
        one, other = engine_of(url), engine_of(f"{url}&log=other")
        cluster = create(one, {"segment_bytes": 8 << 20})
        began = {"segment_bytes": 8 << 20, "finalized": SUPPORTED}
        assert read_genesis(one) == (cluster, began)
        with pytest.raises(ClusterExists, match="another"):
            create(one, {})
        holding = Holding(7, 4096, "http://a:8088", "s", {"segment_bytes": 8 << 20})
        facts = encode_facts(holding.facts("a"))
        one.append_unchecked(encode(SharedRecord(cluster, Kind.CHECKPOINT, 0, NOBODY, 4096, 1, facts)))
        with psycopg.connect(url) as connection:
            connection.execute("DELETE FROM tidewheel_record WHERE record = 0")
        assert one.bounds() == (1, 2)
        assert read_genesis(one) == (cluster, {"segment_bytes": 8 << 20}), "a CHECKPOINT tells, too"
        with pytest.raises(NoCluster, match="has no tables other_head"):
            read_genesis(other)
        assert create(other, {}) != cluster
        folder = url.partition("host=")[2]
        again = engine_of(f"postgresql:///postgres?user=shop&host={folder}")
        assert read_genesis(again).cluster == cluster
        again.close()
        one.close()
        other.close()


def test_what_another_cluster_wrote_before_the_genesis_tells_nothing() -> None:
    before, cluster = bytes(16), bytes(range(16))
    engine = MemoryEngine(Random(1))
    copy = Holding(7, 4096, "http://a:8088", "s", {"segment_bytes": 8 << 20}).facts("a")
    for kind, facts in ((Kind.BEAT, {}), (Kind.CHECKPOINT, copy)):
        engine.create_log(encode(SharedRecord(before, kind, 3, NOBODY, 4096, 1, encode_facts(facts))))
    with pytest.raises(NoCluster, match="No record there tells"):
        read_genesis(engine)
    engine.create_log(
        encode(SharedRecord(cluster, Kind.GENESIS, 0, NOBODY, 0, 1, encode_facts({"its": "own"})))
    )
    assert read_genesis(engine) == (cluster, {"its": "own"})


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("kafka:///orders", "'' in the URL is no server"),
        ("kafka://a/orders", "'a' in the URL is no server"),
        ("kafka://a:9092,b/orders", "'b' in the URL is no server"),
        ("kafka://a:9092,/orders", "'' in the URL is no server"),
        ("kafka://a:9092", "'' in the URL is no topic"),
        ("kafka://a:9092/..", "'..' in the URL is no topic"),
        ("kafka://a:9092/orders/1", "'orders/1' in the URL is no topic"),
        ("kafka://a:9092/orders?acks=1", "acks in the URL: it takes security.protocol"),
        ("kafka://a:9092/orders?sasl.password=x", "sasl.password in the URL: it takes"),
        ("kafka://a:9092/orders?password_file=x", "password_file in the URL is of no user"),
        ("kafka://me:x@a:9092/orders?password_file=x", "has a password and a password_file: give one"),
        ("postgresql://me:x@a/orders?password_file=x", "has a password and a password_file: give one"),
    ],
)
def test_what_is_wrong_with_a_url_of_kafka_is_told(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        engine_of(url)
    assert said in str(raised.value)


def test_a_url_names_a_topic_of_kafka_and_what_lets_in() -> None:
    pytest.importorskip("confluent_kafka")
    url = "kafka://me:a%40b@a:9092,[::1]:9093/orders.1?security.protocol=SASL_SSL&sasl.mechanism=PLAIN"
    log = engine_of(url)
    assert isinstance(log, KafkaLog)
    assert (log._servers, log._topic) == ("a:9092,[::1]:9093", "orders.1")
    assert (log._settings["sasl.username"], log._settings["sasl.password"]) == ("me", "a@b")
    assert without_password(url).startswith("kafka://me@a:9092,[::1]:9093/orders.1?")


def test_a_url_names_the_file_of_a_password_which_each_connection_reads(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka")
    file = tmp_path / "password"
    url = f"kafka://me@a:9092/orders?sasl.mechanism=PLAIN&password_file={file}"
    log = engine_of(url)
    assert isinstance(log, KafkaLog)
    with pytest.raises(SessionRefused, match="cannot be read"):
        log._client_settings({})
    for password in ("first", "second"):
        file.write_text(f"{password}\n")
        assert log._client_settings({})["sasl.password"] == password
    assert without_password(url) == url


def test_a_log_whose_beginning_was_deleted_says_so() -> None:
    engine = MemoryEngine(Random(1))
    engine.is_well = True
    cluster = create(engine, {})  # type: ignore[arg-type]
    for _ in range(3):
        engine.append_unchecked(
            encode(SharedRecord(cluster, Kind.HOLD, 0, NOBODY, 0, 0, encode_facts(Holding(0).facts("a"))))
        )
    engine.trim(2)
    with pytest.raises(NoCluster, match="It begins at record 2, and ends at 4: what was before"):
        read_genesis(engine)
