"""A message is explained by each of its keys, whatever blanks they have."""

from __future__ import annotations

import pytest

from commitlog import properties
from commitlog.log import CommitLog
from commitlog.message import Message
from commitlog.record import Record
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
