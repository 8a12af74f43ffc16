"""Faults strike exactly where they are armed, and leave a trace."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from services.shop.faults import EXIT_BY_FAULT, FAULT_LOG_VARIABLE, FAULTS_VARIABLE, Fault, Faults
from tidewheel.errors import UnknownChoice

if TYPE_CHECKING:
    from pathlib import Path

DYING = """
from services.shop.faults import Fault, Faults
faults = Faults.from_environment()
for order_id in ("O1", "O2", "O3"):
    faults.die_if_struck(Fault.DIE_BEFORE_ACK, order_id)
"""


def strikes(armed: str, times: int) -> list[bool]:
    faults = Faults.from_environment({FAULTS_VARIABLE: armed})
    return [faults.strikes(Fault.REPEAT_SAME_ID, "M") for _ in range(times)]


def test_nothing_is_armed_by_itself() -> None:
    assert strikes("", 3) == [False, False, False]


def test_at_strikes_once_and_slash_again_and_again() -> None:
    assert strikes("repeat-same-id@2", 5) == [False, True, False, False, False]
    assert strikes("repeat-same-id/2", 5) == [False, True, False, True, False]


def test_a_subject_is_struck_whenever_it_comes() -> None:
    faults = Faults.from_environment({FAULTS_VARIABLE: "poison=O1,poison=O3,poison@5"})
    orders = ("O1", "O2", "O1", "O3", "O4", "O4")
    assert [faults.strikes(Fault.POISON, order) for order in orders] == [True, False, True, True, True, False]


def test_other_points_are_left_alone() -> None:
    assert strikes("repeat-as-new/1,die-before-ack@1", 2) == [False, False]


@pytest.mark.parametrize("armed", ["repeat-same-id", "repeat-same-id@0", "unknown@1", "@1", "poison=", "=O1"])
def test_what_cannot_be_read_is_refused(armed: str) -> None:
    with pytest.raises(UnknownChoice, match="die-before-commit"):
        Faults.from_environment({FAULTS_VARIABLE: armed})


def test_a_process_dies_at_the_point_and_the_log_says_so(tmp_path: Path) -> None:
    log = tmp_path / "faults.jsonl"
    environment = {FAULTS_VARIABLE: "die-before-ack@2", FAULT_LOG_VARIABLE: str(log)}
    died = subprocess.run([sys.executable, "-c", DYING], env=environment, check=False)
    assert died.returncode == EXIT_BY_FAULT
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["fault"], line["subject"]) for line in lines] == [("die-before-ack", "O2")]
