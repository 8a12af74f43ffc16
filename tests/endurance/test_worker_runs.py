"""The oracle of workers that are killed finds each planted fault, and nothing in runs that keep all rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.endurance.worker_runs import Oracle

SENT = ["p.-.0", "l.g.0", "l.g.1"]
WELL = """
began p.-.0 / ended p.-.0 / acked p.-.0
began l.g.0 / ended l.g.0 / acked l.g.0
began l.g.1 / ended l.g.1 / acked l.g.1
"""


def judged(path: Path, *steps: str, sent: list[str] = SENT) -> Oracle:
    """Return the oracle after notes `[PROCESS:]WHAT MESSAGE [LEASE]`, which "/" and ends of lines part."""
    notes = [one.strip() for one in "/".join(steps).replace("\n", "/").split("/") if one.strip()]
    with (path / "notes").open("w") as file:
        for ms, note in enumerate(notes):
            process, _, rest = note.rpartition(":")
            what, message_id, lease, *_ = (*rest.split(), "-", "-")
            file.write(f"{ms} {process or 1} {what} {message_id} {lease}\n")
    oracle = Oracle(path / "notes")
    oracle.finish(sent)
    return oracle


@pytest.mark.parametrize(
    "steps",
    [
        WELL,
        "7:began p.-.0 / 7:killed -" + WELL,
        WELL.replace("ended p.-.0", "raised p.-.0 / again p.-.0 / began p.-.0 / ended p.-.0"),
        WELL.replace("ended l.g.0 / acked", "rejected l.g.0 / dead"),
        WELL.replace("acked p.-.0", "") + "killed -",
        WELL.replace("acked l.g.0\nbegan l.g.1", "began l.g.1 2.0 / acked l.g.0"),
        WELL + "again l.g.2 / stopped -",
    ],
    ids=[
        "plain",
        "killed before its end",
        "raised",
        "rejected",
        "killed after its acknowledgement",
        "answers of two calls cross",
        "given back",
    ],
)
def test_runs_that_keep_all_rules_are_right(tmp_path: Path, steps: str) -> None:
    oracle = judged(tmp_path, steps)
    assert oracle.wrong == []
    assert oracle.ended_count == 3


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (WELL.replace("began p.-.0 / ended p.-.0 / acked p.-.0", ""), "p.-.0 is lost: it never began"),
        (WELL + "2:began x.-.0 / 2:killed -", "x.-.0 is lost: its last run began"),
        (WELL + "began x.-.0 / raised x.-.0", "x.-.0 is lost: its last run raised"),
        (WELL.replace("acked p.-.0", ""), "p.-.0 ended, and was not confirmed"),
        (WELL + "2:began p.-.0", "p.-.0 began in 2: it was acked before"),
        (WELL + "killed - / 2:began p.-.0", "p.-.0 began in 2: it was acked before"),
        (WELL + "began x.-.0 / 2:began x.-.0", "x.-.0 began in 2: it began in 1, which was not killed"),
        (
            WELL + "began x.-.0 / ended x.-.0 / 2:began x.-.0",
            "x.-.0 began in 2: it ended in 1, which was not killed",
        ),
        (WELL + "began x.-.0 / stopped -", "x.-.0 began, and its process stopped"),
        (WELL + "began x.-.0 / ended x.-.0 / stopped -", "x.-.0 ended, and its process stopped"),
        (WELL + "began x.-.0 / acked x.-.0", "x.-.0 acked in 1, of Run("),
        (
            WELL.replace("g.0", "g.9").replace("g.1", "g.0").replace("g.9", "g.1"),
            "l.g.1 began in 1: it came after number -1 of its message group",
        ),
        (
            WELL.replace("ended l.g.0 / acked l.g.0", "") + "ended l.g.0 / acked l.g.0",
            "l.g.1 began in 1: number 0 of its message group began",
        ),
        (
            WELL.replace("ended l.g.0 / acked", "2:killed - / raised l.g.0 / again"),
            "l.g.1 began in 1: number 0 of its message group raised",
        ),
        (
            WELL.replace("acked l.g.0", "") + "killed - / 2:began l.g.0",
            "l.g.0 began in 2: it came after number 1 of its message group",
        ),
        (
            WELL.replace("acked l.g.0", "") + "acked l.g.0",
            "l.g.1 began in 1: number 0 of its message group ended",
        ),
    ],
)
def test_a_planted_fault_is_found(tmp_path: Path, steps: str, said: str) -> None:
    oracle = judged(tmp_path, steps, sent=[*SENT, *(["x.-.0"] if "x.-.0" in steps else [])])
    assert any(one.startswith(said) for one in oracle.wrong), oracle.wrong


def test_runs_again_and_the_longest_time_to_them_are_counted(tmp_path: Path) -> None:
    steps = "began p.-.0 / ended p.-.0 / killed - / 2:began p.-.0 / 2:ended p.-.0 / 2:acked p.-.0"
    oracle = judged(tmp_path, steps, sent=["p.-.0"])
    assert oracle.wrong == []
    assert (oracle.counts["begun again after a kill"], oracle.counts["twice"]) == (1, 1)
    assert (oracle.longest_ms, oracle.shortest_ms, oracle.ended_count) == ({"p": 1}, {"p": 1}, 1)
