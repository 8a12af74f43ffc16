"""What is asked of a broker, and what becomes of an answer that does not come."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.cli.diagnosis.asking import answers_of
from services.cli.terminal.api import broker_at
from services.http.api import Api
from services.status import asking
from services.status.asking import ClientQueries, figures, newest_audit, ready
from services.status.judgement import Unread, judged
from tests.audit_runs import write_run
from tidewheel.errors import AccessRefused, AnswerLate, BrokerUnreachable, NotFound, TidewheelError

READY = (200, "ready\n")


def raising(error: TidewheelError) -> Callable[[], Any]:
    def ask() -> Any:
        raise error

    return ask


def test_a_right_that_is_missing_hides_nothing_else() -> None:
    questions = ClientQueries()
    found = questions.asked(raising(AccessRefused("alice may not")))
    assert isinstance(found, Unread)
    assert "alice may not" in found.why
    assert questions.asked(lambda: 7) == 7


def test_nobody_who_answers_stands_for_all() -> None:
    for error in (AnswerLate("5 s"), BrokerUnreachable("gone")):
        with pytest.raises(type(error)):
            ClientQueries().asked(raising(error))


def test_after_one_late_answer_of_a_broker_that_is_there_nothing_more_is_waited_for() -> None:
    questions = ClientQueries()
    questions.is_answered = True
    assert isinstance(questions.asked(raising(AnswerLate("5 s"))), Unread)
    assert questions.asked(lambda: pytest.fail("it was asked")) == Unread(asking.NOT_ASKED)


@pytest.mark.parametrize("said", [(404, "nginx"), (200, "<html>ready</html>"), (302, "")])
def test_another_server_is_no_broker(monkeypatch: pytest.MonkeyPatch, said: tuple[int, str]) -> None:
    monkeypatch.setattr(Api, "probe", lambda *_: said)
    with pytest.raises(BrokerUnreachable, match="is no Tidewheel HTTP interface"):
        ready(broker_at("127.0.0.1:1"))


def test_metrics_are_summed_over_their_labels() -> None:
    text = '# TYPE a gauge\na{t="x"} 1.5\na{t="y"} 2\n# TYPE b counter\nb_total 3\n'
    assert figures(text) == {"a": 3.5, "b_total": 3.0}


class Nodes:
    """Two nodes of a cluster, of which the second leads; the first is asked first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, str]] = []
        monkeypatch.setattr(Api, "probe", lambda api, path: self.probe(api.address, path))
        monkeypatch.setattr(Api, "get", lambda api, *path: self.get(api.address, "/".join(path)))

    def probe(self, address: str, path: str) -> tuple[int, str]:
        self.asked.append((address, path))
        return READY if path == "/readyz" else (200, "")

    def get(self, address: str, path: str) -> Any:
        self.asked.append((address, path))
        if path == "cluster":
            return {"role": "leading" if address.endswith(":2") else "following", "node": address}
        return {"now_ms": "7000", "offset_ms": "5000"} if path == "clock" else {}


def test_of_several_addresses_the_leader_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(monkeypatch)
    found = answers_of("127.0.0.1:1,127.0.0.1:2", None)
    assert found["address"] == "127.0.0.1:2"
    assert list(found["nodes"]) == ["127.0.0.1:1"]
    assert found["now_ms"] == 2_000
    assert ("127.0.0.1:2", "groups") in nodes.asked
    assert ("127.0.0.1:1", "groups") not in nodes.asked


def test_only_what_is_wanted_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(monkeypatch)
    answers_of("127.0.0.1:2", None, frozenset({"timers"}))
    asked = {path for _, path in nodes.asked}
    assert asked == {"/readyz", "cluster", "clock", "timers/summary"}


def test_an_answer_of_another_version_is_unknown_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    Nodes(monkeypatch)
    row = judged("late", answers_of("127.0.0.1:2", None))
    assert row.state.name == "UNKNOWN"
    assert "not as this version" in row.said


def test_a_broker_without_a_cluster_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Api, "get", lambda *_: raising(NotFound("it is not served"))())
    assert asking.cluster_of(broker_at("127.0.0.1:1")) is None


def test_the_newest_audit_of_a_folder_is_read(tmp_path: Path) -> None:
    assert newest_audit(tmp_path) is None
    assert newest_audit(tmp_path / "none") is None
    cases = {"order-without-message": 2, "balanced": 5}
    write_run(tmp_path, "20261126T020000Z", balanced=False, totals={"orders": 7}, cases=cases)
    found = newest_audit(tmp_path)
    assert isinstance(found, dict)
    assert (found["is_balanced"], found["orders"]) == (False, 7)


def test_an_audit_that_cannot_be_read_is_not_well(tmp_path: Path) -> None:
    write_run(tmp_path, "20261126T020000Z").summary.write_text('{"totals": 7}')
    assert isinstance(newest_audit(tmp_path), Unread)
