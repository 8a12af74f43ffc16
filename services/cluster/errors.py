"""Errors of a cluster node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidewheel.errors import Busy, ClientMistake, ConfigurationError, TidewheelError


class NoLeader(Busy):
    """The cluster has no reachable leader."""

    code = "TW-254"


class CopyRefused(TidewheelError):
    """A copy of the store cannot be transferred, or must not replace the store of this node."""

    code = "TW-257"


class CommandRefused(TidewheelError):
    """The cluster rejected an operator command."""

    code, exit_code = "TW-258", 4


class EngineTrouble(Busy):
    """The settings of the shared log engine are unsafe, and new messages are therefore refused."""

    code, is_own = "TW-259", True


class InvalidCommand(ClientMistake):
    """The request body does not contain a valid node name or version."""

    code = "TW-260"


class LossNotAccepted(TidewheelError):
    """An operation may lose accepted data, and the operator has not confirmed the loss."""

    code, exit_code = "TW-261", 4

    def __init__(self, detail: str, facts: Mapping[str, Any] | None = None) -> None:
        """Create the error.

        The JSON-serializable dictionary `facts` describes the remaining data and the missing data.
        """
        super().__init__(detail)
        self.facts = facts or {}


class KeyMismatch(ConfigurationError):
    """The key for user secrets on this node differs from the key of the last leader."""

    code = "TW-262"


class DuplicateNodeName(ConfigurationError):
    """Two processes of the cluster use the same node name."""

    code = "TW-266"
