"""A broker whose searches and counts end after their first step, as those of a large store after seconds."""

from __future__ import annotations

import sys
from typing import Final

from tidewheel.testing.process import BrokerProcess

CHUNK_BYTES: Final = 8_000
"""What a search of the log reads of its end before its time is over."""
_START: Final = f"""
import sys

from services.cli.main import main
from services.explain import explain
from services.ops.messages import explain as search
from services.ops.timers import timers

timers.SECONDS_MAX = search.SECONDS_MAX = 0
explain.CHUNK_BYTES = {CHUNK_BYTES}
main(sys.argv[1:])
"""


class HurriedBroker(BrokerProcess):
    """A broker in a process of its own, which is always out of time."""

    def _command(self) -> list[str]:
        words = super()._command()
        return [sys.executable, "-c", _START, *words[words.index("serve") :]]
