"""Fixed cost of a command: processor time of the whole process. Prints JSON, milliseconds.

    .venv/bin/python benchmarks/cli.py [--rounds 20]

Starts a broker with twenty timers, and runs each command `rounds` times as a user would. Processor time is
the user and system time of the whole process, as accounted by the system; `least` excludes the influence of
other work on the machine, `median` does not. `python` is an interpreter that does nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tidewheel.testing.process import BrokerProcess

TIDEWHEEL = str(Path(sys.executable).with_name("tidewheel"))
TIMERS = 20
COMMANDS = {
    "python": [sys.executable, "-c", "pass"],
    "tidewheel --help": [TIDEWHEEL, "--help"],
    "tidewheel version": [TIDEWHEEL, "version"],
    "tidewheel timer --help": [TIDEWHEEL, "timer", "--help"],
    "tidewheel timer ls": [TIDEWHEEL, "timer", "ls"],
    "tidewheel timer ls --json": [TIDEWHEEL, "timer", "ls", "--json"],
    "tidewheel timer ls --limit 5": [TIDEWHEEL, "timer", "ls", "--limit", "5"],
    "tidewheel group ls": [TIDEWHEEL, "group", "ls"],
    "tidewheel send": [TIDEWHEEL, "send", "orders", "7", "--in", "1h"],
}


def main() -> None:
    """Run the measurement and print its figures."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=20)
    rounds = arguments.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        broker = BrokerProcess(Path(folder))
        broker.start()
        try:
            os.environ["TIDEWHEEL_HTTP"] = broker.http
            for number in range(TIMERS):
                timer = {"topic": "orders", "body": "7", "timer_key": f"order:{number}", "in": "1h"}
                broker.post("/api/timers", timer)
            taken_ms = {
                name: [processor_ms(command) for _ in range(rounds)] for name, command in COMMANDS.items()
            }
        finally:
            broker.stop()
    figures = {
        name: {"least": round(min(each)), "median": round(statistics.median(each))}
        for name, each in taken_ms.items()
    }
    print(json.dumps({"rounds": rounds, "processor_ms": figures}, indent=2))


def processor_ms(command: list[str]) -> float:
    """Run a command and return its processor time in milliseconds; exit if it fails."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    return (used.ru_utime + used.ru_stime) * 1000


if __name__ == "__main__":
    main()
