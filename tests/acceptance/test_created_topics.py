"""A misspelt topic is created by the first message: the sender is told, and which topic may be meant."""

from __future__ import annotations

import json

from tests.command import tidewheel
from tidewheel.testing.process import BrokerProcess

HINT = (
    "created topic invocies (4 queues); did you mean invoices? To delete invocies:  "
    "tidewheel topic delete invocies"
)


def test_a_send_to_a_misspelt_topic_says_that_it_created_the_topic(broker: BrokerProcess) -> None:
    first = tidewheel("send", "invoices", "hello", "--http", broker.http)
    assert first.stderr.splitlines()[-1] == "created topic invoices (4 queues)"
    assert "created" not in tidewheel("send", "invoices", "hello", "--http", broker.http).stderr
    misspelt = tidewheel("send", "invocies", "hello", "--http", broker.http)
    assert misspelt.stderr.splitlines()[-1] == HINT
    said = tidewheel("send", "invoices-", "hello", "--json", "--http", broker.http)
    assert json.loads(said.stdout)["created_topic"] == {
        "name": "invoices-", "queue_count": 4, "similar_topic": "invoices"
    }  # fmt: skip
    again = tidewheel("send", "invoices-", "hello", "--json", "--http", broker.http)
    assert json.loads(again.stdout)["created_topic"] is None
