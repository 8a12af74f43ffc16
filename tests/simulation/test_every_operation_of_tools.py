"""Each disk operation of `store import` in turn is its last, or fails: it can be run again.

An import that had taken everything over says so and has left a whole store; else the second one ends well, as
if there had been none before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Final

import pytest

from commitlog import layout, properties
from commitlog.errors import NotAStore
from commitlog.memory_disk import Death, Fault, MemoryDisk
from commitlog.record import Record
from consumequeue import timerindex_recent
from services.broker.broker import Broker
from services.store.opening import look_at
from services.store.rocketmq_import import ImportSummary, take_over
from services.store.rocketmq_source import open_log
from services.store.verify import verify
from tests.simulation.test_every_operation import ENDS, SETTINGS, TOPIC, messages_of
from tests.unit.services.store.test_rocketmq_import import NOW_MS as IMPORT_MS
from tests.unit.services.store.test_rocketmq_import import Genuine

HOUR_MS: Final = 3_600_000


@pytest.fixture(autouse=True)
def _small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timerindex_recent, "_SLOTS", 1023)  # few timers, and many starts


def struck(
    made: MemoryDisk, act: Callable[[MemoryDisk], object], fault: Fault
) -> Iterator[tuple[int, MemoryDisk]]:
    """The disk after each operation of `act` in turn was the last one, or failed."""
    number, is_struck = 0, True
    while is_struck:
        number += 1
        disk = deepcopy(made)
        disk.strike(number, fault)
        with suppress(Death, OSError):
            act(disk)
        is_struck = disk.is_struck
        yield number, disk


def ended(disk: MemoryDisk, number: int, request: pytest.FixtureRequest) -> Iterator[tuple[str, MemoryDisk]]:
    """The disk after one of the ends, or after all of them."""
    takes_all = request.config.getoption("--seeds") > 100
    for how in ENDS if takes_all else [list(ENDS)[number % len(ENDS)]]:
        over = deepcopy(disk)
        ENDS[how](over)
        yield f"at operation {number}, {how}", over


# An import.


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A RocketMQ store: messages, one that waits for its delay level, an open half, a group."""
    genuine = Genuine(tmp_path / "theirs")
    for number in range(9):
        genuine.message(number, number)
    real = {"REAL_TOPIC": TOPIC, "REAL_QID": "0"}
    waiting = properties.encode(real | {"DELAY": "3", "UNIQ_KEY": "waiting"})
    genuine.put(Record(topic="SCHEDULE_TOPIC_XXXX", queue_id=2, body=b"later", properties=waiting))
    half = properties.encode(real | {"TRAN_MSG": "true", "UNIQ_KEY": "half", "PGROUP": "p"})
    genuine.put(Record(topic="RMQ_SYS_TRANS_HALF_TOPIC", body=b"perhaps", properties=half))
    genuine.config("consumerOffset.json", '{"offsetTable":{"t@g":{0:6}}}')
    genuine.config("delayOffset.json", '{"offsetTable":{2:0}}')
    return genuine.root


def imported(theirs: Path, disk: MemoryDisk) -> ImportSummary:
    return take_over(open_log(theirs), disk, "ours", lambda said: None, IMPORT_MS)


def is_whole(disk: MemoryDisk) -> bool:
    """Whether the file `format` names a version."""
    return disk.read(layout.FORMAT, 0, 1) == b"2"


def check_imported(disk: MemoryDisk, where: str) -> None:
    broker = Broker.open(disk, SETTINGS, IMPORT_MS)
    assert messages_of(broker) == [f"ID{number}" for number in range(9)], where
    waits = broker.gauges()
    assert (waits.pending_timers, waits.open_halves) == (1, 1), where
    verdict = verify(look_at(disk, "the store"), IMPORT_MS)
    assert verdict.is_sound, (where, verdict.findings)


@pytest.mark.parametrize("fault", Fault, ids=[fault.value for fault in Fault])
def test_an_import_that_did_not_end_is_run_again(
    theirs: Path, fault: Fault, request: pytest.FixtureRequest
) -> None:
    number, whole = 0, 0
    for number, disk in struck(MemoryDisk(), lambda disk: imported(theirs, disk), fault):
        for where, over in ended(disk, number + list(Fault).index(fault), request):
            if is_whole(over):
                whole += 1
                with pytest.raises(NotAStore, match="took everything over"):
                    imported(theirs, over)
            else:
                summary = imported(theirs, over)
                assert summary.record_count == 11, where
            check_imported(over, where)
            over.crash(lambda count: 0)
            check_imported(over, where)
    assert number > 30
    assert whole
