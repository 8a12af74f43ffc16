"""Crash or fail each disk operation of `store import` or `store repair` in turn: they can be run again.

A second import is refused if the first had imported everything, which leaves a complete store; otherwise it
succeeds as if there had been none before. After an interrupted repair another one succeeds, and the store is
sound, with all undamaged data; a broker that starts without a second repair loses nothing either. A power cut
after the second may revert unsynced changes of the first: then a third repair is needed, and sufficient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from commitlog import layout
from commitlog.errors import NotAStore, StoreDamaged
from commitlog.records import properties
from commitlog.records.message import Message
from commitlog.records.record import Record
from commitlog.snapshots import snapshot
from consumequeue.indexes import timerindex_recent
from services.broker.broker import Broker
from services.rocketmq.import_store import ImportSummary, take_over
from services.rocketmq.source import open_log
from services.store.read_only.opening import look_at
from services.store.repair import repair
from services.store.verify.verify import verify
from tests.memory_disk import Death, Fault, MemoryDisk
from tests.simulation.test_every_operation import ENDS, NOW_MS, SETTINGS, TOPIC, Bench, messages_of
from tests.unit.services.rocketmq.test_import_store import NOW_MS as IMPORT_MS
from tests.unit.services.rocketmq.test_import_store import Genuine

HOUR_MS: Final = 3_600_000


@pytest.fixture(autouse=True)
def _small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timerindex_recent, "_SLOTS", 1023)  # few timers, and many starts


def struck(
    made: MemoryDisk, act: Callable[[MemoryDisk], object], fault: Fault, first: int = 1, every: int = 1
) -> Iterator[tuple[int, MemoryDisk]]:
    """Yield (operation, disk) after every `every`-th operation of `act` was the last one, or failed."""
    for number in count(first, every):
        disk = deepcopy(made)
        disk.strike(number, fault)
        with suppress(Death, OSError):
            act(disk)
        yield number, disk
        if not disk.is_struck:
            return


def ended(disk: MemoryDisk, number: int, request: pytest.FixtureRequest) -> Iterator[tuple[str, MemoryDisk]]:
    """Yield (description, disk) after one of the ends of the process, or after all of them."""
    takes_all = request.config.getoption("--seeds") > 100
    for how in ENDS if takes_all else [list(ENDS)[number % len(ENDS)]]:
        over = deepcopy(disk)
        ENDS[how](over)
        yield f"at operation {number}, {how}", over


# An import.


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A RocketMQ store: messages, one waiting for its delay level, an open half, a group."""
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
    """Return whether the `format` file names a version."""
    return disk.read(layout.FORMAT, 0, 9) == b"tidewheel"


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


# A repair.


def shop() -> Bench:
    """Create messages, timers with keys, near and far, and open halves, before and after two snapshots."""
    bench = Bench()
    broker = bench.start()
    for round_ in range(3):
        bench.send(4)
        bench.send(1, half=True)
        for number in range(3):
            message = Message(
                topic=TOPIC,
                body=b"later",
                message_id=f"T{round_}{number}",
                delivery_ms=NOW_MS + HOUR_MS * (1 + number * 30),
                properties={"TW_TIMER_KEY": f"key {round_}{number}"},
            )
            broker.sending.send(message, bench.now_ms)
        bench.flush()
        if round_ < 2:
            bench.checkpoint()
    bench.broker = None
    return bench


def a_file(disk: MemoryDisk, folder: str) -> str:
    """Return the path of the largest file below a folder."""
    paths = [path for path in disk.paths() if path.startswith(f"{folder}/")]
    return max(paths, key=lambda path: (disk.size(path), path))


def flip(disk: MemoryDisk, path: str, part: float = 0.5) -> None:
    disk.flip_bit(path, int(disk.size(path) * part) * 8 + 2)


def in_a_record(disk: MemoryDisk) -> None:
    """Flip a bit in the body of the second message."""
    place = bytes(disk.view(layout.segment_path(0))).index(b"x" * 100)
    place = bytes(disk.view(layout.segment_path(0))).index(b"x" * 100, place + 100)
    disk.flip_bit(layout.segment_path(0), (place + 50) * 8)


DAMAGES: Final[dict[str, Callable[[MemoryDisk], object]]] = {
    "log": in_a_record,
    "queue": lambda disk: flip(disk, a_file(disk, layout.CONSUMEQUEUE), 0.01),
    "key index": lambda disk: flip(disk, a_file(disk, layout.KEYINDEX)),
    "snapshot": lambda disk: flip(disk, snapshot.path_of(snapshot.offsets(disk)[-1])),
    "durable": lambda disk: [flip(disk, layout.DURABLE, part) for part in (0.1, 0.5, 0.8)],
    "format": lambda disk: flip(disk, layout.FORMAT, 0.8),
    "timers": lambda disk: flip(disk, a_file(disk, layout.TIMERS)),
    "names, head": lambda disk: disk.flip_bit(a_file(disk, layout.TIMER_NAMES), 30),
    "names, a block": lambda disk: flip(disk, a_file(disk, layout.TIMER_NAMES)),
}


def mend_all(disk: MemoryDisk) -> repair.Plan:
    store = look_at(disk, "the store")
    planned = repair.plan(store, NOW_MS, gives_up=True)
    repair.carry_out_on(disk, planned, store, NOW_MS)
    return planned


def check_repaired(bench: Bench, disk: MemoryDisk, lost: set[str], where: str) -> None:
    broker = Broker.open(disk, SETTINGS, NOW_MS)
    try:
        found = messages_of(broker)
    except StoreDamaged:  # in a queue file: the next start rebuilds the queues
        assert [one.part for one in broker.damage] == ["queue"], where
        broker = Broker.open(disk, SETTINGS, NOW_MS)
        found = messages_of(broker)
    assert set(found) == bench.told - lost, where
    for transaction_id in bench.halves.values():
        assert broker.half_views.get_half(transaction_id).state.name == "OPEN", where
    assert broker.gauges().pending_timers == 9, where


@pytest.mark.parametrize("fault", Fault, ids=[fault.value for fault in Fault])
@pytest.mark.parametrize("what", DAMAGES)
def test_a_repair_that_did_not_end_is_run_again(
    what: str, fault: Fault, request: pytest.FixtureRequest
) -> None:
    bench = shop()
    bench.disk.crash(lambda count: 0)
    DAMAGES[what](bench.disk)
    assert not verify(look_at(bench.disk, "the store"), NOW_MS).is_sound
    lost = {"M1"} if what == "log" else set()
    number = 0
    every = 1 if request.config.getoption("--seeds") > 100 else 8
    first = list(Fault).index(fault) % every + 1
    for number, disk in struck(bench.disk, mend_all, fault, first, every):
        for where, over in ended(disk, number + list(Fault).index(fault), request):
            check_repaired(bench, deepcopy(over), lost, f"without a second repair, {where}")
            planned = mend_all(over)
            assert not planned.hopeless, where
            over.crash(lambda count: 0)
            mend_all(over)  # the cut may revert changes of the dead repair that the second found sound
            over.crash(lambda count: 0)
            verdict = verify(look_at(over, "the store"), NOW_MS)
            assert verdict.is_sound, (where, verdict.findings)
            check_repaired(bench, over, lost, where)
    assert number > 1
