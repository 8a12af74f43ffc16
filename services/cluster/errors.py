"""Errors of a cluster node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidewheel.errors import Busy, ClientMistake, ConfigurationError, TidewheelError


class NoLeader(Busy):
    """No node of the cluster answers as its leader."""

    code = "TW-254"


class CopyRefused(TidewheelError):
    """A node does not give, or has not got, a copy of the store."""

    code = "TW-257"


class OrderRefused(TidewheelError):
    """The leader does not do what an operator told it."""

    code, exit_code = "TW-258", 4


class EngineTrouble(Busy):
    """The engine of the shared log is not set as it must be, so new messages are refused."""

    code, is_own = "TW-259", True


class InvalidOrder(ClientMistake):
    """A body does not name a node, or a version."""

    code = "TW-260"


class LossNotAccepted(TidewheelError):
    """A cluster would begin anew without what it had accepted."""

    code, exit_code = "TW-261", 4

    def __init__(self, detail: str, facts: Mapping[str, Any] | None = None) -> None:
        """Create the error with `facts` for JSON about the remaining and the missing data."""
        super().__init__(detail)
        self.facts = facts or {}


class KeyMismatch(ConfigurationError):
    """This node cannot open the users' secrets of its cluster."""

    code = "TW-262"


class DuplicateNodeName(ConfigurationError):
    """Two processes are one node of a cluster."""

    code = "TW-266"
