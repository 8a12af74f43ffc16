"""A broker, a console beside it, and a browser that has signed in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console_process import Browser, ConsoleProcess
from tidewheel.testing.process import BrokerProcess


@pytest.fixture(scope="module")
def console(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    folder = tmp_path_factory.mktemp("console")
    here = Path.cwd()
    os.chdir(folder)  # which has no audits and no settings
    process = ConsoleProcess(os.environ, broker.http)
    os.chdir(here)
    yield process
    assert process.stop() == 0


@pytest.fixture(scope="module")
def browser(console: ConsoleProcess) -> Browser:
    return Browser(console.link)
