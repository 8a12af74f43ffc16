"""A process halts that reads of another one of its name, and never for what a process before it has left."""

from __future__ import annotations

import pytest

from services.cluster.errors import NameTaken
from services.cluster.one_name import OneName

MINE, OTHERS = b"mine" * 4, b"another's" * 2


def test_a_second_append_of_another_process_of_this_name_is_one_too_many() -> None:
    name = OneName("a")
    name.heard("a", OTHERS)
    name.check("10.0.0.1:8081")
    name.heard("a", OTHERS)
    with pytest.raises(NameTaken, match=r"node a of this cluster too, and leads at 10\.0\.0\.1:8081"):
        name.check("10.0.0.1:8081")


def test_its_own_appends_and_those_of_other_nodes_are_fine() -> None:
    name = OneName("a")
    name.drew(MINE)
    for _ in range(3):
        name.heard("a", MINE)
        name.heard("b", OTHERS)
    name.check("")
