"""What a node of a cluster refuses with."""

from __future__ import annotations

from tidewheel.errors import Busy


class NoLeader(Busy):
    """No node of the cluster answers as its leader."""

    code = "TW-254"
