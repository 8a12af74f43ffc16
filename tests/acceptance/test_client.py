"""`tidewheel client` as its users meet it: who is there, and what one of them measured.

The official client tells every minute; here twice a second (`METRIC_READER_INTERVAL`).
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
import time
from typing import Any
from unittest.mock import patch

import pytest

with patch.dict(os.environ, HOME=tempfile.mkdtemp(prefix="tidewheel-client-logs-")):
    from rocketmq import ClientConfiguration, Credentials, Message, Producer
    from rocketmq.v5.client.metrics import ClientMetrics

logging.getLogger("rocketmq-python-client").propagate = False

NOT_FOUND = 4
SECONDS = 30


def test_who_is_there_and_what_it_measured(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClientMetrics, "METRIC_READER_INTERVAL", 500)
    serving.run("client", "show", "nobody", code=NOT_FOUND)
    producer = Producer(ClientConfiguration(serving.listen, Credentials()), ("orders",))
    producer.startup()
    try:
        message = Message()
        message.topic, message.body = "orders", b"an order"
        producer.send(message)
        [client] = json.loads(serving.run("client", "list", "--json"))["clients"]
        assert client["kind"] == "PRODUCER"
        ends = time.monotonic() + SECONDS
        while "It has not told yet" in (shown := serving.run("client", "show", client["client_id"])):
            assert time.monotonic() < ends, shown
        assert shown.startswith(f"{client['client_id']}   PRODUCER\nPYTHON ")
        row = r"^send_cost_time +orders +success +1 +[\d.]+ ms +(<=|>) \d+ ms +(<=|>) \d+ ms *$"
        assert re.search(row, shown, re.MULTILINE), shown
        told = json.loads(serving.run("client", "show", client["client_id"], "--json"))["measured"]
        assert [(one["topic"], one["count"], sum(one["counts"])) for one in told] == [("orders", 1, 1)]
    finally:
        producer.shutdown()
