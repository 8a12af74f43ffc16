"""The recall handle against RocketMQ's own, and against nonsense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.broker.spine.errors import InvalidRecallHandle
from services.broker.timers import recall
from services.broker.timers.recall import RecallFields

VECTORS = json.loads((Path(__file__).parents[4] / "vectors" / "rocketmq.json").read_text())


def test_the_handle_is_the_one_that_rocketmq_writes() -> None:
    vector = next(vector for vector in VECTORS if vector["kind"] == "recall_handle")
    fields = vector["input"]
    wanted = RecallFields(fields["topic"], int(fields["ts"]), fields["msgId"])
    assert recall.encode(*wanted, fields["broker"]) == vector["text"]
    assert recall.decode(vector["text"]) == wanted


@pytest.mark.parametrize("forged", ["", "?", "djE=", "djIgb3JkZXIgYiAxIFUy", "djEgb3JkZXIgYiB4IFUy", "é"])
def test_nonsense_is_refused(forged: str) -> None:
    with pytest.raises(InvalidRecallHandle, match="own send receipt"):
        recall.decode(forged)
