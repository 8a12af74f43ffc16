"""What several processes write to one file is one history, in the order of the file."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from tests.endurance.histories import Outcome
from tests.endurance.reading import Reading
from tests.endurance.sick_load import PROPERTIES_MAX, _properties_of, shuffled
from tests.history_file import HistoryFile


def send(file: HistoryFile, name: str, *outcomes: str, **fields: Any) -> None:
    """Send a message as often as there are outcomes."""
    told = {"kind": "plain", "id": name, "topic": "plain", "hash": "", "line": "", "due_ms": 0} | fields
    for outcome in outcomes:
        file.end(file.invoke("p", 1, "send", **told), outcome, 2)


def test_lines_of_two_processes_make_one_history(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    reading = Reading(path)
    first, second = HistoryFile(path, 1), HistoryFile(path, 2)
    send(first, "line-1-0-17", "ok", line="line-1-0", kind="fifo", topic="lines")
    receive = second.invoke("p", 3, "receive", topic="lines", group="g")
    second.saw(receive, 4, "line-1-0-17", 0, 5, 1)
    reading.read()
    assert reading.history.missing() == []
    second.end(second.invoke("p", 5, "ack", id="line-1-0-17", topic="lines", group="g"), "ok", 6)
    reading.read()
    history = reading.history
    assert history.sent["line-1-0-17"].number == 17
    [seen] = history.delivered
    assert (seen.place, seen.seen_s > seen.began_s) == (("lines", 0, 5), True)
    assert history.acknowledged_s["line-1-0-17"] > history.tried_s["line-1-0-17"] > seen.seen_s
    assert history.violations() == []


def test_one_ok_of_several_sends_binds_and_one_refusal_does_not(tmp_path: Path) -> None:
    reading = Reading(tmp_path / "history.jsonl")
    file = HistoryFile(tmp_path / "history.jsonl", 1)
    send(file, "ok", "unknown", "ok", "unknown")
    send(file, "unsure", "unknown", "fail")
    send(file, "refused", "fail")
    reading.read()
    outcomes = {name: sent.outcome for name, sent in reading.history.sent.items()}
    assert outcomes == {"ok": Outcome.OK, "unsure": Outcome.UNKNOWN, "refused": Outcome.REFUSED}
    assert reading.history.missing() == ["ok"]


def test_half_a_line_is_read_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    reading = Reading(path)
    path.write_bytes(b'{"type": "calm", "is_calm": tr')
    reading.read()
    with path.open("ab") as file:
        file.write(b'ue, "time_ms": 5}\n')
    reading.read()
    assert reading.waiting.calm_count == 1


def test_a_send_is_the_same_in_each_order_of_its_properties() -> None:
    counts = {len(_properties_of(f"P{number}")) for number in range(100)}
    assert counts == set(range(PROPERTIES_MAX + 1))
    properties = {f"property-{number}": "x" * number for number in range(PROPERTIES_MAX)}
    message = wire.Message(topic=wire.Resource(name="t"), body=b"b" * 300, user_properties=properties)
    request = service.SendMessageRequest(messages=[message])
    written = {shuffled(request, random.Random(seed)) for seed in range(20)}
    assert len(written) > 1
    assert all(service.SendMessageRequest.FromString(one) == request for one in written)
