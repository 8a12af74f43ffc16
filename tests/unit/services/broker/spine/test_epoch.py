"""The epoch: begun by a record, told to the sink and live readers, named in handles; old ones stay good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from commitlog import layout
from commitlog.limits import FLUSHES_IN_FLIGHT_MAX
from commitlog.log.recovery import LogScan
from commitlog.log.sink import LogSink, Part
from commitlog.records import kinds
from commitlog.records.message import Message
from commitlog.snapshots import snapshot
from consumequeue.filters.filter import EVERYTHING
from consumequeue.groups import receipts
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Delivery
from tests.applied import limited
from tests.memory_disk import MemoryDisk

NOW_MS: Final = 1_763_700_000_000
SEGMENT_BYTES: Final = 1 << 20
PLAIN: Final = "0 1763700000000 20000 0 0 a 0 0 179 115585843200000001"
OF_A_GROUP: Final = "1 1763700000000 20000 0 0 a 0 1 304 115585843200000002"
RECALL: Final = "djEgdCBhIDE3NjM3MDAwNjAwMDAgTTI="
"""What the version without epochs (0e38ca2) gave out for the three messages of `Bench`."""


class Bench:
    """A broker with a plain message, one of a message group, and a delayed one; its sink notes epochs."""

    appends_max = FLUSHES_IN_FLIGHT_MAX

    def __init__(self, *, sync: bool = True) -> None:
        self.disk = MemoryDisk()
        self.settings = BrokerSettings(
            segment_bytes=SEGMENT_BYTES, queue_count=1, broker_name="a", sync_flush=sync
        )
        self.epochs: list[int] = []
        self.open()
        for message in (
            Message(topic="t", body=b"x", message_id="M0"),
            Message(topic="t", body=b"x", message_id="M1", message_group="orders"),
            Message(topic="t", body=b"x", message_id="M2", delivery_ms=NOW_MS + 60_000),
        ):
            self.broker.sending.send(message, NOW_MS)
        self.flush()

    def open(self) -> None:
        self.broker = Broker.open(self.disk, self.settings, NOW_MS)
        self._files = self.broker._log.sink
        self.broker._log.sink = self

    def append(self, first_offset: int, parts: Sequence[Part], epoch: int) -> None:
        self.epochs.append(epoch)
        self._files.append(first_offset, parts, epoch)

    def flush(self) -> None:
        while (flush := self.broker.take_flush()) is not None:
            flush.write()
            self.broker.complete_flush(flush, NOW_MS)

    def raise_to(self, number: int) -> None:
        self.broker.epoch.raise_to(number, NOW_MS)
        self.flush()

    def receive(self) -> list[Delivery]:
        lent = self.broker.receiving.receive("g", "t", EVERYTHING, 8, 20_000, "c", False, NOW_MS)
        self.flush()
        return lent.deliveries

    def checkpoint(self) -> None:
        checkpoint = self.broker.checkpoint(NOW_MS)
        checkpoint.write(self.disk)
        self.broker.complete_checkpoint(checkpoint)

    def lag(self) -> int:
        return sum(row.lag for view in self.broker.group_views.view_all() for row in view.queues)


def test_a_bench_is_a_sink() -> None:
    sink: LogSink = Bench()
    assert sink


def test_a_store_that_is_alone_says_nothing_of_epochs() -> None:
    bench = Bench()
    assert set(bench.epochs) == {0}
    assert [one.receipt_handle for one in bench.receive()] == [PLAIN, OF_A_GROUP]
    assert bench.disk.size(layout.DURABLE) == 96
    assert not [one for one in LogScan(bench.disk, SEGMENT_BYTES) if one.record.topic == kinds.EPOCH_TOPIC]


def test_a_newer_epoch_holds_from_its_own_record_on() -> None:
    bench = Bench()
    bench.broker.epoch.raise_to(3, NOW_MS)
    assert (bench.broker.epoch.number, layout.published(bench.disk).epoch) == (3, 0)
    bench.flush()
    published = layout.published(bench.disk)
    assert (bench.epochs[-1], published.epoch, published.offset) == (3, 3, bench.broker.durable_offset)
    last = list(LogScan(bench.disk, SEGMENT_BYTES))[-1].record
    assert (kinds.kind_of(last), last.body) == ("epoch", b'{"epoch": 3, "node": "", "version": 3}')


@pytest.mark.parametrize("number", [-1, 2, 3])
def test_what_does_not_ascend_is_refused(number: int) -> None:
    bench = Bench()
    bench.raise_to(3)
    with pytest.raises(AssertionError, match="not above 3"):
        bench.broker.epoch.raise_to(number, NOW_MS)
    assert bench.broker.is_quiet


def test_what_an_older_epoch_appended_is_not_flushed_under_a_newer_one() -> None:
    bench = Bench()
    bench.broker.sending.send(Message(topic="t", body=b"x", message_id="M3"), NOW_MS)
    with pytest.raises(AssertionError, match="older epoch"):
        bench.broker.epoch.raise_to(1, NOW_MS)


@pytest.mark.parametrize("by_snapshot", [False, True])
def test_a_start_is_of_the_epoch_of_its_log(by_snapshot: bool) -> None:
    bench = Bench()
    bench.raise_to(2)
    bench.raise_to(5)
    if by_snapshot:
        bench.checkpoint()
        newest = snapshot.newest(bench.disk)
        assert newest is not None
        assert newest.parts["epoch"] == 5
    bench.disk.delete(layout.DURABLE)
    bench.open()
    assert (bench.broker.epoch.number, layout.published(bench.disk).epoch) == (5, 5)
    bench.raise_to(6)
    assert bench.epochs[-1] == layout.published(bench.disk).epoch == 6


def test_with_asynchronous_flushes_an_epoch_is_published_when_it_is_synced() -> None:
    bench = Bench(sync=False)
    early = bench.broker.take_sync()
    bench.raise_to(4)
    sync = bench.broker.take_sync()
    assert early is not None
    assert sync is not None
    for one, epoch in ((early, 0), (sync, 4)):
        one.run(bench.disk)
        bench.broker.complete_sync(one)
        assert layout.published(bench.disk).epoch == epoch


def test_old_handles_stay_good_in_a_newer_epoch() -> None:
    bench = Bench()
    assert [one.receipt_handle for one in bench.receive()] == [PLAIN, OF_A_GROUP]
    bench.raise_to(7)
    bench.broker.receiving.ack("g", "t", PLAIN, NOW_MS)
    changed, _ = bench.broker.receiving.change_invisible("g", "t", OF_A_GROUP, 30_000, False, NOW_MS)
    assert receipts.decode(changed).epoch == 7
    bench.broker.receiving.ack("g", "t", changed, NOW_MS)
    bench.broker.timers.recall("t", RECALL, NOW_MS)
    bench.flush()
    assert (bench.lag(), bench.broker.timers.pending_count) == (0, 0)


def test_a_lease_that_stands_again_after_a_start_keeps_its_handle() -> None:
    bench = Bench()
    assert bench.receive()[1].receipt_handle == OF_A_GROUP
    bench.raise_to(7)
    bench.open()
    bench.broker.receiving.ack("g", "t", OF_A_GROUP, NOW_MS)
    (again,) = bench.receive()
    assert (again.message.message_id, receipts.decode(again.receipt_handle).epoch) == ("M0", 7)
    bench.broker.receiving.ack("g", "t", again.receipt_handle, NOW_MS)
    bench.flush()
    assert bench.lag() == 0


def receipts_of(broker: Broker) -> list[str]:
    return [message_id for _, message_id, *_ in broker.transactions.receipts.freeze()]


@pytest.mark.parametrize("by_snapshot", [False, True])
def test_limits_change_where_an_epoch_names_a_version_and_nowhere_else(
    by_snapshot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So programs of two releases fold one log alike, and so does a start that replays it later."""
    limited(monkeypatch, version=5, half_receipts_max=2)
    bench = Bench()

    def halves(*numbers: int) -> list[str]:
        for number in numbers:
            half = Message(topic="t", body=b"x", message_id=f"H{number}", transactional=True)
            bench.broker.sending.send(half, NOW_MS)
        bench.flush()
        return receipts_of(bench.broker)

    bench.broker.epoch.raise_to(1, NOW_MS, "node", 4)
    assert halves(1, 2, 3) == ["H1", "H2", "H3"]
    bench.broker.epoch.raise_to(2, NOW_MS, "node", 5)
    assert halves(4) == ["H3", "H4"]
    said = [one.record for one in LogScan(bench.disk, SEGMENT_BYTES) if one.record.topic == kinds.EPOCH_TOPIC]
    assert said[-1].body == b'{"epoch": 2, "node": "node", "version": 5}'
    if by_snapshot:
        bench.checkpoint()
    bench.open()
    assert receipts_of(bench.broker) == ["H3", "H4"]
    assert bench.broker.store.version == 5
    assert halves(5) == ["H4", "H5"]
