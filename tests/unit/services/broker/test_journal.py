"""The journal of operators' acts: what a start still has, pages, and entries that are too long or damaged."""

from __future__ import annotations

import pytest

from commitlog.records.kinds import JOURNAL_TOPIC
from services.broker.broker import Broker
from services.broker.journal import EXAMINED_MAX, JournalEntry
from services.broker.spine.settings import BrokerSettings
from tests.memory_disk import MemoryDisk
from tidewheel.errors import IllegalTopic

NOW_MS = 1_763_700_000_000
SETTINGS = BrokerSettings(segment_bytes=1 << 20)
ACT = JournalEntry("ann", "127.0.0.1", "tidewheel-cli", "topics purge", "topic=t", "wrong", "done", "")


def flush(broker: Broker) -> None:
    while flush := broker.take_flush():
        flush.write()
        broker.complete_flush(flush, NOW_MS)


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


def test_entries_are_there_after_a_start_and_come_newest_first(disk: MemoryDisk) -> None:
    broker = Broker.open(disk, SETTINGS, NOW_MS)
    for number in range(5):
        broker.journal.add_entry(ACT._replace(about=f"topic=t{number}"), NOW_MS + number)
    flush(broker)

    broker = Broker.open(disk, SETTINGS, NOW_MS)

    page = broker.journal.page(None, 2)
    assert [(one.entry.about, one.store_ms - NOW_MS) for one in page.entries] == [
        ("topic=t4", 4),
        ("topic=t3", 3),
    ]
    page = broker.journal.page(page.before, 10)
    assert [one.entry.about for one in page.entries] == ["topic=t2", "topic=t1", "topic=t0"]
    assert page.before is None
    assert [one.entry for one in broker.journal.page(None, 10, "t2").entries] == [
        ACT._replace(about="topic=t2")
    ]


def test_a_text_is_looked_for_in_the_fields_and_not_in_their_encoding(disk: MemoryDisk) -> None:
    broker = Broker.open(disk, SETTINGS, NOW_MS)
    broker.journal.add_entry(ACT._replace(reason='he said "hi" \\ bye'), NOW_MS)
    flush(broker)
    for about, count in (('said "HI"', 1), ("\\ bye", 1), ("Topic=T", 1), ("verdict", 0), ("user", 0)):
        assert len(broker.journal.page(None, 10, about).entries) == count, about


def test_a_page_looks_at_a_bounded_number_of_entries(disk: MemoryDisk) -> None:
    broker = Broker.open(disk, SETTINGS, NOW_MS)
    broker.journal.add_entry(ACT._replace(about="rare"), NOW_MS)
    for _ in range(EXAMINED_MAX):
        broker.journal.add_entry(ACT, NOW_MS)
    flush(broker)
    page = broker.journal.page(None, 10, "rare")
    assert (page.entries, page.before) == ([], 1)
    assert [one.entry.about for one in broker.journal.page(page.before, 10, "rare").entries] == ["rare"]


def test_long_and_foreign_texts_are_kept_up_to_a_bound(disk: MemoryDisk) -> None:
    broker = Broker.open(disk, SETTINGS, NOW_MS)
    given = ACT._replace(about="<b>\u202e🙂\n" * 1_000, reason="\ud800")
    broker.journal.add_entry(given, NOW_MS)
    flush(broker)
    [found] = broker.journal.page(None, 10).entries
    assert found.entry.about == given.about[:499] + "…"
    assert found.entry.reason == "?"


def test_no_client_sends_to_the_journal(disk: MemoryDisk) -> None:
    broker = Broker.open(disk, SETTINGS, NOW_MS)
    for verb in (broker.topics.get_or_create, broker.topic_changes.purge):
        with pytest.raises(IllegalTopic):
            verb(JOURNAL_TOPIC, NOW_MS)
