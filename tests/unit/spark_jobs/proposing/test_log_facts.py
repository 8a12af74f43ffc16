"""What a proposal learns of a log: topics with samples of their messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from commitlog.records import properties
from commitlog.records.kinds import TIMER_TOPIC
from commitlog.records.message import Message
from commitlog.records.record import Record
from spark_jobs.proposing.log_facts import read
from tidewheel import property_names


def test_a_key_with_a_blank_is_one_key(write_log: Callable[..., Path]) -> None:
    message = Message(topic="bookings", body=b"{}", message_id="M", keys=("ORD 17", "gift"))
    stored = properties.encode_message(message)
    marks = properties.encode({property_names.REAL_TOPIC: "holds", property_names.TIMER_KEY: "hold/ORD 17"})
    store = write_log([Record("bookings", b"{}", stored), Record(TIMER_TOPIC, b"{}", stored + marks)])
    topics = {topic.name: topic for topic in read(store).topics}
    assert {name: topic.keys for name, topic in topics.items()} == {
        "bookings": {"ORD 17"}, "holds": {"ORD 17"},
    }  # fmt: skip
    assert topics["holds"].timer_keys == {"hold/": 1}


def test_the_time_of_the_first_record_is_known_where_it_was_read(write_log: Callable[..., Path]) -> None:
    message = Message(topic="bookings", body=b"{}", message_id="M", keys=("1",))
    record = Record("bookings", b"{}", properties.encode_message(message), store_ms=5)
    store = write_log([record] * 40)
    whole = read(store)
    assert (whole.first_ms, whole.last_ms) == (5, 5)
    assert read(store, bytes_max=1_000).first_ms == 0
