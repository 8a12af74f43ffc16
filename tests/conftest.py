"""What all tests share."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest
from hypothesis import settings

from tests import kept_java, mariadb
from tests.forked import Forked
from tidewheel.testing.process import BrokerProcess

LONGEST = {
    *("test_audit.py", "test_demo.py", "test_restart.py", "test_sick_disk.py", "test_crowded_kill.py"),
    *("test_races.py", "test_paid_around_timeout.py", "test_outbox_kill.py", "test_push_lease.py"),
    *("test_barrier_kill.py", "test_fifo_kill.py", "test_plugin.py", "test_kafka.py"),
    "test_failover.py",
    "test_worker.py",
}
"""Files with tests of ten seconds and more; the first two share a run of the demo."""

settings.register_profile("untimed", deadline=None)  # a machine with other work may be slow
settings.load_profile("untimed")
subprocess.Popen = Forked  # type: ignore[misc]
for number in (signal.SIGHUP, signal.SIGINT):  # ignored below `nohup` and behind `&`
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)  # unlike SIG_IGN, processes do not inherit it


def pytest_xdist_auto_num_workers() -> int:
    """Tell `-n auto` one more than there are processors, since tests that wait for a clock leave theirs."""
    return (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1) + 1


@pytest.hookimpl(trylast=True)  # behind pytest's own, which writes between the dots of the tests
def pytest_configure(config: pytest.Config) -> None:
    """Let a worker that dies of a fault leave the stacks of its threads."""
    if is_worker(config):
        faulthandler.enable(stacks_of(os.getpid()).open("w"))


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(report: Any) -> None:
    """Add a dead worker's exit code and stacks to what is reported of the test that it ran."""
    process = report.node.gateway._io.popen
    code, stacks = process.wait(), stacks_of(process.pid)
    report.longrepr = f"{report.longrepr}\nexit code {code}\n{stacks.read_text()}"
    stacks.unlink()


def is_worker(config: pytest.Config) -> bool:
    """Return whether this process runs a share of the tests."""
    return hasattr(config, "workerinput")


def stacks_of(pid: int) -> Path:
    """Return the file for the stacks of a worker's threads."""
    return Path(gettempdir(), f"tidewheel-stacks-{pid}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest tests: at the end there are many short ones to share, and nobody waits."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


def pytest_collection_finish() -> None:
    """Leave what was collected and imported out of all collections of garbage: half a million objects.

    Collections are rarer than by default, which took a tenth of the processor time of `tests/unit`.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End and delete what all tests of this process shared."""
    kept_java.end_all()
    mariadb.forget_made()
    if is_worker(config):
        stacks_of(os.getpid()).unlink()


class Unheard(logging.Handler):
    """What asyncio says of failures that nobody asked for.

    But those of gRPC's completion queue, one for all loops of a process: it calls loops that are closed.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Take in a line."""
        line = record.getMessage()
        if "was never retrieved" in line or (
            "Exception in callback" in line and "PollerCompletionQueue" not in line
        ):
            self.told.append(line)


@pytest.fixture(scope="session")
def unheard() -> Iterator[Unheard]:
    """Listen to asyncio as long as tests run."""
    handler = Unheard()
    logging.getLogger("asyncio").addHandler(handler)
    yield handler
    logging.getLogger("asyncio").removeHandler(handler)


@pytest.fixture(autouse=True)
def nothing_fails_unheard(unheard: Unheard) -> Iterator[None]:
    """Fail a test in which a failure was dropped: by it, or by one shortly before it."""
    yield
    told, unheard.told = unheard.told, []
    assert not told, f"asyncio says of this test, or of one before: {told}"


@pytest.fixture
def main_loop() -> Iterator[None]:
    """An event loop for this thread: the official client asks for it, and `asyncio.run` takes it away."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with an empty store and a virtual clock, for the tests of a module."""
    process = BrokerProcess(tmp_path_factory.mktemp("broker"))
    process.start()
    yield process
    process.stop()
