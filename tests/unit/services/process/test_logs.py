"""A line of the log is one event's, whatever a stranger is called."""

from __future__ import annotations

import json
import subprocess
import sys

NAME = "me\x1b[2J\n12:00:00 [error    ] forged"
PROGRAM = """
import logging, sys, structlog
from services.process import logs
logs.configure("info", sys.argv[1])
structlog.get_logger().info("client came", client=sys.argv[2])
logging.getLogger("library").warning("a call of %s failed", sys.argv[2])
"""


def logged(form: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, form, NAME], capture_output=True, text=True, check=True
    )
    return done.stderr


def test_a_text_log_has_one_line_an_event() -> None:
    lines = logged("text").split("\n")
    assert len(lines) == 3
    assert all(line.isprintable() and r"me\x1b[2J\n12:00:00" in line for line in lines[:2])


def test_a_json_log_has_the_name_as_it_is() -> None:
    first, second = map(json.loads, logged("json").splitlines())
    assert first["client"] == NAME
    assert second["event"] == f"a call of {NAME} failed"


def test_a_log_that_cannot_be_written_stops_nothing() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", f"{PROGRAM}print('went on')", "text", NAME],
            stdout=subprocess.PIPE, stderr=full, text=True, check=False,
        )  # fmt: skip
    assert done.stdout == "went on\n"
