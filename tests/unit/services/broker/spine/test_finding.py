"""Messages by key and by id, through the broker, its restarts, damage, the HTTP interface and the command."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from commitlog.errors import StoreDamaged
from commitlog.layout import KEYINDEX
from commitlog.limits import SEGMENT_BYTES_SMALL
from commitlog.records.message import Message
from consumequeue.filters.filter import EVERYTHING
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Resolution, SendReceipt
from services.cli.messages.msg import lines
from services.live.live_broker import LiveBroker
from services.ops.app import make_app
from services.ops.metrics.broker_metrics import Metrics
from tests.memory_disk import MemoryDisk

NOW_MS = 1_763_700_000_000
SETTINGS = BrokerSettings(segment_bytes=SEGMENT_BYTES_SMALL)


class Bench:
    """A broker whose every call is flushed."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.open()

    def open(self) -> None:
        self.broker = Broker.open(self.disk, SETTINGS, NOW_MS)

    def send(self, message_id: str, *keys: str, topic: str = "t", **attributes: object) -> SendReceipt:
        message = Message(topic=topic, body=b"x", message_id=message_id, keys=keys, **attributes)  # type: ignore[arg-type]
        receipt = self.broker.sending.send(message, NOW_MS)
        self.flush()
        return receipt

    def flush(self) -> None:
        while flush := self.broker.take_flush():
            flush.write()
            self.broker.complete_flush(flush, NOW_MS)

    def checkpoint(self) -> None:
        checkpoint = self.broker.checkpoint(NOW_MS)
        checkpoint.write(self.disk)
        self.broker.complete_checkpoint(checkpoint)

    def found(self, key: str, topic: str = "t", count_max: int = 99) -> list[str]:
        return [one.message.message_id for one in self.broker.finding.find(topic, key, count_max).messages]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_every_word_of_the_keys_and_the_id_find_it(bench: Bench) -> None:
    bench.send("M1", "order-1", "customer-7")
    bench.send("M2", "order-2", "customer-7")
    bench.send("M3", "order-1", topic="other")
    assert bench.found("order-1") == ["M1"]
    assert bench.found("customer-7") == ["M2", "M1"]
    assert bench.found("customer-7", count_max=1) == ["M2"]
    assert bench.found("M1") == ["M1"]
    assert bench.found("order-1", topic="other") == ["M3"]
    assert bench.found("order-1 customer-7") == bench.found("order") == bench.found("order-1", "never") == []


def test_nothing_is_found_before_it_is_durable(bench: Bench) -> None:
    bench.broker.sending.send(Message(topic="t", body=b"x", message_id="M1"), NOW_MS)
    assert bench.found("M1") == []
    bench.flush()
    assert bench.found("M1") == ["M1"]


def test_all_that_became_of_a_message_is_found_under_its_own_topic(bench: Bench) -> None:
    bench.send("T", "k", delivery_ms=NOW_MS + 10)
    half = bench.send("H", "k", transactional=True)
    assert [one.stored_topic for one in bench.broker.finding.find("t", "k", 9).messages] == [
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "rmq_sys_wheel_timer",
    ]
    bench.broker.transactions.end("t", half.transaction_id, "H", Resolution.COMMIT, NOW_MS)
    bench.broker.tick(NOW_MS + 10)
    bench.flush()
    assert bench.found("k") == ["T", "H", "H", "T"]
    assert [one.stored_topic for one in bench.broker.finding.find("t", "k", 2).messages] == ["t", "t"]


def test_dead_letters_are_found_in_their_topic(bench: Bench) -> None:
    bench.send("M1", "k")
    (got,) = bench.broker.receiving.receive("g", "t", EVERYTHING, 1, 20_000, "c", False, NOW_MS).deliveries
    bench.broker.receiving.forward_to_dead_letter("g", "t", got.receipt_handle, NOW_MS)
    bench.flush()
    assert bench.found("k", topic="%DLQ%g") == ["M1"]


def test_it_survives_restarts_with_and_without_a_snapshot(bench: Bench) -> None:
    bench.send("M1", "k")
    bench.checkpoint()
    bench.send("M2", "k")
    bench.checkpoint()
    bench.send("M3", "k")
    bench.open()
    assert bench.broker.rebuilt_files == []
    assert bench.found("k") == ["M3", "M2", "M1"]


@pytest.mark.parametrize("how", ["missing", "damaged", "renamed"])
def test_a_lost_index_is_made_anew_and_the_start_says_so(bench: Bench, how: str) -> None:
    bench.send("M1", "k")
    bench.checkpoint()
    bench.send("M2", "k")
    (run,) = bench.disk.list(KEYINDEX)
    if how == "damaged":
        bench.disk.flip_bit(f"{KEYINDEX}/{run}", 77)
    elif how == "missing":
        bench.disk.delete(KEYINDEX)
    else:
        bench.disk.rename(f"{KEYINDEX}/{run}", f"{KEYINDEX}/other")
    bench.open()
    (said,) = bench.broker.rebuilt_files
    assert said.startswith("the key index: ")
    assert run in said
    assert bench.found("k") == ["M2", "M1"]
    bench.checkpoint()
    bench.open()
    assert bench.broker.rebuilt_files == []
    assert bench.found("k") == ["M2", "M1"]


def test_damage_met_while_running_is_refused_and_made_good_by_the_next_start(bench: Bench) -> None:
    bench.send("M1", "k")
    bench.checkpoint()
    bench.disk.flip_bit(f"{KEYINDEX}/{bench.disk.list(KEYINDEX)[0]}", 8 * 4096 + 3)
    with pytest.raises(StoreDamaged, match="made anew from the log at the next start"):
        bench.found("k")
    bench.send("M2", "k")
    assert bench.found("k", count_max=1) == ["M2"]
    bench.checkpoint()
    bench.open()
    assert bench.broker.rebuilt_files == ["the key index: the snapshot names no sound files"]
    assert bench.found("k") == ["M2", "M1"]


def test_a_damaged_record_is_left_out(bench: Bench) -> None:
    receipt = bench.send("M1", "k")
    bench.send("M2", "k")
    bench.disk.flip_bit(f"commitlog/{0:020d}", (receipt.physical_offset + 60) * 8)
    assert bench.found("k") == ["M2"]
    assert bench.broker.damage.unreadable_records == 1


def message(message_id: str) -> Message:
    return Message(topic="t", body=b"hello", message_id=message_id, tag="a", keys=("k",))


@pytest.fixture
def asked() -> list[httpx.Response]:
    """The HTTP interface's answers about two messages with one key."""

    async def ask() -> list[httpx.Response]:
        with ThreadPoolExecutor(1) as writer:
            call_later = asyncio.get_running_loop().call_later
            live = LiveBroker(MemoryDisk(), SETTINGS, lambda: NOW_MS, call_later, writer)
            transport = httpx.ASGITransport(make_app(live, Metrics(live, [])))
            for message_id in ("M1", "M2"):
                await live.send(
                    Message(topic="t", body=b"hello", message_id=message_id, keys=("k",), tag="a")
                )
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                queries = ("topic=t&key=k", "topic=t&key=M1&limit=1", "topic=t", "topic=none&key=k")
                answers = [await http.get(f"/api/messages?{query}") for query in queries]
            await live.close()
            return answers

    return asyncio.run(ask())


def test_the_http_interface_looks_messages_up(asked: list[httpx.Response]) -> None:
    by_key, by_id, without_key, no_topic = asked
    assert [one["message_id"] for one in by_key.json()["messages"]] == ["M2", "M1"]
    (one,) = by_id.json()["messages"]
    assert (one["message_id"], one["stored_topic"], one["body"]) == ("M1", "t", "hello")
    assert (without_key.status_code, no_topic.status_code) == (400, 404)


def test_the_command_shows_place_names_and_body(asked: list[httpx.Response]) -> None:
    shown = "\n".join(lines(asked[1].json()["messages"][0]))
    for told in ("t queue ", " offset 0  log ", "id M1  keys k  tag a", "hello"):
        assert told in shown
