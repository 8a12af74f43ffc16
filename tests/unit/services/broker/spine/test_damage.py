"""Damage is noted where bytes are read: from the source, and of what is kept of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Final

import pytest

from commitlog import layout, limits
from commitlog.errors import StoreDamaged
from commitlog.records.message import Message
from consumequeue.filters.filter import EVERYTHING, Filter, parse_tags
from services.broker.broker import Broker
from services.broker.spine.damage import DamageList
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import DamagedPart, HalfFilter, SendReceipt, TimerFilter, TimerName
from tests.memory_disk import MemoryDisk
from tests.unit.services.broker.test_retention import (
    KEEP_ONE,
    NOW_MS,
    SEGMENT_BYTES,
    Asked,
    Bench,
    kept_on_disk,
)
from tests.unit.services.broker.timers.test_timers import Store

ROOT: Final = Path(__file__).parents[5] / "services"
ROOMS: Final = ("broker", "live", "ops", "rpc")
READS: Final = {
    "log.read",
    "log.appended",
    "keep.read",
    "keys.offsets",
    "names.newest",
    "names.contains_each",
    "ends.newest",
    "ends.contains_each",
    "_disk.read",
    "_disk.read_many",
    "_disk.view",
    "disk.read",
    "disk.view",
    "sectors.read",
    "sectors.read_many",
    "_timers.read_spans",
    "self.read_spans",
    "raise StoreDamaged",
}
"""What reads bytes that may be damaged: the last two names of a call, or a raise."""
READERS: Final = {
    "broker/spine/store.py:read": "notes",
    "broker/spine/store.py:read_appended": "notes",
    "broker/spine/store.py:_read_entry_record": "notes, by read_entry; for probe, another read notes",
    "broker/spine/store.py:offsets_by_key_or_id": "notes",
    "broker/timers/timer_ends.py:find_by_hash": "notes, by _noting_damage",
    "broker/timers/timer_ends.py:find_end": "notes, by _noting_damage",
    "broker/timers/timer_ends.py:ended_mask": "notes, by _noting_damage",
    "broker/timers/timers.py:read_spans": "notes what the disk cannot read",
    "broker/timers/timers.py:read_row": "notes, by report_damaged_row",
    "broker/timers/timer_delivery.py:_deliver_row": "notes, by _deliver_damaged_timer",
    "broker/timers/timer_delivery.py:_read": "its caller compares CRCs, and notes by _deliver_damaged_timer",
    "broker/timers/timer_source.py:_read": "in a worker; what it leaves out is read alone later",
    "broker/timers/timer_repair.py:_is_sound": "in a worker, of an older copy: another copy may be sound",
}
"""Where the rooms read such bytes, and how damage that is met there is noted."""


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield all functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def reads_of(function: ast.AST) -> Iterator[str]:
    """Yield what a function reads of `READS`."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            yield f"{name}.{node.func.attr}"
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield f"raise {getattr(node.exc.func, 'id', '')}"


def test_nothing_reads_bytes_of_the_store_past_the_readers_that_note_damage() -> None:
    found = set()
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            for function in functions(ast.parse(path.read_text())):
                if READS & set(reads_of(function)):
                    found.add(f"{path.relative_to(ROOT)}:{function.name}")
    assert found == READERS.keys()


def broker() -> Broker:
    return Broker.open(MemoryDisk(), BrokerSettings(segment_bytes=1 << 16), NOW_MS)


def test_a_place_is_kept_and_passed_on_once_and_what_became_of_it_again() -> None:
    damage, heard = broker().damage, list[DamagedPart]()
    damage.report_file("partition", "timers/a", "byte 1 is wrong")
    damage.add_listener(heard.append)
    damage.report_file("partition", "timers/a", "byte 2 is wrong")
    damage.report_file("partition", "timers/b", "byte 1 is wrong")
    mended = DamagedPart("partition", "timers/a", "3 timers were rebuilt", 3)
    damage.report_repair(mended)
    damage.report_repair(mended)
    assert [one.what for one in heard] == ["byte 1 is wrong", "byte 1 is wrong", "3 timers were rebuilt"]
    assert [one.what for one in damage] == ["3 timers were rebuilt", "byte 1 is wrong"]


def test_damage_of_many_places_is_bounded_and_says_so_once() -> None:
    damage, heard = broker().damage, list[DamagedPart]()
    damage.add_listener(heard.append)
    for number in range(2 * limits.DAMAGE_KEPT_MAX):
        damage.report_file("queue", f"consumequeue/{number}", "is wrong")
    assert len(damage) == len(heard) == limits.DAMAGE_KEPT_MAX + 1
    assert heard[-1].what.startswith("more than 1000 places are damaged; ")


def test_a_record_that_retention_has_deleted_is_not_damaged() -> None:
    bench = Bench()
    bench.reopen(KEEP_ONE)
    for _ in range(40):
        bench.send()
    bench.advance(5_000)
    damage: DamageList = bench.broker.damage
    assert bench.broker.store.log.first_offset > 0
    damage.report_record(0, StoreDamaged("was deleted"))
    assert not damage
    assert damage.unreadable_records == 0


def test_a_kept_half_that_is_damaged_is_told_by_whoever_reads_it_first() -> None:
    bench = Bench()
    half = bench.send(transactional=True, check_immunity_ms=3_600_000)
    for _ in range(40):
        bench.send()
    bench.receive()
    bench.reopen(KEEP_ONE)
    bench.advance(5_000)
    (kept,) = bench.disk.list("keep")
    assert half.physical_offset in bench.broker.store.log.keep
    bench.disk.flip_bit(f"keep/{kept}", 8 * 200)
    assert bench.broker.half_views.page(HalfFilter(), None, 9).halves == []
    (told,) = bench.broker.damage
    assert (told.part, told.path) == ("keep", f"keep/{kept}")


def test_a_receive_that_meets_a_damaged_queue_file_has_it_told() -> None:
    bench = Bench(tail_entries_max=1)
    for _ in range(3):
        bench.send()
    bench.broker.store.dispatch.write()
    for queue_id in range(8):
        for name in bench.disk.list(path := f"consumequeue/t/{queue_id}"):
            bench.disk.write(f"{path}/{name}", 0, bytes(20))
    with pytest.raises(StoreDamaged):
        bench.broker.receiving.receive("g", "t", EVERYTHING, 9, 20_000, "c", False, NOW_MS)
    assert {one.part for one in bench.broker.damage} == {"queue"}


@pytest.mark.parametrize("wanted", [EVERYTHING, parse_tags("a")])
@pytest.mark.parametrize("is_zeroed", [True, False])
def test_nothing_is_passed_over_for_what_damage_has_left_of_a_file(wanted: Filter, is_zeroed: bool) -> None:
    """The log has the messages, and the next start makes the queues anew: a group must get them then."""
    bench = Bench(tail_entries_max=1)
    for _ in range(3):
        bench.send(tag="a")
    bench.broker.store.dispatch.write()
    for queue_id in range(8):
        for name in bench.disk.list(path := f"consumequeue/t/{queue_id}"):
            if is_zeroed:
                bench.disk.write(f"{path}/{name}", 0, bytes(20))
            else:  # where in the log the record lies
                bench.disk.flip_bit(f"{path}/{name}", 5 * 8)

    def receive() -> list[str]:
        got = bench.broker.receiving.receive("g", "t", wanted, 9, 20_000, "c", False, NOW_MS)
        return sorted(one.message.message_id for one in got.deliveries)

    with pytest.raises(StoreDamaged):
        receive()
    bench.flush()
    assert {one.part for one in bench.broker.damage} == {"queue"}
    bench.reopen(bench.settings)
    assert receive() == ["M1", "M2", "M3"]


def test_a_queue_whose_file_is_damaged_keeps_no_other_from_being_received() -> None:
    bench = Bench(tail_entries_max=1)
    for _ in range(8):
        bench.send()
    bench.broker.store.dispatch.write()
    bench.broker.checkpoint(NOW_MS).write(bench.disk)
    count = len(bench.broker.finding.read("t", 3, 0, 9))
    bench.reopen(bench.settings)
    (name,) = bench.disk.list("consumequeue/t/3")
    bench.disk.flip_bit(path := f"consumequeue/t/3/{name}", 9)
    receive = partial(bench.broker.receiving.receive, "g", "t", EVERYTHING, 9, 20_000, "c", False, NOW_MS)
    assert len(receive().deliveries) == 8 - count
    with pytest.raises(StoreDamaged, match=path):
        receive()
    assert [one.path for one in bench.broker.damage] == [path]
    bench.reopen(bench.settings)
    assert len(bench.broker.finding.read("t", 3, 0, 9)) == count > 0, "the next start makes the queues anew"


def test_a_queue_whose_file_is_damaged_takes_no_other_from_the_view_of_a_group() -> None:
    bench = Bench(tail_entries_max=1)
    bench.broker.receiving.receive("g", "t", EVERYTHING, 1, 20_000, "c", False, NOW_MS)
    for _ in range(8):
        bench.send()
    bench.broker.store.dispatch.write()
    bench.broker.checkpoint(NOW_MS).write(bench.disk)
    bench.reopen(bench.settings)
    (name,) = bench.disk.list("consumequeue/t/3")
    bench.disk.flip_bit(f"consumequeue/t/3/{name}", 9)
    (view,) = bench.broker.group_views.view_all()
    assert [one.oldest_ms is None for one in view.queues] == [one.queue_id == 3 for one in view.queues]
    assert [one.part for one in bench.broker.damage] == ["queue"]


def test_damage_met_while_a_checkpoint_is_written_has_the_next_start_make_the_queues_anew() -> None:
    bench = Bench(tail_entries_max=1)
    for _ in range(8):
        bench.send()
    bench.broker.store.dispatch.write()
    bench.broker.checkpoint(NOW_MS).write(bench.disk)
    bench.reopen(bench.settings)
    (name,) = bench.disk.list("consumequeue/t/3")
    bench.disk.flip_bit(f"consumequeue/t/3/{name}", 9)
    checkpoint = bench.broker.checkpoint(NOW_MS)
    with pytest.raises(StoreDamaged):
        bench.broker.finding.read("t", 3, 0, 9)
    checkpoint.write(bench.disk)
    bench.broker.complete_checkpoint(checkpoint)
    bench.reopen(bench.settings)
    assert bench.broker.rebuilt_files != []


def with_damaged_log() -> tuple[Store, int]:
    """Return a store with four messages before its snapshot, and where the second one, damaged, lies."""
    store = Store()
    store.send("M0", None)
    place = store.broker.end_offset
    for number in range(1, 4):
        store.send(f"M{number}", None)
    store.broker.store.dispatch.write()
    store.checkpoint()
    store.disk.flip_bit("commitlog/" + "0" * 20, 8 * (place + 60))
    return store, place


def open_anew(store: Store) -> None:
    store.disk.kill(lambda _: 0)
    store.broker = Broker.open(store.disk, store.settings, store.now_ms)


def passed_over(store: Store, group: str) -> list[str]:
    """What a group receives of a topic with a message that is lost."""
    receive = store.broker.receiving.receive
    found = receive(group, "t", EVERYTHING, 32, 20_000, "c", False, store.now_ms).deliveries
    return [one.message.message_id for one in found]


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_damage_of_the_log_is_told_whether_or_not_the_queues_are_made_anew(is_made_anew: bool) -> None:
    """A start that made queues anew left a gap, and a group passed over it without a word."""
    store, _ = with_damaged_log()
    if is_made_anew:
        store.disk.delete(layout.QUEUES_WHOLE)
    open_anew(store)
    assert any("queues" in one for one in store.broker.rebuilt_files) == is_made_anew
    assert [one.part for one in store.broker.damage] == ["log"] * is_made_anew
    assert passed_over(store, "g") == ["M0", "M2", "M3"]
    assert [one.part for one in store.broker.damage] == ["log"]


def test_a_gap_that_an_earlier_start_has_left_is_told_by_whoever_meets_it() -> None:
    store, place = with_damaged_log()
    store.disk.delete(layout.QUEUES_WHOLE)
    open_anew(store)
    store.checkpoint()
    open_anew(store)
    assert (store.broker.rebuilt_files, [*store.broker.damage]) == ([], [])
    told: list[DamagedPart] = []
    store.broker.damage.add_listener(told.append)
    for group in ("g", "h"):  # one place counts once
        assert passed_over(store, group) == ["M0", "M2", "M3"]
    (gap,) = told
    assert (gap.part, gap.path) == ("gap", layout.segment_path(0))
    assert "queue 0 of topic t has a gap at offset 1" in gap.what
    assert int(re.findall("before ([0-9]+)", gap.what)[0]) > place


def test_an_acknowledgement_counts_beside_one_of_a_queue_whose_file_is_damaged() -> None:
    """The lease of the first was taken and its timer stayed: then the next tick ended the process."""
    bench = Bench(tail_entries_max=1)
    for _ in range(2):
        bench.send()
    before = bench.receive()
    bench.flush()
    kept_on_disk(bench)
    bench.reopen(bench.settings)
    bench.broker.epoch.raise_to(1, bench.now_ms, "node")
    bench.flush()
    receive = partial(bench.broker.receiving.receive, "g", "t", EVERYTHING, 1, 20_000, "c", False, NOW_MS)
    (again,) = receive().deliveries
    (other,) = [one for one in before if one.message.message_id != again.message.message_id]
    (name,) = bench.disk.list(folder := f"consumequeue/t/{other.record.queue_id}")
    bench.disk.flip_bit(f"{folder}/{name}", 9)
    handles = [again.receipt_handle, other.receipt_handle]
    answers = bench.broker.receiving.ack_many("g", "t", handles, bench.now_ms)
    assert [isinstance(one, int) for one in answers] == [True, False]
    bench.flush()
    bench.advance(60_000)
    bench.reopen(bench.settings)
    assert [one.message.message_id for one in bench.receive()] == [other.message.message_id]


def test_a_message_that_is_given_up_while_its_queue_cannot_be_read_comes_again() -> None:
    """Its lease was ended before the read, and the message stayed leased to nobody until a restart."""
    bench, disk = Bench(tail_entries_max=1), Asked()
    bench.disk = disk
    bench.reopen(bench.settings)
    bench.send()
    (one,) = bench.receive()
    bench.broker.store.dispatch.write()
    bench.broker.store.dispatch.queue("t", one.record.queue_id)._read_ahead = b""  # as others' reads leave it
    disk.unreadable = f"consumequeue/t/{one.record.queue_id}/"
    with pytest.raises(StoreDamaged):
        bench.broker.receiving.forward_to_dead_letter("g", "t", one.receipt_handle, bench.now_ms)
    bench.flush()
    disk.unreadable = "none"
    bench.reopen(bench.settings)
    bench.advance(60_000)
    assert one.message.message_id in [again.message.message_id for again in bench.receive()]


class Counting(Asked):
    """A disk that counts reads of the files of queues, and what is done to the mark of these."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[int] = []
        self.deleted: list[str] = []

    def read(self, path: str, position: int, length: int) -> bytes:
        if path.startswith("consumequeue/"):
            self.reads.append(length)
        return super().read(path, position, length)

    def delete(self, path: str) -> None:
        self.deleted.append(path)
        super().delete(path)


def one_queue(count: int) -> tuple[Bench, Counting, list[SendReceipt]]:
    """Return a bench with so many messages in one queue, whose entries are all in one file."""
    bench, disk = Bench(), Counting()
    bench.disk = disk
    bench.reopen(replace(bench.settings, queue_count=1, tail_entries_max=1))
    sent = [bench.send(body=b"x" * 50) for _ in range(count)]
    bench.broker.store.dispatch.write()
    return bench, disk, sent


def hurt_record(bench: Bench, sent: SendReceipt) -> None:
    """Flip a bit of a record in the log."""
    base, position = divmod(sent.physical_offset, SEGMENT_BYTES)
    bench.disk.flip_bit(layout.segment_path(base * SEGMENT_BYTES), 8 * (position + 20))


def received(bench: Bench, group: str) -> list[str]:
    """Return the ids of all messages that a group gets until a file of its queue is found damaged."""
    ids: list[str] = []
    with suppress(StoreDamaged):
        while some := bench.receive(group):
            ids += [one.message.message_id for one in some]
    bench.flush()
    return ids


QUEUE_FILE: Final = f"consumequeue/t/0/{0:020}"


@pytest.mark.parametrize("place", [1, 249, 250, 400, 599])
@pytest.mark.parametrize("is_zeroed", [True, False])
def test_nothing_is_passed_over_for_an_entry_that_was_damaged_after_its_file_was_compared(
    place: int, is_zeroed: bool
) -> None:
    """The file was compared once: then the log was told as damaged, and the message never came."""
    bench, disk, sent = one_queue(600)
    hurt_record(bench, sent[0])
    assert len(received(bench, "before")) == 599
    if is_zeroed:
        disk.write(QUEUE_FILE, 20 * place, bytes(20))
    else:
        disk.flip_bit(QUEUE_FILE, 8 * (20 * place + 5))
    bench.broker.store.dispatch.queue("t", 0)._read_ahead = b""  # as others' reads leave it
    got = received(bench, "g")
    assert [one.part for one in bench.broker.damage] == ["log", "queue"]
    bench.reopen(bench.settings)
    got += received(bench, "g")
    assert {*got} == {f"M{number}" for number in range(2, 601)}


def test_damage_of_the_log_is_passed_over_and_has_a_file_of_its_queue_read_once() -> None:
    bench, disk, sent = one_queue(600)
    for one in sent[100:500]:
        hurt_record(bench, one)
    disk.reads.clear()
    assert received(bench, "g") == [f"M{number}" for number in (*range(1, 101), *range(501, 601))]
    assert {one.part for one in bench.broker.damage} == {"log"}
    assert [length for length in disk.reads if length > 5_000] == [600 * 20]
    assert len(disk.reads) < 1_000


DAMAGES: Final = [*product(("unreadable", "short", "missing"), (True, False)), ("differs", True)]


@pytest.mark.parametrize(("how", "is_of_earlier_run"), DAMAGES)
def test_a_file_that_is_damaged_is_told_once_and_not_read_again_until_it_is_made_anew(
    how: str, is_of_earlier_run: bool
) -> None:
    """Each receive read the bad sector again, and took the mark away again, with a sync of its folder."""
    bench, disk, _ = one_queue(3)
    kept_on_disk(bench)
    if is_of_earlier_run:
        bench.reopen(bench.settings)
    match how:
        case "unreadable":
            disk.unreadable = QUEUE_FILE
        case "short":
            disk.truncate(QUEUE_FILE, 59)
        case "missing":
            disk.delete(QUEUE_FILE)
        case "differs":
            disk.flip_bit(QUEUE_FILE, 5)
    disk.reads.clear()
    disk.deleted.clear()
    for _ in range(3):
        with pytest.raises(StoreDamaged, match=QUEUE_FILE):
            bench.receive()
        with pytest.raises(StoreDamaged, match=QUEUE_FILE):
            bench.broker.finding.read("t", 0, 0, 9)
    assert (len(disk.reads), disk.deleted) == (1, [layout.QUEUES_WHOLE])
    assert [one.path for one in bench.broker.damage] == [QUEUE_FILE]
    disk.unreadable = "none"
    bench.reopen(bench.settings)
    assert received(bench, "g") == ["M1", "M2", "M3"]


DAMAGED_COUNT: Final = 400
HOUR: Final = 3_600_000


def filled() -> MemoryDisk:
    """A store with messages, timers, ended timers and halves, whose files are all written."""
    disk = MemoryDisk()
    broker = Broker.open(
        disk, BrokerSettings(segment_bytes=1 << 16, queue_count=1, tail_entries_max=1), NOW_MS
    )
    for number in range(12):
        for kind, given in (
            ("M", {}),
            ("T", {"delivery_ms": NOW_MS + HOUR * (2 + number)}),
            ("H", {"transactional": True}),
        ):
            message = Message(topic="t", body=b"x" * 50, message_id=f"{kind}{number}", keys=("k",), **given)
            broker.sending.send(message, NOW_MS)
    flush_all(broker)
    broker.timers.cancel(TimerName("t", message_id="T0"), "", NOW_MS)
    flush_all(broker)
    checkpoint = broker.checkpoint(NOW_MS)
    checkpoint.write(disk)
    broker.complete_checkpoint(checkpoint)
    broker.store.dispatch.write()
    checkpoint = broker.checkpoint(NOW_MS)
    checkpoint.write(disk)
    return disk


def flush_all(broker: Broker) -> None:
    while (flush := broker.take_flush()) is not None:
        flush.write()
        broker.complete_flush(flush, NOW_MS)


def answers(broker: Broker) -> Iterator[object]:
    """What readers of each kind answer."""
    transaction_ids = [one.transaction_id for one in broker.half_views.page(HalfFilter(), None, 99).halves]
    readers: list[Callable[[], object]] = [
        lambda: broker.finding.find("t", "k", 99),
        lambda: broker.finding.read("t", 0, 0, 99),
        lambda: broker.finding.offset_at("t", 0, NOW_MS),
        lambda: broker.timer_views.read_page(TimerFilter(topic="t", tag="none"), None, 99),
        lambda: broker.timer_views.read_page(TimerFilter(topic="t"), None, 99),
        lambda: broker.half_views.page(HalfFilter(), None, 99),
        lambda: broker.half_views.find_by_key("t", "k", 99),
        lambda: broker.receiving.receive("g", "t", EVERYTHING, 9, 20_000, "c", False, NOW_MS).deliveries,
    ]
    readers += [
        partial(broker.timers.get_timer, TimerName("t", message_id=f"T{number}"), NOW_MS)
        for number in range(13)
    ]
    readers += [partial(broker.half_views.get_half, one) for one in transaction_ids]
    yield len(transaction_ids)
    for reader in readers:
        try:
            yield reader()
        except StoreDamaged as error:
            yield error.detail


def test_no_damage_that_changes_an_answer_is_silent() -> None:
    """Damage one place of one file of a running broker, ask all readers: an answer that differs was told."""
    random, disk = Random(40), filled()
    settings = BrokerSettings(segment_bytes=1 << 16, queue_count=1)
    expected = list(answers(Broker.open(deepcopy(disk), settings, NOW_MS)))
    folders = ("commitlog", "keyindex", "timers", "timers-names", "timers-ends", "consumequeue/t/0")
    differing_count = 0
    for _ in range(DAMAGED_COUNT):
        hurt = deepcopy(disk)
        broker = Broker.open(hurt, settings, NOW_MS)
        folder = random.choice(folders)
        path = f"{folder}/{random.choice(hurt.list(folder))}"
        place = random.randrange(used_bytes(hurt, path))
        match random.choice(("bit", "zeros", "cut")):
            case "bit":
                hurt.flip_bit(path, place * 8 + random.randrange(8))
            case "zeros":
                hurt.write(path, place, bytes(min(64, hurt.size(path) - place)))
            case "cut":
                hurt.truncate(path, place)
        if list(answers(broker)) != expected:
            differing_count += 1
            assert broker.damage, (path, place)
    assert differing_count > DAMAGED_COUNT // 4


def used_bytes(disk: MemoryDisk, path: str) -> int:
    return max(1, len(bytes(disk.view(path)).rstrip(b"\0")))
