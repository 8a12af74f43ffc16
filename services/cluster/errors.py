"""What a node of a cluster refuses with."""

from __future__ import annotations

from tidewheel.errors import Busy


class NoLeader(Busy):
    """No node of the cluster answers as its leader."""

    code = "TW-254"


class EngineTrouble(Busy):
    """The shared log's engine would lose what it accepts, so new messages are refused."""

    code = "TW-259"
