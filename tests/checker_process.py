"""The checker (`tests/checker`) as a process of its own, over a history and the raw log of an engine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final
from urllib.parse import urlsplit

from sharedlog.engines import engine_of, read_genesis
from sharedlog.errors import EngineRefused, EngineUnavailable
from sharedlog.holdings import Holding
from sharedlog.record import NOBODY, Kind, SharedRecord, encode, encode_facts
from tests.history_file import write_log

CHECKER: Final = Path(__file__).parent / "checker" / "check.py"
KEEPER: Final = "keeper"
HOLD_EACH_RECORDS: Final = 500
PAUSE_SECONDS: Final = 0.1
ROWS_MAX: Final = 10_000
_ROWS: Final = f"""
SELECT record, floor(extract(epoch FROM taken_at) * 1000)::bigint, stored FROM tidewheel_record
WHERE record >= %s ORDER BY record LIMIT {ROWS_MAX}
"""

Row = tuple[int, int, bytes]
"""A record as an engine has it: its offset, when it was taken in ms since 1970, its bytes."""
Read = Callable[[int], list[Row]]
"""Return what is there now from an offset on, or a part of it; nothing at the end."""


@contextmanager
def kept_log(url: str, path: Path) -> Iterator[None]:
    """Write all that comes into a shared log to a file, as it comes: nodes trim the log.

    They trim nothing that was not read: this holds the trim, as a node does that copies, under the name
    `KEEPER`. At the end the file has all that was there when the block ended.
    """
    is_over, failed = Event(), []

    def go_on() -> None:
        try:
            with holding(url) as hold:
                write_log(path, 0, rows_of(url, is_over, hold))
        except BaseException as error:
            failed.append(error)

    thread = Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    if failed:
        raise failed[0]


@contextmanager
def holding(url: str) -> Iterator[Callable[[int], None]]:
    """Give what says to the nodes from which record on the log is to be kept."""
    with closing(engine_of(url)) as engine:
        cluster, told = read_genesis(engine).cluster, [-HOLD_EACH_RECORDS]

        def hold(next_record: int) -> None:
            if next_record - told[0] < HOLD_EACH_RECORDS:
                return
            facts = encode_facts(Holding(next_record).facts(KEEPER))
            with suppress(EngineUnavailable, EngineRefused):  # then it is said again
                engine.append_unchecked(encode(SharedRecord(cluster, Kind.HOLD, 0, NOBODY, 0, 0, facts)))
                told[0] = next_record

        yield hold


def rows_of(url: str, is_over: Event, hold: Callable[[int], None]) -> Iterator[Row]:
    """Yield the records of a shared log as they come, until it is over and nothing more is there."""
    parts, next_offset = urlsplit(url), 0
    is_kafka = parts.scheme == "kafka"
    with of_kafka(parts.netloc, parts.path.strip("/")) if is_kafka else of_postgres(url) as read:
        while True:
            was_over = is_over.is_set()
            hold(next_offset)
            while found := read(next_offset):
                assert found[0][0] == next_offset, f"records {next_offset} and on were trimmed, and not read"
                next_offset = found[-1][0] + 1
                yield from found
                hold(next_offset)
            if was_over:
                return
            is_over.wait(PAUSE_SECONDS)


@contextmanager
def of_postgres(conninfo: str) -> Iterator[Read]:
    """Read a log that lies in a database."""
    import psycopg

    held: list[psycopg.Connection[Any]] = []

    def read(offset: int) -> list[Row]:
        try:
            if not held:
                held.append(psycopg.connect(conninfo, autocommit=True))
            return held[0].execute(_ROWS, (offset,)).fetchall()
        except psycopg.OperationalError:  # the server is down: asked again
            held.clear()
            return []

    yield read
    for connection in held:
        connection.close()


@contextmanager
def of_kafka(servers: str, topic: str) -> Iterator[Read]:
    """Read a log that lies in a topic's only partition."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "dump", "enable.auto.commit": False, "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])

    def read(offset: int) -> list[Row]:
        found: list[Row] = []
        try:
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
        except KafkaException:  # one of its servers is down: asked again
            return []
        while offset + len(found) < end and len(found) < ROWS_MAX:
            message = consumer.poll(1.0)
            if message is None or message.error() is not None:
                break
            at = message.offset()
            assert at is not None
            found.append((at, message.timestamp()[1], message.value() or b""))
        return found

    try:
        yield read
    finally:
        consumer.close()


def judged(history: Path, log: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Run the checker; return its exit code and its report (of bad input: the sentence, as "said")."""
    command = [sys.executable, "-S", "-E", "-s", str(CHECKER), str(history), str(log), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    return done.returncode, json.loads(done.stdout) if done.stdout else {"said": done.stderr}
