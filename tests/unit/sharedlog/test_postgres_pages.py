"""Tests that records on a page with an invalid checksum are reported and that all others can be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from sharedlog.engine import Head
from sharedlog.errors import LogDamaged
from sharedlog.fold import Position
from sharedlog.postgres import PostgresLog
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY, Kind, SharedRecord, encode, encode_facts
from sharedlog.scrub import Scrub
from tests.postgresql import PostgresServer, running_servers

CLUSTER = b"one cluster's id"
EMPTY_HEAD = Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS))
RECORDS = 80
ALL = 1 << 24


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with running_servers() as servers:
        yield servers.primary


def stored(number: int) -> bytes:
    body = encode_facts({"next_record": number, "node": "n" * 400})
    return encode(SharedRecord(CLUSTER, Kind.HOLD, 0, NOBODY, 0, 0, body))


def read_on(log: PostgresLog, offset: int) -> list[int]:
    """Read in the same way as a node, up to the first unreadable record or the end of the log.

    Return the record numbers. An unreadable record is the last one.
    """
    found: list[int] = []
    try:
        while some := log.read(offset, ALL):
            found += [one.offset for one in some]
            offset = some[-1].offset + 1
    except LogDamaged as error:
        named = error
    else:
        return found
    assert f"cannot read record {named.record}: invalid page in block" in named.detail
    return [*found, named.record or 0]


def test_the_records_of_a_bad_page_are_named_and_all_others_are_read(server: PostgresServer) -> None:
    with closing(PostgresLog(server.url)) as before, closing(PostgresLog(server.url)) as log:
        before.create_log(EMPTY_HEAD)
        for number in range(RECORDS):
            before.append_unchecked(stored(number))
        bad = server.spoil_page_of("tidewheel_record", 40)
        assert 0 < bad[0] <= 40 <= bad[-1] < RECORDS - 1
        before._close_connection()
        before._last = (40, 0)
        assert read_on(before, 0) == list(range(bad[0] + 1)), "where it looks back it finds the page too"
        assert [one.offset for one in log.read(0, ALL)] == list(range(bad[0])), "one read has all before it"
        assert [one.offset for one in log.read(0, 3_000)] == list(range(6))
        assert read_on(log, 0) == list(range(bad[0] + 1))
        assert read_on(log, bad[-1]) == [bad[-1]]
        assert read_on(log, bad[-1] + 1) == list(range(bad[-1] + 1, RECORDS))
        scrub = Scrub(log, CLUSTER, lambda: 0)
        while scrub.ages()["reads"] == 0:
            scrub.check_next_ranges()
        named = [one for one in bad if any(f"cannot read record {one}:" in fault for fault in scrub.faults)]
        assert named == bad


@pytest.mark.parametrize("record", [0, 40])
@pytest.mark.parametrize("is_vacuumed", [False, True])
def test_a_bad_page_is_in_the_way_of_its_own_records_alone(
    server: PostgresServer, record: int, is_vacuumed: bool
) -> None:
    with closing(PostgresLog(server.url)) as before:
        before.create_log(EMPTY_HEAD)
        for number in range(RECORDS):
            before.append_unchecked(stored(number))
        if is_vacuumed:
            with psycopg.connect(server.url, autocommit=True) as connection:
                # VACUUM updates the free space map.
                connection.execute("VACUUM ANALYZE tidewheel_record")
        bad = server.spoil_page_of("tidewheel_record", record)
    small = encode(SharedRecord(CLUSTER, Kind.HOLD, 0, NOBODY, 0, 0, encode_facts({"node": "a"})))
    for _ in range(20):  # Each session selects a page separately.
        with closing(PostgresLog(server.url)) as log:
            log.append_unchecked(small)
    with closing(PostgresLog(server.url)) as log:
        assert read_on(log, bad[-1] + 1) == list(range(bad[-1] + 1, RECORDS + 20))
        assert log.read(RECORDS + 20, ALL) == []
        assert log.bounds() == (0, RECORDS + 20)
