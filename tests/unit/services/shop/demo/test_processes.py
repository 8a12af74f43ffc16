"""Children that fail are told, with their last words; those that crash as armed come back."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import pytest

from services.shop.demo.processes import Processes
from services.shop.demo.settings import Layout
from tidewheel.errors import TidewheelError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path / "out")
    made.prepare()
    return made


def serve(processes: Processes, layout: Layout, store: str = "store") -> int:
    ready = processes.start(
        "serve", "--store", str(layout.root / store), "--http", "127.0.0.1:0", name="broker"
    )
    return int(ready["pid"])


def test_a_child_is_ended_with_the_block(layout: Layout) -> None:
    with Processes(layout) as processes:
        pid = serve(processes, layout)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_child_that_cannot_start_is_quoted(layout: Layout) -> None:
    (layout.root / "store").touch()
    with Processes(layout) as processes, pytest.raises(TidewheelError, match=r"did not get ready: TW-\d+"):
        serve(processes, layout)


def test_a_child_that_ends_by_itself_fails_the_run(layout: Layout) -> None:
    with Processes(layout) as processes:
        os.kill(serve(processes, layout), signal.SIGKILL)
        with pytest.raises(TidewheelError, match="The broker process ended with exit code -9"):
            wait_for_failure(processes)


def test_a_halted_child_comes_back_where_it_was(layout: Layout) -> None:
    with Processes(layout) as processes:
        pid = serve(processes, layout)
        ready = (layout.logs / "broker.json").read_text()
        processes.halt("broker")
        assert not processes.is_running("broker")
        processes.resume("broker")
        processes.require_health()
        assert processes.restarts() == 0
        again = json.loads((layout.logs / "broker.json").read_text())
        assert again.pop("pid") != pid
        assert again.items() <= json.loads(ready).items()


def wait_for_failure(processes: Processes) -> None:
    """Wait until a child has failed; return when it was restarted instead."""
    while processes.restarts() == 0:
        processes.require_health()
