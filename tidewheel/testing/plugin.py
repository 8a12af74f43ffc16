"""The pytest plugin with the fixture `tidewheel`, a real broker with a virtual clock.

    def test_an_unpaid_order_times_out(tidewheel):
        tidewheel.client.send("deadlines", "order 7", delay="30m", key="order:7")
        tidewheel.advance("30m")
        [message] = tidewheel.client.receive("deadlines", "shop")

The official client takes `ClientConfiguration(tidewheel.endpoint, Credentials(), tidewheel.namespace)`.

One broker with a temporary store serves the whole session. It is started when the first test uses it. Each
test gets a separate namespace, which has no cost. A broker that has crashed in a test is restarted for the
next test. To pass options to `tidewheel serve`, override `tidewheel_options` (session scope) in your
conftest.py.

The official Python client begins to log to ~/logs/rocketmq_python when it is imported. To log to another
directory, set HOME before the first import, at the top of the first conftest.py:

    os.environ["HOME"] = tempfile.mkdtemp()
    import rocketmq

This plugin never imports the official client, and sets HOME only for its broker process.
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
    """Return options for `tidewheel serve`, such as ("--no-auto-create",).

    Override this fixture to set options.
    """
    return ()


@pytest.fixture(scope="session")
def tidewheel_process(
    tmp_path_factory: pytest.TempPathFactory, tidewheel_options: Sequence[str]
) -> Iterator[BrokerProcess]:
    """Yield the broker process of the session."""
    from tidewheel.testing.process import BrokerProcess

    process = BrokerProcess(tmp_path_factory.mktemp("tidewheel"), tidewheel_options)
    process.start()
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture
def tidewheel(tidewheel_process: BrokerProcess) -> Iterator[Tidewheel]:
    """Yield a real broker with a virtual clock and a separate namespace for this test."""
    from tidewheel.testing.kit import Tidewheel

    if not tidewheel_process.is_running:
        tidewheel_process.start()
    kit = Tidewheel(tidewheel_process, f"test-{uuid4().hex[:12]}")
    try:
        yield kit
    finally:
        kit.close()
