"""Tests a shared log in Apache Kafka, including the order of appends and the loss of the log's end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, dropwhile
from threading import Thread

import pytest

from sharedlog import kafka
from sharedlog.engine import Head, Stored
from sharedlog.engines import engine_of
from sharedlog.errors import ClusterExists, EngineRefused, EngineUnavailable, Halted, LogDamaged, NoCluster
from sharedlog.fold import Fold, Position
from sharedlog.kafka import KafkaLog
from sharedlog.leading import Candidate, Leader
from sharedlog.reading import read_steps
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY, SharedRecord, encode
from tests.genesis import genesis_of
from tests.kafka_cluster import JAVA, KafkaCluster, running_kafka
from tidewheel.errors import ConfigurationError

CLUSTER = b"one cluster's id"
BEGIN = Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS))
NAMES = (f"log{number}" for number in count())
ALL = 1 << 24
QUICK = "broker.session.timeout.ms=2000\nbroker.heartbeat.interval.ms=500\n"
"""These settings allow a killed server to rejoin the cluster quickly."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with running_kafka(settings=QUICK) as cluster:
        yield cluster


@pytest.fixture
def log(cluster: KafkaCluster) -> Iterator[KafkaLog]:
    log = KafkaLog(cluster.bootstrap, next(NAMES))
    log.create_log(BEGIN)
    yield log
    log.close()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeouts of unanswered requests."""
    monkeypatch.setattr(kafka, "ANSWER_SECONDS", 1.0)
    for name in ("delivery.timeout.ms", "request.timeout.ms"):
        monkeypatch.setitem(kafka._PRODUCER, name, 1_500)


def append(log: KafkaLog, *stored: bytes) -> int | None:
    return log.append_if(BEGIN, stored, BEGIN)


def stored_in(log: KafkaLog, offset: int = 0) -> list[tuple[int, bytes]]:
    """Read all records from `offset` on, using as many reads as necessary."""
    found: list[tuple[int, bytes]] = []
    while some := log.read(offset, ALL):
        found += [(one.offset, one.stored) for one in some]
        offset = some[-1].offset + 1
    return found


def append_at_last(log: KafkaLog, stored: bytes) -> int | None:
    """Retry an append until Kafka accepts it.

    An earlier attempt that received no response may also have appended the record.
    """
    while True:
        with suppress(EngineUnavailable):
            return append(log, stored)


def read_at_last(log: KafkaLog, offset: int, but: str = "") -> list[Stored]:
    """Retry a read until it succeeds. If `but` is given, retry until an error message contains this text.

    A Kafka broker continues to return records until it is notified that the topic has been deleted.
    """
    while True:
        try:
            found = log.read(offset, ALL)
        except EngineUnavailable as error:
            if but and but in str(error):
                raise
        else:
            if found or not but:
                return found


def test_records_are_read_as_they_were_appended(log: KafkaLog) -> None:
    assert log.bounds() == (0, 0)
    assert log.read(0, 1) == []
    assert append(log, b"genesis") == 0
    assert append(log, b"one", b"\0two", bytes(900_000)) == 3
    assert stored_in(log) == [(0, b"genesis"), (1, b"one"), (2, b"\0two"), (3, bytes(900_000))]
    assert log.bounds() == (0, 4)
    found = log.read(0, 1)
    assert found[0].appended_ms <= log.read(3, 1)[0].appended_ms
    assert append(log, b"more") == 4
    assert stored_in(log, 4) == [(4, b"more")]


def test_writers_who_race_are_told_where_their_records_are(log: KafkaLog, cluster: KafkaCluster) -> None:
    told: dict[bytes, int | None] = {}

    def write(writer: int) -> None:
        own = KafkaLog(cluster.bootstrap, log._topic)
        for number in range(20):
            name = b"%d-%d" % (writer, number)
            told[name] = append(own, b"before " + name, name)
        own.close()

    writers = [Thread(target=write, args=(number,)) for number in range(3)]
    for one in writers:
        one.start()
    seen = stored_in(log)
    for one in writers:
        one.join()
    seen += stored_in(log, len(seen))
    other = KafkaLog(cluster.bootstrap, log._topic)
    assert seen == stored_in(other)
    other.close()
    assert [offset for offset, _ in seen] == list(range(120))
    for name, offset in told.items():
        lies = seen.index((offset, name)) if offset is not None else [one for _, one in seen].index(name)
        is_back_to_back = seen[lies - 1][1] == b"before " + name
        assert is_back_to_back == (offset is not None)


def test_a_read_has_a_bound_and_at_least_one(log: KafkaLog) -> None:
    append(log, *[bytes(100)] * 10)
    assert len(stored_in(log)) == 10
    assert len(log.read(0, 250)) <= 3
    assert [one.offset for one in log.read(3, 1)] == [3]
    assert log.read(10, ALL) == []


def test_what_is_trimmed_goes_to_the_very_offset(log: KafkaLog) -> None:
    append(log, *(b"%d" % number for number in range(8)))
    assert [offset for offset, _ in stored_in(log)] == list(range(8))
    log.trim(5)
    assert log.bounds() == (5, 8)
    assert stored_in(log) == [(5, b"5"), (6, b"6"), (7, b"7")]
    log.trim(3)
    log.trim(99)
    assert log.bounds() == (8, 8)
    assert log.read(2, ALL) == []
    assert append(log, b"8") == 8
    assert log.read(2, ALL)[0].offset == 8


def test_what_is_trimmed_once_the_bounds_were_told_is_stepped_over(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, *(b"%d" % number for number in range(8)))
    log.trim(5)
    monkeypatch.setattr(log, "_check_bounds", lambda _: (0, 8))
    assert log.read(0, ALL)[0].offset == 5


def test_a_reader_whose_next_records_are_trimmed_reads_what_is_left(
    log: KafkaLog, cluster: KafkaCluster
) -> None:
    append(log, b"0", b"1", b"2")
    assert [one.offset for one in log.read(0, 1)] == [0]
    other = KafkaLog(cluster.bootstrap, log._topic)
    append(other, *[bytes(900_000)] * 30)
    other.trim(32)
    other.close()
    found = log.read(1, ALL)
    assert found[0].offset in (1, 32), "read ahead, or what is left"


def test_a_log_is_founded_once(log: KafkaLog, cluster: KafkaCluster) -> None:
    again = KafkaLog(cluster.bootstrap, log._topic)
    with pytest.raises(ClusterExists, match="already"):
        again.create_log(BEGIN)
    again.close()


def test_a_record_that_kafka_never_takes_is_refused(log: KafkaLog) -> None:
    with pytest.raises(EngineRefused, match="too large"):
        append(log, bytes(kafka.MESSAGE_BYTES_MAX + 1), b"two")
    assert log.bounds() == (0, 0)
    with pytest.raises(EngineUnavailable, match="a part"):
        append(log, b"one", bytes(kafka.MESSAGE_BYTES_MAX + 1), b"three")
    assert stored_in(log) == [(0, b"one")], "no hole"
    assert append(log, bytes(5 << 20)) == 1


@pytest.mark.usefixtures("soon")
def test_a_server_that_is_not_there_proves_nothing() -> None:
    log = KafkaLog("127.0.0.1:9", "none")
    for call in (log.bounds, log.check_settings, lambda: log.read(0, 1), lambda: append(log, b"one")):
        with pytest.raises(EngineUnavailable, match="did not answer"):
            call()
    with pytest.raises(EngineUnavailable, match=r"did not answer: .*refused"):
        log.create_log(BEGIN)
    log.close()


def test_a_topic_that_is_not_there_is_told(cluster: KafkaCluster) -> None:
    log = KafkaLog(cluster.bootstrap, "never")
    with pytest.raises(NoCluster, match="has no topic never"):
        log.read(0, 1)
    log.close()


@pytest.mark.usefixtures("soon")
def test_a_server_that_is_killed_loses_nothing_and_comes_back(log: KafkaLog, cluster: KafkaCluster) -> None:
    assert append(log, b"one") == 0
    assert stored_in(log) == [(0, b"one")]
    (node,) = cluster.nodes
    node.kill()
    with pytest.raises(EngineUnavailable, match="did not answer"):
        append(log, b"two")
    with pytest.raises(EngineUnavailable, match="did not answer"):
        log.read(1, ALL)
    node.start()
    node.wait()
    append_at_last(log, b"three")
    assert {one for _, one in stored_in(log, 1)} == {b"three"}, "what was given up is never sent"


@pytest.mark.usefixtures("soon")
def test_what_a_paused_server_has_not_answered_lands_before_later_appends_or_never(
    log: KafkaLog, cluster: KafkaCluster
) -> None:
    append(log, b"one")
    (node,) = cluster.nodes
    node.pause()
    try:
        with pytest.raises(EngineUnavailable, match="did not answer"):
            append(log, b"two", b"behind two")
    finally:
        node.go_on()
    append_at_last(log, b"three")
    first, *others = (one for _, one in stored_in(log))
    assert first == b"one"
    later = list(dropwhile(b"two".__eq__, others))
    assert others.count(b"two") <= 1
    assert set(later) == {b"three"}, "each append of it that was not answered may be in the log too"


def test_settings_under_which_records_are_lost_are_told_with_what_mends_them(
    log: KafkaLog, cluster: KafkaCluster
) -> None:
    from confluent_kafka.admin import NewPartitions

    assert log.check_settings() == []
    (note,) = log.list_risky_settings()
    assert "has 1 of 3 servers: what is acknowledged is on one machine" in note
    assert "kafka-reassign-partitions.sh" in note
    admin = log._make_admin()
    (done,) = admin.create_partitions([NewPartitions(log._topic, 2)]).values()
    done.result(60)
    while (
        len(notes := log.list_risky_settings()) < 2
    ):  # The loop ends when the Kafka broker has received the new metadata.
        pass
    assert "has 2 partitions, and only the first is the shared log" in notes[0]
    assert log.check_settings() == [], "what cannot be taken back and loses nothing stops nobody"
    log.check_append()
    assert log.bounds() == (0, 0)
    bad = {
        "unclean.leader.election.enable": "true",
        "retention.ms": "604800000",
        "retention.bytes": "1000000",
        "cleanup.policy": "compact",
        "message.timestamp.type": "CreateTime",
        "max.message.bytes": "1000000",
        "flush.messages": "9223372036854775807",
    }
    given = ",".join(f"{name}={value}" for name, value in bad.items())
    entity = ["--entity-type", "topics", "--entity-name", log._topic]
    configs(cluster, "--bootstrap-server", cluster.bootstrap, "--alter", *entity, "--add-config", given)
    said = log.check_settings()
    assert sorted(sentence.split()[0] for sentence in said) == sorted(bad)
    assert "so Kafka deletes records by their age. Set it: kafka-configs.sh" in " ".join(said)
    settings = ",".join(sentence.rpartition("--add-config ")[2] for sentence in said)
    command = said[0].partition("kafka-configs.sh ")[2].rpartition(" ")[0].split()
    configs(cluster, *command, settings)
    assert log.check_settings() == []


def configs(cluster: KafkaCluster, *words: str) -> None:
    """Execute the same command as `kafka-configs.sh`."""
    command = [*JAVA, "-cp", cluster.nodes[0].classes, "kafka.admin.ConfigCommand", *words]
    subprocess.run(command, check=True, capture_output=True)


def deleted(log: KafkaLog) -> None:
    """Delete the topic that contains a log."""
    admin = log._make_admin()
    (done,) = admin.delete_topics([log._topic]).values()
    done.result(60)


@pytest.mark.usefixtures("soon")
def test_a_topic_that_is_deleted_is_gone_once_every_answer_was_that_for_long(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, b"one", b"two")
    assert len(stored_in(log)) == 2
    deleted(log)
    with pytest.raises(EngineUnavailable, match="Unknown"):
        read_at_last(log, 2, but="Unknown")
    with pytest.raises(EngineUnavailable, match="Unknown"):
        log.read(2, ALL)
    unknown = log._is_topic_unknown
    monkeypatch.setattr(kafka, "LOST_SECONDS", 0.0)
    monkeypatch.setattr(log, "_is_topic_unknown", lambda error: False)
    with pytest.raises(EngineUnavailable):
        log.read(2, ALL)
    monkeypatch.setattr(log, "_is_topic_unknown", unknown)
    monkeypatch.setattr(kafka, "LOST_SECONDS", 0.5)
    with pytest.raises(EngineUnavailable, match="Unknown"):
        log.read(2, ALL)  # Any other response restarts the waiting period.
    with pytest.raises(NoCluster, match=r"has no topic log\d+, and had it before, up to record 1"):
        log.read(2, ALL)


def made_anew(log: KafkaLog) -> None:
    """Delete the topic that contains a log, and create an empty topic with the same name."""
    deleted(log)
    other = KafkaLog(log._servers, log._topic)
    other.create_log(BEGIN)
    other.close()


def test_a_log_that_was_made_anew_halts_who_read_it_before(
    log: KafkaLog, cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, b"one", b"two")
    assert len(stored_in(log)) == 2
    assert log.check_settings() == []
    made_anew(log)
    with pytest.raises(EngineUnavailable, match=r"ends at 0, and reached to 2 before"):
        read_at_last(log, 2, but="ends at")
    assert "deleted and made anew" in log.check_settings()[0]
    assert "tidewheel store verify --store STORE" in log.check_settings()[0]
    monkeypatch.setattr(kafka, "LOST_SECONDS", 0.0)
    with pytest.raises(Halted, match="lost the log's end"):
        read_at_last(log, 2)
    with pytest.raises(Halted, match="lost its end"):
        append_at_last(log, b"three")


def test_a_log_that_lost_its_end_and_has_grown_again_halts_who_reads_on(log: KafkaLog) -> None:
    append(log, b"one", b"two")
    assert len(stored_in(log)) == 2
    made_anew(log)
    other = KafkaLog(log._servers, log._topic)
    while append_at_last(other, b"another") != 3:
        pass
    other.close()
    with pytest.raises(Halted, match="not what was read there before"):
        read_at_last(log, 2)


def test_a_record_whose_batch_does_not_match_its_crc_is_named_and_those_around_it_are_read(
    log: KafkaLog, cluster: KafkaCluster
) -> None:
    append(log, b"one", b"two", b"three")
    assert [one for _, one in stored_in(log)] == [b"one", b"two", b"three"]
    log._close_consumer()  # Closing the consumer discards prefetched records.
    append(log, b"four", b"five")
    (node,) = cluster.nodes
    node.stop()
    for spoiled in (b"three", b"four"):
        node.spoil(log._topic, spoiled, bytes(len(spoiled)))
    node.start()
    node.wait()
    other = KafkaLog(cluster.bootstrap, log._topic)
    for reader, offset in ((log, 3), (other, 2)):
        if reader is other:
            assert [one.stored for one in read_at_last(other, 0)] == [b"one", b"two"]
        with pytest.raises(LogDamaged, match=rf"Record {offset} of {log._topic} cannot be read") as raised:
            read_at_last(reader, offset)
        assert raised.value.record == offset
        assert [one.stored for one in read_at_last(reader, 4)] == [b"five"]
    other.close()


def test_records_that_a_retry_has_doubled_count_once(log: KafkaLog) -> None:
    fold, written = Fold(CLUSTER), list[bytes]()

    def write(one: SharedRecord) -> bytes:
        fold.apply_record(len(written), encode(one))
        written.append(encode(one))
        return written[-1]

    genesis = write(genesis_of(CLUSTER))
    epoch = write(Candidate(fold, b"who leads epoch1", {"node": "a"}).epoch)
    leader = Leader(fold)
    (first,) = map(write, leader.make_flush([b"first"]))
    forgets = write(leader.make_beat({"forget": "b"}))
    (second,) = map(write, leader.make_flush([b"second"]))
    # A producer without idempotence may append a record twice in succession, or a second time after later
    # records.
    append(log, *[genesis] * 2, *[epoch] * 2, *[first] * 2, forgets, second, forgets, first)
    reader = Fold(CLUSTER)
    assert len(list(read_steps(log, reader))) == 10
    assert (reader.end, reader.chain, reader.repeated_count) == (fold.end, fold.chain, 4)


def test_the_producer_is_idempotent_and_no_url_says_otherwise() -> None:
    engine = engine_of("kafka://h:1/topic?security.protocol=PLAINTEXT")
    assert isinstance(engine, KafkaLog)
    given = engine._client_settings(kafka._PRODUCER)
    assert (given["enable.idempotence"], given["acks"], given["max.in.flight"]) == (True, "all", 1)
    with pytest.raises(ConfigurationError, match=r"enable.idempotence in the URL: it takes"):
        engine_of("kafka://h:1/topic?enable.idempotence=false")
