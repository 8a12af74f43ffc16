"""Many log offsets in digits are searched for at once, with the result of a search for each."""

from __future__ import annotations

import pytest

from commitlog.log.log import CommitLog
from commitlog.records.record import Record
from services.explain import evidence
from services.explain.evidence import SearchedLog
from tests.memory_disk import MemoryDisk


@pytest.mark.parametrize("window_bytes", [10, 64, evidence.WINDOW_BYTES])
def test_many_numbers_are_found_as_each_of_them_is(
    window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.explain.evidence.WINDOW_BYTES", window_bytes)
    disk = MemoryDisk()
    log = CommitLog(disk, 64 * 1024, 0, 0)
    for number in range(60):
        log.append(Record("t", b"{}", b"TIMER_OFFSET\x01%d\x02UNIQ_KEY\x01%d\x02" % (number, number * 7)))
    flush = log.take_flush()
    assert flush is not None
    flush.write()
    log.complete_flush(flush)
    searched = SearchedLog("store", disk, log.end_offset)
    needles = [b"\x01%d\x02" % number for number in range(0, 60, 3)]
    expected = [one.physical_offset for one in searched.holding([*needles, b"nothing"])]
    numbers = [needle[:-1] for needle in needles]
    assert len(numbers) > evidence.FEW
    assert [one.physical_offset for one in searched.holding([*numbers, b"nothing"])] == expected
