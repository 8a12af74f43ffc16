"""The filters of a group on a topic: only what no filter matches is passed over."""

from __future__ import annotations

import pytest

from commitlog import limits
from commitlog.facts.facts import GroupJoined
from commitlog.records.message import Message, MessageType
from consumequeue.filters.filter import Filter, parse_tags
from consumequeue.filters.sql_filter import parse_sql
from services.broker.broker import Broker
from services.broker.groups.group_values import GroupPolicy, GroupStart
from services.broker.groups.lite_subscribing import LiteStart
from services.broker.spine.errors import TooManyFilters, TooManyRequests
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Delivery, LogWarning, RunTimersJob, StartPosition, Subscriber
from tests.memory_disk import MemoryDisk

NOW_MS = 1_763_700_000_000
MINUTE_MS = 60_000


class Bench:
    """A broker whose clients acknowledge what they get, unless told otherwise."""

    def __init__(self, queue_count: int = 1) -> None:
        self.disk, self.now_ms, self.count = MemoryDisk(), NOW_MS, 0
        self.settings = BrokerSettings(segment_bytes=1 << 20, queue_count=queue_count, attempts_max=3)
        self.broker = Broker.open(self.disk, self.settings, self.now_ms)

    def send(self, tag: str = "", **attributes: object) -> str:
        self.count += 1
        given = {"topic": "t", "body": b"x", "message_id": f"{tag}{self.count}", "tag": tag}
        self.broker.sending.send(Message(**given | attributes), self.now_ms)
        self.flush()
        return f"{tag}{self.count}"

    def flush(self) -> None:
        while flush := self.broker.take_flush():
            flush.write()
            self.broker.complete_flush(flush, self.now_ms)

    def lease(
        self, wanted: str | Filter, client: str = "c", topic: str = "t", count: int = 32
    ) -> list[Delivery]:
        given = parse_tags(wanted) if isinstance(wanted, str) else wanted
        received = self.broker.receiving.receive("g", topic, given, count, 20_000, client, False, self.now_ms)
        self.flush()
        return received.deliveries

    def take(self, wanted: str | Filter, client: str = "c", topic: str = "t", count: int = 32) -> list[str]:
        """Receives once and acknowledges."""
        found = self.lease(wanted, client, topic, count)
        for one in found:
            self.broker.receiving.ack("g", topic, one.receipt_handle, self.now_ms)
        self.flush()
        return [one.message.message_id for one in found]

    def pass_time(self, by_ms: int, *filters: str, each_ms: int = 20_000) -> list[object]:
        """Lets time pass, in which clients with these filters receive nothing and the broker ticks."""
        effects: list[object] = []
        end_ms = self.now_ms + by_ms
        while self.now_ms < end_ms:
            self.now_ms = min(end_ms, self.now_ms + each_ms)
            for one in filters:
                assert self.take(one, f"of {one}") == []
            effects += self.tick()
        return effects

    def tick(self) -> list[object]:
        effects = self.broker.tick(self.now_ms)
        for effect in effects:
            if isinstance(effect, RunTimersJob):
                effect.job.run(self.disk)
                self.broker.complete_timers_job(effect.job)
        self.flush()
        return effects

    def restart(self, checkpoint: bool = False) -> None:
        if checkpoint:
            self.flush()
            written = self.broker.checkpoint(self.now_ms)
            written.write(self.disk)
            self.broker.complete_checkpoint(written)
        self.now_ms += 1
        self.broker = Broker.open(self.disk, self.settings, self.now_ms)

    def filters(self) -> list[tuple[str, int]]:
        view = self.broker.group_views.view_group("g")
        return [(f"{one.text.type} {one.text.expression}", one.waiting) for one in view.filters]

    def lag(self) -> int:
        return sum(one.lag for one in self.broker.group_views.view_group("g").queues)


@pytest.fixture
def bench() -> Bench:
    return Bench()


PAIRS = [
    ("red", "blue"),
    ("red", "*"),
    ("red || blue", "blue || green"),
    (parse_sql("n > 5"), parse_sql("n <= 5")),
    ("red", parse_sql("TAGS = 'blue'")),
    (parse_sql("TAGS = 'red'"), "*"),
]


@pytest.mark.parametrize("restarts", [None, False, True], ids=["runs on", "restart", "checkpoint"])
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_clients_with_different_filters_lose_nothing_for_each_other(
    one: str | Filter, other: str | Filter, restarts: bool | None
) -> None:
    bench = Bench(queue_count=4)
    wanted = [parse_tags(each) if isinstance(each, str) else each for each in (one, other)]
    assert bench.take(one) == bench.take(other) == []
    sent = [
        bench.send(("red", "blue", "green", "")[number % 4], properties={"n": str(number % 11)})
        for number in range(40)
    ]
    got = bench.take(one, count=5)
    if restarts is not None:
        bench.restart(checkpoint=restarts)
    while more := bench.take(one) + bench.take(other):
        got += more
    assert len(got) == len(set(got))
    expected = [
        each
        for number, each in enumerate(sent)
        if any(two.matches(_stored(("red", "blue", "green", "")[number % 4], number % 11)) for two in wanted)
    ]
    assert sorted(got) == sorted(expected)
    assert bench.lag() == 0


def _stored(tag: str, number: int) -> bytes:
    return f"n\x01{number}\x02{f'TAGS{chr(1)}{tag}{chr(2)}' if tag else ''}".encode()


def test_what_no_filter_matches_is_done_and_what_another_matches_waits(bench: Bench) -> None:
    bench.take("red")
    bench.take("blue")
    red, blue, _ = bench.send("red"), bench.send("blue"), bench.send("green")
    assert bench.take("red") == [red]
    assert bench.lag() == 1
    assert bench.filters() == [("TAG red", 0), ("TAG blue", 1)]
    assert bench.take("blue") == [blue]
    assert (bench.lag(), bench.filters()) == (0, [("TAG red", 0), ("TAG blue", 0)])


def test_the_order_in_which_tags_are_written_makes_no_other_filter(bench: Bench) -> None:
    for expression in ("red || blue", "blue||red", " blue || red ", "blue||red||"):
        bench.take(expression)
    for expression in ("*", "", " * "):
        bench.take(expression)
    bench.take("*||")  # the tag `*`
    assert bench.filters() == [("TAG blue||red", 0), ("TAG *", 0), ("TAG *||", 0)]
    bench.restart()
    star, red = bench.send("*"), bench.send("red")
    assert bench.take("*||") == [star]
    assert bench.take("blue||red") == [red]


def test_a_rolling_update_that_widens_a_filter_loses_nothing(bench: Bench) -> None:
    bench.take("red", "old")
    sent = [bench.send("red"), bench.send("blue")]
    assert bench.take("red || blue", "new") == sent
    later = [bench.send("blue"), bench.send("red"), bench.send("blue")]
    assert bench.take("red", "old") == [later[1]]
    assert bench.take("red || blue", "new") == [later[0], later[2]]


def test_what_waits_for_a_filter_goes_to_a_new_one_that_matches_it(bench: Bench) -> None:
    bench.take("red", "old")
    bench.take("blue", "other")
    sent = [bench.send("red") for _ in range(3)]
    assert bench.take("blue", "other") == []
    assert bench.filters() == [("TAG red", 3), ("TAG blue", 0)]
    assert bench.take("red || green", "new") == sent


def test_a_filter_that_no_client_uses_is_forgotten_and_what_waited_is_judged_again(bench: Bench) -> None:
    bench.take("red")
    bench.take("blue")
    both = bench.send("red"), bench.send("blue")
    assert bench.take("blue") == [both[1]]
    effects = bench.pass_time(6 * MINUTE_MS, "blue")
    assert [one.text for one in effects if isinstance(one, LogWarning)] == [
        "g has forgotten its filter TAG red on t, which was not used for 5 minutes; messages that were set "
        "aside for it, now judged by the remaining filters: 1"
    ]
    assert bench.filters() == [("TAG blue", 0)]
    assert bench.take("blue") == []
    assert bench.lag() == 0
    bench.restart()
    assert bench.filters() == [("TAG blue", 0)]


def test_idle_time_is_time_in_which_other_clients_of_the_group_receive(bench: Bench) -> None:
    bench.take("red")
    bench.take("blue")
    red, _ = bench.send("red"), bench.send("green")
    bench.pass_time(60 * MINUTE_MS)  # all clients are away
    assert bench.take("blue") == []
    bench.pass_time(3 * MINUTE_MS, "blue")
    assert bench.take("red") == [red]


def test_a_client_that_sends_heartbeats_holds_its_filter_though_it_does_not_receive(bench: Bench) -> None:
    bench.take("red", "busy")
    bench.take("blue")
    red = bench.send("red")
    for _ in range(20):
        bench.broker.receiving.renew_client("busy", bench.now_ms)
        bench.pass_time(MINUTE_MS, "blue")
    assert bench.take("red", "busy") == [red]
    bench.broker.receiving.expire_client("busy", bench.now_ms)
    bench.pass_time(7 * MINUTE_MS, "blue")
    assert bench.filters() == [("TAG blue", 0)]


def test_a_client_that_subscribes_holds_its_filter_though_it_has_not_received_since_the_start(
    bench: Bench,
) -> None:
    bench.take("red", "busy")
    bench.take("blue")
    red = bench.send("red")
    bench.restart()
    bench.broker.receiving.record_subscription("busy", "g", "t", parse_tags("red"), bench.now_ms)
    for _ in range(20):
        bench.broker.receiving.renew_client("busy", bench.now_ms)
        bench.pass_time(MINUTE_MS, "blue")
    assert bench.take("red", "busy") == [red]


def test_a_filter_is_kept_after_a_start_until_its_client_can_have_said_what_it_subscribes_to(
    bench: Bench,
) -> None:
    """Go's client connects again up to 5 minutes later."""
    bench.take("red", "busy")
    bench.take("blue")
    red = bench.send("red")
    bench.restart()
    for _ in range(10):
        bench.broker.receiving.renew_client("busy", bench.now_ms)
        bench.pass_time(MINUTE_MS, "blue")
    assert bench.filters() == [("TAG red", 1), ("TAG blue", 0)]
    bench.broker.receiving.record_subscription("busy", "g", "t", parse_tags("red"), bench.now_ms)
    for _ in range(10):
        bench.broker.receiving.renew_client("busy", bench.now_ms)
        bench.pass_time(MINUTE_MS, "blue")
    assert bench.take("red", "busy") == [red]


def test_what_a_client_received_with_last_counts_more_than_its_subscription(bench: Bench) -> None:
    bench.take("red", "c")
    bench.take("blue", "c")
    for _ in range(7):
        bench.broker.receiving.record_subscription("c", "g", "t", parse_tags("red"), bench.now_ms)
        bench.pass_time(MINUTE_MS, "blue")
    assert bench.filters() == [("TAG blue", 0)]


def test_a_subscription_alone_makes_no_filter_known(bench: Bench) -> None:
    bench.broker.receiving.record_subscription("c", "g", "t", parse_tags("red"), bench.now_ms)
    bench.take("blue")
    bench.broker.receiving.record_subscription("c", "g", "t", parse_tags("red"), bench.now_ms)
    bench.broker.receiving.record_subscription("c", "h", "t", parse_tags("blue"), bench.now_ms)
    assert bench.filters() == [("TAG blue", 0)]
    assert bench.broker.group_views.view_group("g").filters[0].clients == ("c",)


def test_a_client_that_changes_its_filter_does_not_hold_the_one_before(bench: Bench) -> None:
    bench.take("red", "c")
    bench.take("blue", "c")
    for _ in range(7):
        bench.broker.receiving.renew_client("c", bench.now_ms)
        bench.pass_time(MINUTE_MS, "blue")
    assert bench.filters() == [("TAG blue", 0)]


def test_the_ninth_filter_is_refused_with_a_sentence_and_changes_nothing(bench: Bench) -> None:
    for number in range(limits.FILTERS_PER_GROUP_MAX):
        bench.take(f"tag{number}")
    end_offset = bench.broker.end_offset
    with pytest.raises(TooManyFilters, match=r"g has 8 filters on t already, .*: TAG tag0; .*TAG more is"):
        bench.take("more")
    assert bench.broker.end_offset == end_offset
    assert bench.take("tag3") == []
    bench.restart()
    with pytest.raises(TooManyFilters):
        bench.take("more")


def test_a_filter_is_refused_that_would_make_a_group_judge_a_message_for_too_long(bench: Bench) -> None:
    def costly(name: str) -> Filter:
        return parse_sql(" OR ".join(f"p CONTAINS '{name}{number}'" for number in range(100)))

    bench.take("red")
    for name in "ab":
        bench.take(costly(name))
    end_offset = bench.broker.end_offset
    said = (
        r"SQL p CONTAINS 'c0' .* takes up to 6\.\d ms .* filters of g on t take 13\.\d ms: .*18\.0 ms for all"
    )
    with pytest.raises(TooManyFilters, match=said):
        bench.take(costly("c"))
    assert bench.broker.end_offset == end_offset
    assert bench.take(costly("b")) == []
    assert bench.take(parse_sql("p CONTAINS 'c0'")) == []
    bench.restart()
    with pytest.raises(TooManyFilters, match=r"18\.0 ms for all"):
        bench.take(costly("c"))


def test_a_full_group_whose_clients_all_have_a_ninth_filter_takes_it_when_the_others_are_idle(
    bench: Bench,
) -> None:
    for number in range(limits.FILTERS_PER_GROUP_MAX):
        bench.take(f"tag{number}")
    sent = bench.send("new")
    refused = 0
    for _ in range(10):
        bench.now_ms += MINUTE_MS
        try:
            got = bench.take("new", "n")
            break
        except TooManyFilters:
            refused += 1
    assert (got, refused) == ([sent], 4)
    assert bench.filters() == [("TAG new", 0)]


def test_filters_of_all_groups_have_a_bound_in_bytes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FILTERS_BYTES_MAX", 10)
    bench.take("a" * 10)
    with pytest.raises(TooManyFilters, match="The filters of all groups have 10 bytes"):
        bench.take("b")
    bench.broker.group_views.delete("g", "", bench.now_ms)
    assert bench.take("b" * 10) == []


def test_a_message_group_stays_closed_behind_a_message_that_is_set_aside(bench: Bench) -> None:
    bench.take("red")
    bench.take("blue")
    sent = [bench.send(tag, message_group="m") for tag in ("red", "blue", "red", "blue")]
    free = bench.send("blue", message_group="other")
    assert bench.take("blue") == [free]
    assert bench.take("red", count=1) == [sent[0]]
    assert bench.take("red") == []
    assert bench.take("blue") == [sent[1]]
    assert bench.take("blue") == []
    assert bench.take("red") == [sent[2]]
    assert bench.take("blue") == [sent[3]]
    assert bench.lag() == 0


def test_a_run_of_a_message_group_ends_before_a_message_of_another_filter(bench: Bench) -> None:
    bench.broker.group_views.create("g", "", GroupStart(), bench.now_ms, GroupPolicy(fifo_run_max=10))
    bench.take("red")
    bench.take("blue")
    sent = [bench.send(tag, message_group="m") for tag in ("red", "red", "blue", "red")]
    assert bench.take("red") == sent[:2]
    assert bench.take("red") == []
    assert bench.take("blue") == [sent[2]]
    assert bench.take("red") == [sent[3]]


def test_a_message_group_opens_when_the_filter_it_waits_for_is_forgotten(bench: Bench) -> None:
    bench.take("red")
    bench.take("blue")
    sent = [bench.send(tag, message_group="m") for tag in ("red", "blue")]
    assert bench.take("blue") == []
    bench.now_ms += 1
    got: list[str] = []
    for _ in range(20):
        bench.now_ms += 20_000
        got += bench.take("blue")
    assert (got, bench.lag()) == ([sent[1]], 0)


def test_a_message_that_comes_back_goes_to_a_client_with_its_filter(bench: Bench) -> None:
    bench.take("red")
    bench.take("blue")
    red = bench.send("red")
    assert len(bench.lease("red")) == 1
    bench.now_ms += 30_000
    bench.tick()
    assert bench.take("blue") == []
    assert bench.filters() == [("TAG red", 1), ("TAG blue", 0)]
    again = bench.lease("red")
    assert [(one.message.message_id, one.attempt) for one in again] == [(red, 2)]


def test_what_is_set_aside_has_a_bound_and_then_nothing_fresh_goes_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PARKED_PER_QUEUE_MAX", 3)
    bench.take("red")
    bench.take("blue")
    red = [bench.send("red") for _ in range(5)]
    blue = bench.send("blue")
    with pytest.raises(TooManyRequests, match="others wait for other filters of the group: 3 for TAG red"):
        bench.take("blue")
    assert bench.take("red") == red
    assert bench.take("blue") == [blue]


def test_a_reset_and_a_retention_let_go_of_what_is_set_aside(bench: Bench) -> None:
    bench.take("red")
    bench.take("blue")
    sent = [bench.send("red") for _ in range(3)]
    assert bench.take("blue") == []
    bench.broker.group_views.reset("g", "t", GroupStart(StartPosition.OFFSET, 1), False, bench.now_ms)
    assert bench.filters() == [("TAG red", 0), ("TAG blue", 0)]
    assert bench.take("blue") == []
    assert bench.filters() == [("TAG red", 2), ("TAG blue", 0)]
    bench.broker.groups.skip_deleted_messages([("t", 0, 2)])
    assert bench.filters() == [("TAG red", 1), ("TAG blue", 0)]
    assert bench.take("red") == [sent[2]]


def test_what_is_set_aside_and_had_all_its_attempts_is_a_dead_letter(bench: Bench) -> None:
    bench.take("red")
    bench.take("blue")
    bench.send("red")
    for _ in range(2):
        assert len(bench.lease("red")) == 1
        bench.now_ms += 30_000
        bench.tick()
    assert bench.take("blue") == []
    bench.broker.group_views.set_policy("g", GroupPolicy(attempts_max=2), bench.now_ms)
    bench.tick()
    assert (bench.lag(), bench.filters()) == (0, [("TAG red", 0), ("TAG blue", 0)])
    (group,) = bench.broker.dead_letters.group_names()
    assert bench.broker.dead_letters.count_open_dead_letters(group).count == 1


def test_a_filter_that_cannot_be_read_any_more_matches_everything(
    bench: Bench,
) -> None:
    bench.take("blue")
    bench.broker.groups._write(GroupJoined("g", "t", filter=["SQL", "a ! 1"]), bench.now_ms)
    bench.flush()
    bench.restart()
    bench.send("red")
    assert bench.take("blue") == []
    assert bench.lag() == 1


def test_lite_topics_wait_for_the_client_whose_filter_matches() -> None:
    bench = Bench()
    bench.broker.topics.create("l", MessageType.LITE, 1, bench.now_ms)
    for client in ("r", "b"):
        bench.broker.lite.subscribe(Subscriber("g", "l", client), ["x"], LiteStart(), bench.now_ms)
    bench.take("red", "r", "l")
    bench.take("blue", "b", "l")
    sent = [bench.send(tag, topic="l", lite_topic="x") for tag in ("red", "blue", "red")]
    for woken in range(2):
        assert bench.take("blue", "b", "l") == [], woken
    assert bench.take("red", "r", "l") == [sent[0]]
    assert bench.take("red", "r", "l") == []
    assert bench.take("blue", "b", "l") == [sent[1]]
    assert bench.take("red", "r", "l") == [sent[2]]
