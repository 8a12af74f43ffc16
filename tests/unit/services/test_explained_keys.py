"""A message is explained by each of its keys, whatever blanks they have."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from commitlog.log.log import CommitLog
from commitlog.records import properties, record
from commitlog.records.message import Message
from commitlog.records.record import Record
from services.broker.spine.errors import MessageNotFound
from services.explain.evidence import SearchedLog
from services.explain.explain import explain
from tests.memory_disk import MemoryDisk


def log_of(*keys: str) -> SearchedLog:
    """The log of a message for each key, whose id is the key's place."""
    disk = MemoryDisk()
    log = CommitLog(disk, 64 * 1024, 0, 0)
    for at, key in enumerate(keys):
        message = Message(topic="t", body=b"{}", message_id=f"M{at}", keys=(key, "also this"))
        log.append(Record("t", b"{}", properties.encode_message(message)))
    return flushed(log, disk)


def flushed(log: CommitLog, disk: MemoryDisk) -> SearchedLog:
    flush = log.take_flush()
    assert flush is not None
    flush.write()
    log.complete_flush(flush)
    return SearchedLog("store", disk, log.end_offset)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("ORD 17", "M0"), (" ORD 17 ", "M1"), ("ORD  17", "M2"), ("\u00a07", "M3"), ("8", "M4"), (" 8 ", "M4")],
)
def test_a_message_is_found_by_its_key_as_it_was_sent(asked: str, expected: str) -> None:
    log = log_of("ORD 17", " ORD 17 ", "ORD  17", "\u00a07", "8")
    assert [one.message_id for one in explain(log, asked).messages] == [expected]


def test_a_word_of_a_key_is_no_key() -> None:
    with pytest.raises(MessageNotFound):
        explain(log_of("ORD 17"), "ORD")


def test_records_whose_keys_only_begin_with_the_name_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []

    def decode(stored: bytes, position: int = 0) -> Record:
        decoded.append(position)
        return record.decode(stored, position)

    log = log_of("order:7", *(f"order:7{number}" for number in range(20)), "order:7 b")
    monkeypatch.setattr(
        "services.explain.evidence.record", SimpleNamespace(**vars(record) | {"decode": decode})
    )
    assert [one.message_id for one in explain(log, "order:7").messages] == ["M0"]
    assert len(decoded) == 2, "the message itself, and one of whose key the name is a word"


def test_the_last_property_of_an_imported_record_may_lack_its_end() -> None:
    disk = MemoryDisk()
    log = CommitLog(disk, 64 * 1024, 0, 0)
    stored = properties.encode_message(Message(topic="t", body=b"{}", message_id="M0", keys=("order:7",)))
    assert stored.endswith(b"order:7\x02"), "the key is not the last property"
    host = ("127.0.0.1", 0)
    log.gather(record.encode_fields("t", b"{}", stored[:-1], 0, 0, 0, 0, 0, host, 0, host, with_crc=False))
    imported = replace(flushed(log, disk), imported_until=log.end_offset)
    assert [one.message_id for one in explain(imported, "order:7").messages] == ["M0"]
