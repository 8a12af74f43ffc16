"""The errors that a user's own process can meet, with their codes; the broker's tree goes on from them.

    TidewheelError
    |-- ClientMistake            IllegalTopic, BodyEmpty, BodyTooLarge
    |-- RefusedByState           TransactionEnded
    |-- ConfigurationError       UnknownChoice, LibraryMissing

`commitlog/errors.py` has the whole tree and its rules.
"""

from __future__ import annotations


class TidewheelError(Exception):
    """Tidewheel could not do this."""

    code = "TW-100"
    status = "INTERNAL_SERVER_ERROR"
    exit_code = 1
    rocketmq = ""

    def __init__(self, detail: str = "", rocketmq: str = "") -> None:
        self.detail = detail
        self.rocketmq = rocketmq or self.rocketmq
        sentence = (self.__doc__ or "").strip().splitlines()[0]
        super().__init__(f"{sentence} {detail}".strip())


class ClientMistake(TidewheelError):
    """The request cannot be accepted."""

    code, status, exit_code = "TW-130", "BAD_REQUEST", 2


class IllegalTopic(ClientMistake):
    """The topic name is illegal."""

    code, status = "TW-131", "ILLEGAL_TOPIC"


class BodyEmpty(ClientMistake):
    """The message has no body."""

    code, status = "TW-141", "MESSAGE_BODY_EMPTY"
    rocketmq = "message body cannot be empty"


class BodyTooLarge(ClientMistake):
    """The message body is too large."""

    code, status = "TW-142", "MESSAGE_BODY_TOO_LARGE"


class RefusedByState(TidewheelError):
    """What has already happened forbids this."""

    code, status, exit_code = "TW-160", "PRECONDITION_FAILED", 4

    def __init__(self, detail: str = "", durable_at: int = 0) -> None:
        """`durable_at` is the log offset that must be durable before the caller may be told."""
        super().__init__(detail)
        self.durable_at = durable_at


class TransactionEnded(RefusedByState):
    """The transaction has already ended the other way."""

    code = "TW-161"


class ConfigurationError(TidewheelError):
    """A setting cannot be used."""

    code, exit_code = "TW-120", 2


class UnknownChoice(ConfigurationError):
    """The value is not one of the choices."""

    code = "TW-122"


class LibraryMissing(ConfigurationError, ImportError):
    """An optional library is not installed."""

    code, exit_code = "TW-125", 3
