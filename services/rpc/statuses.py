"""Errors as the protocol's statuses: an answer always carries one, and gRPC's own status stays OK.

The message is what the command line prints too: "TW-nnn what, where, what next". Behind it, in brackets,
stand the status' name and RocketMQ's own words, for programs and tests that were written for its server and
look for them: some of its client libraries show a status' number only.
"""

from __future__ import annotations

from collections.abc import Sequence

from commitlog.errors import TidewheelError
from services.rpc.generated.definition_pb2 import Code, Status

OK = Status(code=Code.OK, message="OK")
CLIENT_ID_REQUIRED = Status(
    code=Code.CLIENT_ID_REQUIRED,
    message="The header x-mq-client-id is missing. Official clients send it with every call. "
    "(CLIENT_ID_REQUIRED: client id cannot be empty)",
)
NO_MESSAGES = Status(
    code=Code.MESSAGE_NOT_FOUND, message="No message came while the call waited. (no new message)"
)
MIXED = Status(code=Code.MULTIPLE_RESULTS, message="The entries have different results.")
BUG = Status(
    code=Code.INTERNAL_SERVER_ERROR, message="TW-100 The broker has met a bug; its log says more. Report it."
)


def refusal(error: TidewheelError) -> Status:
    """Return the status for an error of the tree."""
    words = f"{error.status}: {error.rocketmq}" if error.rocketmq else error.status
    return Status(code=error.status, message=f"{error.code} {error} ({words})")


def overall(entries: Sequence[Status]) -> Status:
    """Return the status of a whole answer: its entries' common one, or MULTIPLE_RESULTS."""
    codes = {entry.code for entry in entries}
    return entries[0] if len(codes) == 1 else MIXED
