"""A process halts that reads of another one of its name, and never for what a process before it has left."""

from __future__ import annotations

import pytest

from services.cluster.election.duplicate_name import LIVES_MS, DuplicateNameCheck
from services.cluster.errors import DuplicateNodeName

MINE, OTHERS = b"mine" * 4, b"another's" * 2


def test_a_process_of_this_name_that_goes_on_appending_is_another() -> None:
    name = DuplicateNameCheck("a")
    for now_ms in range(7, 7 + LIVES_MS, 300):
        name.record_append("a", OTHERS, now_ms)
        name.check("10.0.0.1:8081")
    name.record_append("a", OTHERS, 7 + LIVES_MS)
    with pytest.raises(DuplicateNodeName, match=r"node a of this cluster too, and leads at 10\.0\.0\.1:8081"):
        name.check("10.0.0.1:8081")


def test_its_own_appends_and_those_of_other_nodes_are_fine() -> None:
    name = DuplicateNameCheck("a")
    name.record_own_holder(MINE)
    for now_ms in range(0, 3 * LIVES_MS, 300):
        name.record_append("a", MINE, now_ms)
        name.record_append("b", OTHERS, now_ms)
    name.check("")


def test_what_a_process_before_has_written_last_may_come_late_and_at_once() -> None:
    name = DuplicateNameCheck("a")
    for _ in range(5):  # of a server that was behind when this process had read all that it has
        name.record_append("a", OTHERS, 7)
    name.check("")
