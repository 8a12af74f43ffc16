"""The pytest plugin: fixture `tidewheel`, a real broker with a virtual clock.

    def test_an_unpaid_order_times_out(tidewheel):
        tidewheel.client.send("deadlines", "order 7", delay="30m", key="order:7")
        tidewheel.advance("30m")
        [message] = tidewheel.client.receive("deadlines", "shop")

The official client takes `ClientConfiguration(tidewheel.endpoint, Credentials(), tidewheel.namespace)`.

One broker serves the whole session, on a temporary store; it starts when the first test asks for it. Each
test gets a namespace of its own, which costs nothing. A broker that a test left dead is started again for
the next one. Override `tidewheel_options` (session scope) in your conftest.py for flags of `tidewheel serve`.

The official Python client logs to ~/logs/rocketmq_python from the moment it is imported. To keep that out of
your home, set HOME before its first import, at the top of the conftest.py that comes first:

    os.environ["HOME"] = tempfile.mkdtemp()
    import rocketmq

This plugin never imports it, and sets HOME for its broker's process only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from tidewheel.testing.kit import Tidewheel
    from tidewheel.testing.process import BrokerProcess


@pytest.fixture(scope="session")
def tidewheel_options() -> Sequence[str]:
    """Return flags for `tidewheel serve`, such as ("--no-auto-create",); override it to choose some."""
    return ()


@pytest.fixture(scope="session")
def tidewheel_process(
    tmp_path_factory: pytest.TempPathFactory, tidewheel_options: Sequence[str]
) -> Iterator[BrokerProcess]:
    """Yield the session's broker."""
    from tidewheel.testing.process import BrokerProcess

    process = BrokerProcess(tmp_path_factory.mktemp("tidewheel"), tidewheel_options)
    process.start()
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture
def tidewheel(tidewheel_process: BrokerProcess) -> Iterator[Tidewheel]:
    """Yield a real broker with a virtual clock, and a namespace of this test's own."""
    from tidewheel.testing.kit import Tidewheel

    if not tidewheel_process.is_running:
        tidewheel_process.start()
    kit = Tidewheel(tidewheel_process, f"test-{uuid4().hex[:12]}")
    try:
        yield kit
    finally:
        kit.close()
