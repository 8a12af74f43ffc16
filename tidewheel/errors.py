"""The families of errors, and those that a user's own process can meet.

    TidewheelError
    |-- ClientMistake         the caller sent something that can never be accepted
    |-- NotFound              it is not here
    |-- RefusedByState        it is here, and what has already happened forbids the request
    |-- Busy                  try again later
    |-- AccessRefused         the caller may not
    |-- StoreError            the files on disk are not what they should be (`commitlog/errors.py`)
    |-- ConfigurationError    a setting or an address cannot be used

Each package has its own in a file `errors.py`. A class carries a stable `code` for people and an `exit_code`
for commands; `services/rpc/wire/statuses.py` says what each is on the wire. The docstring is the first
sentence of the message; the argument says where, why and what to do next. An impossible state is an
AssertionError, never one of these.
"""

from __future__ import annotations

import re
from typing import Final

_TWO_STOPS: Final = re.compile(r"(?<=[\w)\]'\"])\.\.(?=\s|$)")
"""Of a reason in the words of a system or a library, which ends with a stop or not, and our own."""


class TidewheelError(Exception):
    """Tidewheel could not do this."""

    code = "TW-100"
    exit_code = 1

    def __init__(self, detail: str = "", rocketmq: str = "") -> None:
        self.detail = detail = _TWO_STOPS.sub(".", detail) if ".." in detail else detail
        self.rocketmq = rocketmq
        """What RocketMQ's own server says instead, where its words name what was sent."""
        sentence = (self.__doc__ or "").strip().partition("\n")[0]  # `python -OO` leaves docstrings out
        super().__init__(f"{sentence} {detail}".strip())


class ClientMistake(TidewheelError):
    """The request cannot be accepted."""

    code, exit_code = "TW-130", 2


class IllegalTopic(ClientMistake):
    """The topic name is illegal."""

    code = "TW-131"


class BodyEmpty(ClientMistake):
    """The message has no body."""

    code = "TW-141"


class BodyTooLarge(ClientMistake):
    """The message body is too large."""

    code = "TW-142"


class IllegalTag(ClientMistake):
    """The tag is illegal."""

    code = "TW-133"


class IllegalKey(ClientMistake):
    """The message key is illegal."""

    code = "TW-134"


class IllegalProperty(ClientMistake):
    """The message property is illegal."""

    code = "TW-135"


class IllegalMessageId(ClientMistake):
    """The message id is illegal."""

    code = "TW-136"


class IllegalMessageGroup(ClientMistake):
    """The message group is illegal."""

    code = "TW-137"


class IllegalDeliveryTime(ClientMistake):
    """The delivery time is illegal."""

    code = "TW-138"


class PropertiesTooLarge(ClientMistake):
    """The message properties are too large."""

    code = "TW-143"


class InvalidReceiptHandle(ClientMistake):
    """The receipt handle is no longer valid."""

    code = "TW-146"


class RefusedByState(TidewheelError):
    """What has already happened forbids this."""

    code, exit_code = "TW-160", 4

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


class BrokerUnreachable(ConfigurationError):
    """No broker answers."""

    code, exit_code = "TW-123", 3


class AnswerLate(TidewheelError):
    """The broker has the request and has not answered it."""

    code, exit_code = "TW-267", 3


class AnswerLost(TidewheelError):
    """The connection ended before the answer."""

    code, exit_code = "TW-280", 3


class NotFound(TidewheelError):
    """It was not found."""

    code, exit_code = "TW-150", 4


class Busy(TidewheelError):
    """The broker is busy."""

    code = "TW-170"
    is_own = False
    """Whether the broker wants means of its own: then it may be unable to prove that it leads, too."""


class AccessRefused(TidewheelError):
    """The caller may not do this."""

    code, exit_code = "TW-180", 4
