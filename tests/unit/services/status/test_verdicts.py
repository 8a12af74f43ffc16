"""The sentences of verdicts on timers."""

from __future__ import annotations

from typing import Any

import pytest

from services.status.verdicts import move_line
from services.times.display import now_ms
from tidewheel.errors import AccessRefused

HOUR_MS = 3_600_000


class Broker:
    """The HTTP interface of a broker whose topics have one hold; without one, it shows no topic."""

    address = "127.0.0.1:1"

    def __init__(self, **hold: Any) -> None:
        self._hold, self.asked = hold, 0

    def get(self, *path: str) -> Any:
        """Return a topic."""
        self.asked += 1
        assert path == ("topics", "t")
        if not self._hold:
            raise AccessRefused("view is missing")
        return self._hold

    def probe(self, path: str) -> tuple[int, str]:
        """Return an error."""
        return 500, path


@pytest.mark.parametrize(
    ("hold", "said"),
    [
        ({"hold": {"per_second": None}}, "now held until the release of t: "),
        ({"hold": {"per_second": 5}}, "now delivered: "),
        ({"hold": None}, "now delivered: "),
        ({}, "now delivered: "),
    ],
)
def test_a_move_into_the_past_says_what_follows(hold: dict[str, Any], said: str) -> None:
    answer = {"verdict": "MOVED", "message_id": "A", "ended_offset": "7", "what": "", "note": ""}
    answer |= {"due_ms": str(now_ms() + HOUR_MS)}
    line = move_line(Broker(**hold), answer | {"ended_ms": str(now_ms() - HOUR_MS)}, "k", "t")
    assert line.startswith("MOVED  k  t  was due ")
    assert f", {said}" in line
    assert line.endswith(" has passed  id A  log@7")
    broker = Broker(**hold)
    line = move_line(broker, answer | {"ended_ms": str(now_ms() + 2 * HOUR_MS)}, "k", "t")
    assert ("now due " in line, broker.asked) == (True, 0)
