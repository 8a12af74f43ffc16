"""A broker with something on each page, its console, and a Chromium that signs in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.console.chromium import Pipe, Tab, chromium
from tidewheel.testing.process import BrokerProcess


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipe]:
    with chromium(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture
def tab(pipe: Pipe, broker: BrokerProcess) -> Tab:
    """A tab that came in by the HTTP address of the broker."""
    found = Tab(pipe)
    found.open(f"http://{broker.http}/")
    found.shows("keeping up")
    return found
