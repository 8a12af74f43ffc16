"""What a RocketMQ log means: which delayed messages wait, which halves are open, what is to be retried."""

from __future__ import annotations

import json
from collections import Counter
from itertools import count

import pytest

from commitlog.records import properties
from commitlog.records.record import TYPE_COMMIT, Record
from services.rocketmq.config_files import RocketmqConfig, TimerCheck
from services.rocketmq.retries import Retry
from services.rocketmq.takeover import Takeover

TIMER, LEVEL = "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"
HALF, OP, DISCARD = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"


class Log:
    """Records one after the other, each with the next offsets, taken over at once."""

    def __init__(self, **config: object) -> None:
        settings = RocketmqConfig(**config)  # type: ignore[arg-type]
        self.notes = settings.notes
        self.takeover = Takeover(settings, lambda record: record.store_ms + 1000)
        self._places = count(0, 1000)
        self._queues: Counter[tuple[str, int]] = Counter()

    def put(self, topic: str, real: str = "", name: str = "", body: str = "", **more: str) -> Record:
        """One record; `more` are further properties, those of `own` are its own."""
        own = ("queue_id", "type", "half_offset", "asked_count")
        queue_id, kind, half, asked_count = (int(more.pop(key, "0")) for key in own)
        stored = {"REAL_TOPIC": real, "REAL_QID": "0" if real else "", "UNIQ_KEY": name} | more
        record = Record(
            topic=topic,
            queue_id=queue_id,
            body=body.encode(),
            properties=properties.encode(stored),
            physical_offset=next(self._places),
            queue_offset=self._queues[(topic, queue_id)],
            sys_flag=kind,
            half_offset=half,
            reconsume_times=asked_count,
            store_ms=500,
        )
        self._queues[(topic, queue_id)] += 1
        self.takeover.take(record)
        return record

    def waiting(self) -> list[tuple[str, int]]:
        return [(one.message_id, one.due_ms) for one in self.takeover.waiting()]

    def halves(self) -> list[tuple[str, int | None]]:
        return [(half.name[1], half.expired_ms) for half in self.takeover.halves()]


def test_a_timer_waits_until_its_message_follows_under_its_real_topic() -> None:
    log = Log()
    log.put("t", name="A")
    log.put(TIMER, "t", "A", TIMER_OUT_MS="90")
    log.put(TIMER, "t", "B", TIMER_OUT_MS="80")
    log.put("other", name="A")
    assert log.waiting() == [("B", 80), ("A", 90)]
    log.put("t", name="A")
    assert log.waiting() == [("B", 80)]


def test_what_ended_a_timer_of_ours_ends_it_here_too() -> None:
    log = Log()
    for name in "ABCDE":
        log.put(TIMER, "t", name, TIMER_OUT_MS="90")
    log.put(TIMER, "t", "A", TIMER_OUT_MS="99", TW_VERB="MOVE", TW_REPLACES="0", TW_REPLACED_DUE_MS="90")
    log.put(TIMER, "t", "B2", TIMER_OUT_MS="91", TW_REPLACES="1000", TW_REPLACED_DUE_MS="90")
    log.put("t", name="carrier", TW_CANCELS="2000 90", TW_CANCELS_TOPIC="t")
    log.put("TW_SYS_VERB", "t", TW_TIMER_OFFSET="3000", TW_VERB="CANCEL", type="12")
    log.put("t", name="E", TW_TIMER_OFFSET="4000", TW_VERB="FIRE")
    assert log.waiting() == [("B2", 91), ("A", 99)]


def test_a_rolled_timer_is_one_message_and_the_system_s_own_timers_are_none() -> None:
    log = Log()
    log.put(TIMER, "t", "A", TIMER_OUT_MS="90")
    rolled = log.put(TIMER, "t", "A", TIMER_OUT_MS="90", TIMER_ROLL_TIMES="1")
    log.put(TIMER, "rmq_sys_REVIVE_LOG_c", "ck", TIMER_OUT_MS="70")
    assert [one.physical_offset for one in log.takeover.waiting()] == [rolled.physical_offset]


@pytest.mark.parametrize("key", ["A", "t+A", "tA"])
def test_a_delete_marker_ends_a_timer(key: str) -> None:
    log = Log()
    log.put(TIMER, "t", "A", TIMER_OUT_MS="90")
    log.put(TIMER, "t", "MARK", TIMER_OUT_MS="90", TIMER_DEL_UNIQKEY=key)
    assert log.waiting() == []


def test_the_log_goes_before_the_cursor_unless_a_message_has_no_id() -> None:
    log = Log(timer_check=TimerCheck(read_ms=100, queue_offset=3), delay_offsets={1: 5})
    log.put(TIMER, "t", "LOST", TIMER_OUT_MS="90")
    log.put(TIMER, "t", "", TIMER_OUT_MS="90")
    log.put(TIMER, "t", "", TIMER_OUT_MS="110")
    log.put(LEVEL, "t", "LEVEL")
    log.put(LEVEL, "t", "")
    assert log.waiting() == [("LOST", 90), ("", 110), ("LEVEL", 1500)]
    assert "2 delayed messages count as delivered" in log.takeover.notes()[0]


def test_halves_end_by_op_by_commit_and_by_being_written_again() -> None:
    log = Log()
    for name in ("OP", "COMMITTED", "AGAIN", "OPEN"):
        half = log.put(HALF, "t", name)
        if name == "COMMITTED":
            log.put("t", name=name, type=str(TYPE_COMMIT), half_offset=str(half.physical_offset))
    log.put(HALF, "t", "AGAIN", TRANSACTION_CHECK_TIMES="2")
    log.put(OP, body="0,1,", TAGS="d")
    assert log.halves() == [("OPEN", None), ("AGAIN", None)]
    assert [half.check_count for half in log.takeover.halves()] == [0, 2]


def test_what_our_records_say_of_a_half_counts_as_what_rocketmq_s_do() -> None:
    log = Log()
    for name in ("ASKED", "ROLLED-BACK", "EXPIRED"):
        log.put(HALF, "t", name)
    log.put("TW_SYS_CHECK", half_offset="0", asked_count="3", type="12")
    log.put("TW_SYS_OUTCOME", half_offset="1000", TW_OUTCOME="ROLLBACK", type="12")
    log.put("TW_SYS_OUTCOME", half_offset="2000", TW_OUTCOME="EXPIRED", type="12")
    log.put(OP, body="1,2,", TAGS="d")
    assert log.halves() == [("ASKED", None), ("EXPIRED", 500)]
    assert [half.check_count for half in log.takeover.halves()] == [3, 0]


def test_halves_below_rocketmq_s_offset_are_over_unless_it_gave_them_up() -> None:
    log = Log(group_offsets={(HALF, "CID_RMQ_SYS_TRANS"): {0: 2}})
    for name in ("OVER", "GIVEN-UP", "OPEN"):
        log.put(HALF, "t", name)
    log.put(DISCARD, "t", "GIVEN-UP")
    assert log.halves() == [("GIVEN-UP", 500), ("OPEN", None)]


def receipt(kind: str, start: int, **more: object) -> dict[str, str]:
    """Body and tag of a POP receipt of group g on queue 0 of topic t."""
    fields = {"t": "t", "c": "g", "q": 0, "so": start, "pt": 7, "bn": "b"} | more
    return {"body": json.dumps(fields), "TAGS": kind}


def test_what_pop_consumers_held_is_known_by_checkpoints_without_acknowledgement() -> None:
    revive = "rmq_sys_REVIVE_LOG_c"
    log = Log(group_offsets={(revive, "CID_RMQ_SYS_REVIVE_GROUP"): {0: 1}})
    log.put(TIMER, revive, **receipt("ck", 10, n=3, d=[0, 1, 5], bm=0))
    log.put(TIMER, revive, **receipt("ack", 10, ao=11))
    log.put(TIMER, revive, **receipt("ck", 20, n=2, bm=1))
    log.put(TIMER, revive, **receipt("ck", 30, n=2, bm=0))
    log.put(TIMER, revive, **receipt("ck", 40, n=2, bm=0))
    log.put(revive, **receipt("ck", 30, n=2, bm=0))
    log.put(revive, **receipt("bAck", 40, aol=[40, 41]))
    held = [one.queue_offset for one in log.takeover.in_hand()]
    assert held == [10, 15, 21]
    assert log.waiting() == []


def test_a_retry_in_a_consumer_s_hands_is_retried() -> None:
    log = Log(group_offsets={("%RETRY%g_t", "g"): {0: 5}})
    log.put("%RETRY%g_t", name="A")
    log.put("%RETRY%g_t", name="B")
    log.put(TIMER, "rmq_sys_REVIVE_LOG_c", **receipt("ck", 1, t="%RETRY%g_t", n=1))
    assert log.takeover.retries() == [Retry("g", "t", "B")]
    assert log.takeover.in_hand() == []


def test_a_receipt_that_cannot_be_read_is_told() -> None:
    log = Log()
    log.put(TIMER, "rmq_sys_REVIVE_LOG_c", body="{", TAGS="ck")
    assert log.takeover.in_hand() == []
    assert log.notes == ["The receipt at log offset 0 cannot be read."]


def test_what_a_group_failed_on_is_found_in_every_kind_of_retry() -> None:
    offsets = {("%RETRY%pull", "pull"): {0: 1}, ("%RETRY%pop_t", "pop"): {0: 0}}
    log = Log(group_offsets=offsets)
    log.put("%RETRY%pull", name="DONE", RETRY_TOPIC="t")
    log.put("%RETRY%pull", name="A", RETRY_TOPIC="t")
    log.put("%RETRY%pop_t", name="B")
    log.put("%RETRY%new+t_1", name="C")
    log.put(LEVEL, "%RETRY%pull", "D", RETRY_TOPIC="t")
    log.put(LEVEL, "%RETRY%pull", "E", RETRY_TOPIC="t")
    log.put("%RETRY%pull", name="E", RETRY_TOPIC="t")
    assert sorted(log.takeover.retries()) == [
        Retry("new", "t_1", "C"),
        Retry("pop", "t", "B"),
        Retry("pull", "t", "A"),
        Retry("pull", "t", "D"),
        Retry("pull", "t", "E"),
    ]
    assert log.waiting() == []
