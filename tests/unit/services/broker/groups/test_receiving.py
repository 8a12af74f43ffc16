"""Receiving: message groups, attempts, filters and bounds, verb by verb."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commitlog import layout, limits
from commitlog.records.message import Message
from consumequeue.filters.filter import TAG, FilterText, parse_tags
from consumequeue.filters.sql_filter import parse_sql
from services.broker.broker import Broker
from services.broker.groups.group_values import GroupPolicy, GroupStart
from services.broker.spine.errors import GroupExists, GroupNotFound, MessageNotFound, TooManyRequests
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Delivery, StartPosition, WakeReceivers
from tests.flushed_broker import NOW_MS, FlushedBroker
from tidewheel import property_names
from tidewheel.errors import InvalidReceiptHandle

SETTINGS = BrokerSettings(segment_bytes=1 << 20, attempts_max=2, queue_count=1)


class Bench(FlushedBroker):
    """A broker with everything flushed after each call, and clients that know what they hold."""

    def __init__(self, settings: BrokerSettings = SETTINGS) -> None:
        super().__init__(settings)

    def send(self, message_group: str = "", **attributes: object) -> str:
        self.count += 1
        given = {"topic": "t", "body": b"x", "message_id": f"M{self.count}", "message_group": message_group}
        self.broker.sending.send(Message(**given | attributes), self.now_ms)
        self.flush()
        return f"M{self.count}"

    def receive(self, group: str = "g", tags: str = "*", batch: int = 32, **more: object) -> list[Delivery]:
        options = {
            "topic_name": more.pop("topic", "t"),
            "invisible_ms": 20_000,
            "client_id": "c",
            "auto_renew": False,
        } | more
        received = self.broker.receiving.receive(
            group=group, wanted=parse_tags(tags), batch_size=batch, now_ms=self.now_ms, **options
        )
        self.flush()
        assert self.broker.durable_offset >= received.durable_at
        return received.deliveries

    def ids(self, *arguments: object, **options: object) -> list[str]:
        return [one.message.message_id for one in self.receive(*arguments, **options)]

    def ack(self, delivery: Delivery, group: str = "g") -> list[object]:
        self.broker.receiving.ack(group, delivery.message.topic, delivery.receipt_handle, self.now_ms)
        return self.flush()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_of_a_message_group_one_is_out_at_a_time_and_others_go_on(bench: Bench) -> None:
    for message_group in ("a", "a", "b", "a", "", "b"):
        bench.send(message_group)
    first_a, first_b, plain = bench.receive()
    assert [one.message.message_id for one in (first_a, first_b, plain)] == ["M1", "M3", "M5"]
    assert bench.receive() == []
    assert bench.ack(first_a) == [WakeReceivers(("t",))], "who waits for the next of the group is woken"
    (second_a,) = bench.receive()
    assert second_a.message.message_id == "M2"
    bench.ack(first_b)
    assert bench.ids() == ["M6"]
    bench.ack(second_a)
    assert bench.ids() == ["M4"]


def test_a_failed_message_comes_before_its_successors(bench: Bench) -> None:
    for _ in range(3):
        bench.send("a")
    bench.receive()
    assert bench.advance(20_000) == [WakeReceivers(("t",))]
    (again,) = bench.receive()
    assert (again.message.message_id, again.attempt) == ("M1", 2)
    bench.advance(20_000)
    (after_the_dead_letter,) = bench.receive()
    assert after_the_dead_letter.message.message_id == "M2"
    assert [
        one.message.message_id for one in bench.broker.dead_letters.read_page("g", None, 9).dead_letters
    ] == ["M1"]


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_restart_gives_a_message_group_to_nobody_else(bench: Bench, is_checkpointed: bool) -> None:
    bench.send("a")
    bench.send()
    bench.send("a")
    ordered, plain = bench.receive()
    if is_checkpointed:
        bench.checkpoint()
    bench.reopen()
    assert bench.ids() == ["M2"], "a message without a group is given out again"
    with pytest.raises(InvalidReceiptHandle):
        bench.ack(plain)
    bench.ack(ordered)
    assert bench.ids() == ["M3"]


def test_a_lease_of_before_a_restart_runs_out_as_it_would_have(bench: Bench) -> None:
    bench.send("a")
    bench.receive()
    bench.reopen()
    assert bench.advance(19_999) == []
    assert bench.advance(1) == [WakeReceivers(("t",))]
    assert [one.attempt for one in bench.receive()] == [2]


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_restart_is_no_attempt_and_forgets_none(bench: Bench, is_checkpointed: bool) -> None:
    """Attempts count leases that ended while the broker served; docs/receiving.md says so."""
    bench.send()
    bench.send("a")
    for made in (0, 1):
        for _ in range(3):
            delivered = {one.message.message_id: one for one in bench.receive()}
            assert delivered.pop("M1").attempt == made + 1
            assert all(one.attempt == made + 1 for one in delivered.values()), "M2, unless it is leased"
            if is_checkpointed:
                bench.checkpoint()
            bench.reopen()
        (plain,) = bench.receive()
        assert plain.attempt == made + 1, "the lease of the message group stands"
        bench.advance(20_000)
    letters = bench.broker.dead_letters.read_page("g", None, 9).dead_letters
    assert sorted((one.message.message_id, one.attempts) for one in letters) == [("M1", 2), ("M2", 2)]


def test_a_push_consumer_may_come_back_after_a_restart(bench: Bench) -> None:
    bench.send("a")
    (got,) = bench.receive(auto_renew=True, client_id="listener")
    bench.advance(25_000)
    bench.broker.receiving.renew_client("listener", bench.now_ms)
    bench.reopen()
    bench.advance(25_000)
    bench.broker.receiving.renew_client("listener", bench.now_ms)
    bench.advance(25_000)
    bench.ack(got)
    assert bench.broker.groups.lag() == {("t", "g"): 0}


def lead_on(bench: Bench, epoch: int) -> None:
    """Let another leader begin, who has read all and knows of no plain lease."""
    bench.reopen()
    bench.broker.epoch.raise_to(epoch, bench.now_ms)
    bench.flush()


def test_a_plain_message_of_an_earlier_epoch_is_acknowledged_unless_it_is_done_or_out_again(
    bench: Bench,
) -> None:
    lead_on(bench, 1)
    for _ in range(4):
        bench.send()
    early, done, again, twice = bench.receive(client_id="before")
    bench.ack(done)
    lead_on(bench, 2)
    bench.ack(early)
    with pytest.raises(InvalidReceiptHandle):
        bench.ack(early)
    with pytest.raises(InvalidReceiptHandle):
        bench.ack(done)
    handles = [twice.receipt_handle] * 2
    first, second = bench.broker.receiving.ack_many("g", "t", handles, bench.now_ms)
    bench.flush()
    assert not isinstance(first, Exception)
    assert isinstance(second, InvalidReceiptHandle), "one answer each"
    (out,) = bench.receive(client_id="after")
    assert out.message.message_id == again.message.message_id, "what was acknowledged does not come again"
    with pytest.raises(InvalidReceiptHandle):
        bench.ack(again)
    bench.ack(out)
    lead_on(bench, 3)
    assert bench.ids() == []


def test_what_was_leased_in_this_epoch_or_of_a_message_group_is_acknowledged_by_its_lease_only(
    bench: Bench,
) -> None:
    lead_on(bench, 1)
    bench.send("line")
    (of_group,) = bench.receive()
    lead_on(bench, 2)
    bench.advance(25_000)
    with pytest.raises(InvalidReceiptHandle):
        bench.ack(of_group)
    bench.send()
    (plain,) = [one for one in bench.receive() if not one.message.message_group]
    bench.advance(25_000)
    with pytest.raises(InvalidReceiptHandle):
        bench.ack(plain)
    forged = plain.receipt_handle.replace(" 2 ", " 1 ").split(" ")
    forged[8] = "7"
    with pytest.raises(InvalidReceiptHandle):
        bench.broker.receiving.ack("g", "t", " ".join(forged), bench.now_ms)


def test_a_lease_may_be_made_to_outlast_the_time_in_which_nobody_could_acknowledge(bench: Bench) -> None:
    bench.send("a")
    bench.receive()
    bench.advance(19_000)
    bench.broker = Broker.recover(bench.disk, bench.settings, bench.now_ms)
    bench.broker.begin(bench.now_ms, leases_until_ms=bench.now_ms + 30_000)
    bench.advance(29_000)
    assert bench.ids() == [], "it would have run out 28 s ago"
    bench.advance(2_000)
    assert bench.ids() == ["M1"]


TAKEOVER_MS = 30_000


def take_over(bench: Bench, epoch: int) -> None:
    """Let the next leader begin as a node of a cluster does."""
    bench.broker = Broker.recover(bench.disk, bench.settings, bench.now_ms)
    bench.broker.begin(bench.now_ms, leases_until_ms=bench.now_ms + TAKEOVER_MS)
    bench.broker.epoch.raise_to(epoch, bench.now_ms)
    bench.broker.receiving.record_extended_leases(bench.now_ms)
    bench.flush()


@pytest.mark.parametrize("is_push", [True, False], ids=["renewed", "for a time"])
def test_the_lease_of_a_consumer_that_is_gone_ends_however_often_leaders_change(
    bench: Bench, is_push: bool
) -> None:
    bench.send("a")
    bench.receive(auto_renew=is_push, client_id="gone")
    bench.advance(10_000)
    for epoch in range(1, 4):
        take_over(bench, epoch)
        assert bench.ids() == [], "a takeover lengthens it, once"
        bench.advance(TAKEOVER_MS // 3 - 1)
    bench.advance(3)
    assert bench.ids() == ["M1"]


def test_each_takeover_lengthens_the_lease_of_a_consumer_that_each_leader_hears(bench: Bench) -> None:
    bench.send("a")
    (held,) = bench.receive(auto_renew=True, client_id="alive")
    for epoch in range(1, 6):
        bench.advance(1_000)
        take_over(bench, epoch)
        bench.advance(20_000)
        bench.broker.receiving.renew_client("alive", bench.now_ms)
        before = bench.broker.end_offset
        bench.flush()
        assert bench.broker.end_offset > before, "that it was heard is a record"
        bench.advance(5_000)
        bench.broker.receiving.renew_client("alive", bench.now_ms)
        bench.flush()
        assert bench.ids() == []
    bench.ack(held)


def test_a_lease_lengthened_by_a_leader_whose_clock_was_ahead_ends_all_the_same(bench: Bench) -> None:
    bench.send("a")
    bench.receive(auto_renew=True, client_id="gone")
    bench.advance(3_600_000)
    take_over(bench, 1)
    bench.now_ms -= 3_600_000
    take_over(bench, 2)
    bench.advance(TAKEOVER_MS + 1)
    assert bench.ids() == ["M1"]


def test_a_receive_whose_answer_was_lost_in_a_restart_is_answered_again(bench: Bench) -> None:
    bench.send("a")
    bench.send("b")
    listener = {"auto_renew": True, "client_id": "listener"}
    bench.receive(batch=1, attempt_id="first", **listener)
    (heard,) = bench.receive(batch=1, attempt_id="second", **listener)
    bench.reopen()
    assert bench.receive(attempt_id="first", auto_renew=True, client_id="somebody else") == []
    (again,) = bench.receive(attempt_id="first", **listener)
    assert (again.message.message_id, again.attempt) == ("M1", 1)
    assert bench.receive(attempt_id="first", **listener) == [], "asked once more it is another receive"
    bench.ack(heard)
    bench.ack(again)


def test_a_group_is_forgotten_whole_by_one_record(bench: Bench) -> None:
    bench.send()
    bench.send(topic="u")
    bench.receive()
    bench.receive(topic="u")
    bench.broker.group_views.set_policy("g", GroupPolicy(attempts_max=9), NOW_MS)
    before = bench.broker.end_offset
    bench.broker.group_views.delete("g", "", NOW_MS)
    bench.flush()
    assert bench.broker.end_offset - before < 300
    bench.reopen()
    assert bench.broker.group_views.view_all() == []
    assert sorted(bench.ids() + bench.ids(topic="u")) == ["M1", "M2"]
    assert bench.broker.group_views.view_group("g").policy.attempts_max == SETTINGS.attempts_max


def test_a_run_takes_several_of_a_message_group_and_closes_it_until_all_are_done(bench: Bench) -> None:
    bench.broker.group_views.set_policy("g", GroupPolicy(attempts_max=5, fifo_run_max=2), NOW_MS)
    for _ in range(5):
        bench.send("a")
    first, second = bench.receive()
    assert bench.receive() == []
    bench.ack(second)
    assert bench.receive() == [], "the first is still out"
    bench.advance(20_000)
    (again,) = bench.receive()
    assert again.message.message_id == first.message.message_id == "M1", "what failed comes again, alone"
    assert bench.receive() == []
    bench.ack(again)
    assert bench.ids() == ["M3", "M4"], "then runs go on"


@pytest.mark.parametrize("restarts", ["never", "at once", "from a snapshot"])
def test_what_was_not_acknowledged_of_a_run_comes_again_before_anything_later(
    bench: Bench, restarts: str
) -> None:
    """Only what a run had comes again with it, also what its consumer set aside without counting."""
    bench.broker.group_views.set_policy("g", GroupPolicy(attempts_max=5, fifo_run_max=4), NOW_MS)
    for _ in range(6):
        bench.send("a")
    first, second, third, fourth = bench.receive()
    bench.ack(second)
    bench.broker.receiving.change_invisible("g", "t", third.receipt_handle, 5_000, True, NOW_MS)
    bench.broker.receiving.release("g", "t", fourth.receipt_handle, NOW_MS)
    bench.flush()
    bench.advance(20_000)
    if restarts != "never":
        if restarts == "from a snapshot":
            bench.checkpoint()
        bench.reopen()
    again = bench.receive()
    assert [one.message.message_id for one in again] == ["M1", "M3", "M4"]
    assert [one.attempt for one in again] == [2, 1, 1]
    for one in again:
        assert bench.receive() == []
        bench.ack(one)
    assert bench.ids() == ["M5", "M6"]
    assert first.attempt == 1


def test_a_run_that_comes_again_keeps_its_bound(bench: Bench) -> None:
    bench.broker.group_views.set_policy("g", GroupPolicy(attempts_max=5, fifo_run_max=4), NOW_MS)
    for _ in range(4):
        bench.send("a")
    assert len(bench.receive()) == 4
    bench.broker.group_views.set_policy("g", GroupPolicy(attempts_max=5, fifo_run_max=2), NOW_MS)
    bench.advance(20_000)
    assert bench.ids() == ["M1", "M2"]


def test_attempts_outlive_a_restart_and_their_errors_are_in_the_dead_letter(bench: Bench) -> None:
    bench.send()
    bench.receive(client_id="one")
    bench.advance(20_000)
    bench.reopen()
    (second,) = bench.receive(client_id="two")
    assert second.attempt == 2
    bench.broker.receiving.change_invisible("g", "t", second.receipt_handle, 5_000, False, bench.now_ms)
    bench.advance(5_000)
    bench.reopen()
    assert bench.receive() == []
    (dead_letter,) = bench.broker.dead_letters.read_page("g", None, 9).dead_letters
    assert (dead_letter.topic, dead_letter.message.message_id, dead_letter.attempts) == ("t", "M1", 2)
    assert dead_letter.reason == "attempts used up"
    assert dead_letter.first_error == f"{NOW_MS + 20_000} not acknowledged in time, consumer one"
    assert dead_letter.last_error == f"{NOW_MS + 25_000} set aside by its consumer, consumer two"


def test_an_attempt_that_is_suspended_or_never_heard_of_does_not_count(bench: Bench) -> None:
    bench.send()
    for _ in range(5):
        (got,) = bench.receive()
        assert got.attempt == 1
        bench.broker.receiving.release("g", "t", got.receipt_handle, bench.now_ms)
    for _ in range(5):
        (got,) = bench.receive()
        assert got.attempt == 1
        bench.broker.receiving.change_invisible("g", "t", got.receipt_handle, 100, True, bench.now_ms)
        bench.advance(100)
        bench.reopen()


def test_acknowledgements_of_a_call_are_judged_one_by_one(bench: Bench) -> None:
    for _ in range(4):
        bench.send()
    first, _, third, fourth = (one.receipt_handle for one in bench.receive())
    answers = bench.broker.receiving.ack_many("g", "t", [fourth, first, first, "7 7", third], bench.now_ms)
    refused = [isinstance(answer, InvalidReceiptHandle) for answer in answers]
    assert refused == [False, False, True, True, False]
    assert {answers[0], answers[1], answers[4]} == {bench.broker.end_offset + 1}
    bench.flush()
    bench.reopen()
    assert bench.ids() == ["M2"]


def test_what_was_leased_before_a_filter_failed_comes_again_when_its_leases_end(bench: Bench) -> None:
    for _ in range(3):
        bench.send()

    class Failing:
        tags_codes = None
        text = FilterText(TAG, "*")

        def matches(self, stored: bytes) -> bool:
            if b"M2" in stored:
                raise RuntimeError("no such thing")
            return True

        def work(self, stored_bytes: int) -> int:
            return 0

    with pytest.raises(RuntimeError):
        bench.broker.receiving.receive("g", "t", Failing(), 32, 20_000, "c", False, bench.now_ms)
    assert bench.ids() == ["M2", "M3"]
    bench.advance(20_000)
    assert bench.ids() == ["M1", "M2", "M3"]


def test_a_receive_reads_neighbours_in_one_go_and_passes_over_what_is_damaged(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(8):
        bench.send(body=b"x" * 100)
    path = layout.segment_path(0)
    fourth = bytes(bench.disk.view(path)).index(b"M4")
    bench.disk.flip_bit(path, fourth * 8)
    read = bench.disk.read
    read_paths = []
    monkeypatch.setattr(bench.disk, "read", lambda *wanted: read_paths.append(wanted[0]) or read(*wanted))
    assert bench.ids() == ["M1", "M2", "M3", "M5", "M6", "M7", "M8"]
    assert read_paths.count(path) == 2, "the damaged one is read again, to tell what is wrong"
    assert bench.broker.damage.unreadable_records == 1


def test_a_filter_that_lets_nothing_through_is_done_in_slices(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SCANNED_PER_RECEIVE_MAX", 10)
    for _ in range(25):
        bench.send(tag="other")
    bench.send(tag="mine")
    read_all = parse_sql("NOT TAGS <> 'mine'")  # which must read every record
    assert read_all.tags_codes is None
    seen = []
    for _ in range(3):
        received = bench.broker.receiving.receive("g", "t", read_all, 32, 20_000, "c", False, NOW_MS)
        seen.append((len(received.deliveries), received.is_unfinished))
    assert seen == [(0, True), (0, True), (1, False)]
    assert bench.ids("tags", tags="mine") == ["M26"]
    assert bench.broker.groups.lag() == {("t", "g"): 1, ("t", "tags"): 1}


def test_a_group_with_too_much_in_flight_is_told_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "IN_FLIGHT_PER_QUEUE_MAX", 3)
    for _ in range(5):
        bench.send()
    first, *_ = bench.receive(batch=3)
    with pytest.raises(TooManyRequests, match="Acknowledge"):
        bench.receive()
    assert len(bench.receive("other", batch=3)) == 3, "others go on"
    bench.ack(first)
    assert len(bench.receive()) == 1


def test_one_crowded_message_group_parks_only_so_many(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PARKED_PER_QUEUE_MAX", 4)
    for _ in range(10):
        bench.send("hot")
    bench.send("cold")
    got = bench.receive()
    (view,) = bench.broker.group_views.view_group("g").queues
    assert (view.in_flight, view.waiting, view.next_offset) == (1, 4, 5)
    seen = []
    while got:
        seen += [one.message.message_id for one in got]
        for one in got:
            bench.ack(one)
        got = bench.receive()
    assert [one for one in seen if one != "M11"] == [f"M{number}" for number in range(1, 11)]
    assert "M11" in seen


def test_a_late_group_begins_where_the_settings_say() -> None:
    bench = Bench(replace(SETTINGS, group_start=StartPosition.LATEST))
    bench.send()
    assert bench.ids() == []
    bench.send()
    bench.reopen()
    assert bench.ids() == ["M2"]


def test_a_reset_voids_leases_and_outlives_a_restart(bench: Bench) -> None:
    for _ in range(4):
        bench.send()
    first, *_ = bench.receive()
    bench.ack(first)
    plan = bench.broker.group_views.reset("g", "t", GroupStart(StartPosition.EARLIEST), True, NOW_MS)
    assert [(one.before, one.after, one.end_offset) for one in plan.moves] == [(1, 0, 4)]
    assert bench.ids() == []
    bench.broker.group_views.reset("g", "", GroupStart(StartPosition.OFFSET, 2), False, NOW_MS)
    bench.flush()
    with pytest.raises(InvalidReceiptHandle):
        bench.ack(first)
    bench.reopen()
    assert bench.ids() == ["M3", "M4"]
    assert bench.advance(20_000) == [WakeReceivers(("t",))]


def test_a_paused_group_gets_nothing(bench: Bench) -> None:
    bench.send()
    policy = GroupPolicy(is_paused=True)
    bench.broker.group_views.set_policy("g", policy, NOW_MS)
    assert bench.ids() == []
    bench.reopen()
    assert bench.ids() == []
    bench.broker.group_views.set_policy("g", replace(policy, is_paused=False), NOW_MS)
    assert bench.ids() == ["M1"]


def test_groups_that_are_not_there_are_said_to_be_missing(bench: Bench) -> None:
    with pytest.raises(GroupNotFound, match="tidewheel group ls"):
        bench.broker.group_views.view_group("nobody")
    bench.send()
    bench.receive()
    with pytest.raises(GroupNotFound, match="it receives t"):
        bench.broker.group_views.reset("g", "elsewhere", GroupStart(), False, NOW_MS)
    with pytest.raises(GroupExists, match="tidewheel group reset"):
        bench.broker.group_views.create("g", "t", GroupStart(), NOW_MS)
    bench.broker.group_views.delete("g", "", NOW_MS)
    with pytest.raises(GroupNotFound):
        bench.broker.group_views.view_group("g")


def test_a_dead_letter_is_redriven_for_its_group_alone_or_to_another_topic(bench: Bench) -> None:
    for _ in range(3):
        bench.send(keys=("k",))
    for one in bench.receive():
        bench.broker.receiving.forward_to_dead_letter("g", "t", one.receipt_handle, NOW_MS)
    bench.flush()
    for one in bench.receive("other"):
        bench.ack(one, "other")
    assert [one.reason for one in bench.broker.dead_letters.read_page("g", None, 9).dead_letters] == [
        "its consumer gave it up"
    ] * 3
    bench.broker.dead_letters.redrive("g", 0, "", NOW_MS)
    bench.broker.dead_letters.redrive("g", 1, "elsewhere", NOW_MS)
    bench.broker.dead_letters.purge("g", 2, NOW_MS)
    bench.flush()
    bench.reopen()
    assert bench.broker.dead_letters.read_page("g", None, 9).dead_letters == []
    assert bench.ids("other") == []
    (again,) = bench.receive()
    assert (again.message.message_id, again.attempt) == ("M1", 1)
    assert again.message.properties[property_names.REDRIVE_OF] == "%DLQ%g:0"
    assert bench.ids("anybody", topic="elsewhere") == ["M2"]
    with pytest.raises(MessageNotFound, match="tidewheel dlq ls g"):
        bench.broker.dead_letters.redrive("g", 0, "", NOW_MS)


def test_dead_letters_come_in_pages(bench: Bench) -> None:
    for _ in range(5):
        bench.send()
    for one in bench.receive():
        bench.broker.receiving.forward_to_dead_letter("g", "t", one.receipt_handle, NOW_MS)
    bench.flush()
    bench.broker.dead_letters.purge("g", 1, NOW_MS)
    page = bench.broker.dead_letters.read_page("g", None, 2)
    assert [one.queue_offset for one in page.dead_letters] == [0, 2]
    page = bench.broker.dead_letters.read_page("g", page.after, 2)
    assert ([one.queue_offset for one in page.dead_letters], page.after) == ([3, 4], None)


@pytest.mark.parametrize("how", ["a tick", "a restart", "a restart while it was ahead"])
def test_a_lease_given_by_a_clock_that_was_ahead_lasts_no_longer_than_it_was_given_for(how: str) -> None:
    bench, hour_ms = Bench(replace(SETTINGS, attempts_max=9)), 3_600_000
    bench.send("a")
    bench.send()
    bench.now_ms += hour_ms
    bench.advance(1)
    assert len(bench.receive(invisible_ms=20_000)) == 2
    bench.advance(1)
    if how == "a restart while it was ahead":
        bench.broker = Broker.recover(bench.disk, bench.settings, bench.now_ms)
    bench.now_ms -= hour_ms
    if how == "a tick":
        bench.broker.record_clock_jump(bench.now_ms + hour_ms, bench.now_ms)
        bench._tick()
        bench.flush()
    elif how == "a restart":
        bench.reopen()
    else:
        bench.broker.begin(bench.now_ms)
    bench.send()
    plain = {"M2", "M3"} if how != "a tick" else {"M3"}
    assert set(bench.ids(invisible_ms=10_000)) == plain
    bench.advance(10_000)
    assert set(bench.ids(invisible_ms=10_000)) == plain, "a lease that is given now lasts as long, too"
    bench.advance(10_000)
    again = bench.receive()
    assert {one.message.message_id for one in again} == {"M1", "M2", "M3"}


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_handle_of_a_clock_that_was_ahead_is_good_when_that_was_set_back(
    bench: Bench, is_restarted: bool
) -> None:
    bench.send("a")
    bench.now_ms += 3_600_000
    bench.advance(1)
    (ordered,) = bench.receive()
    for _ in range(2):
        bench.now_ms -= 5_000
        bench.broker.record_clock_jump(bench.now_ms + 5_000, bench.now_ms)
        bench._tick()
        if is_restarted:
            bench.reopen()
    bench.ack(ordered)
    bench.advance(20_000)
    assert bench.receive() == []


def test_a_message_that_could_not_be_processed_comes_again_as_its_group_says() -> None:
    bench = Bench(replace(SETTINGS, attempts_max=5))
    bench.broker.group_views.create(
        "g", "", GroupStart(), NOW_MS, policy=GroupPolicy(retry_after_ms=(1_000, 9_000))
    )
    bench.send()
    for after_ms in (1_000, 9_000, 9_000):
        [one] = bench.receive()
        bench.broker.receiving.retry("g", "t", one.receipt_handle, None, bench.now_ms)
        bench.now_ms += after_ms - 1
        bench.broker.tick(bench.now_ms)
        assert bench.receive() == []
        bench.now_ms += 1
        bench.broker.tick(bench.now_ms)
    [one] = bench.receive()
    assert one.attempt == 4
    with pytest.raises(InvalidReceiptHandle):
        bench.broker.receiving.retry("g", "t", one.receipt_handle + "0", None, bench.now_ms)
