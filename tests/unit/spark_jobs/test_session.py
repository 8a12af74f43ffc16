"""What Spark's gateway says when an audit is interrupted."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from py4j.java_gateway import GatewayClient

from spark_jobs.session import unlogged_interrupts


class Interrupted:
    """A connection in which Ctrl-C comes while Java is awaited."""

    socket = None

    def send_command(self, command: str) -> str:
        raise KeyboardInterrupt


class Client(GatewayClient):  # type: ignore[misc]  # py4j has no types
    """A client of a gateway with such a connection."""

    def _get_connection(self) -> Any:
        return Interrupted()


def test_an_interrupt_is_raised_and_not_logged_as_well(caplog: pytest.LogCaptureFixture) -> None:
    """The gateway logs it with a traceback to the root logger, which prints it on a terminal."""
    with unlogged_interrupts():
        with pytest.raises(KeyboardInterrupt):
            Client().send_command("c\n")
        logging.getLogger().error("another error")
    assert [record.message for record in caplog.records] == ["another error"]
    with pytest.raises(KeyboardInterrupt):
        Client().send_command("c\n")
    assert len(caplog.records) == 2
