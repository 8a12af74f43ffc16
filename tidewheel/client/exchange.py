"""Request handling without I/O: retries, failures, and conversion of answers to values or errors.

An operation is a generator (`Steps`). It yields a `Request` or a `Pause`, receives an `Answer` or a
`Failure`, and returns a value or raises an error of `tidewheel.errors`. Transports (`tidewheel.client.http`)
send the requests and sleep during the pauses. There is a transport for threads and a transport for asyncio.

    request --> Answer 2xx ------------------------------------> value
            --> Answer with an error's code --- 503 --> again --> error of that code
            --> Failure UNTAKEN (no connection) ------> again --> BrokerUnreachable
            --> Failure CROWDED (no free connection) --> again --> Busy
            --> Failure CUT (connection lost) --------> again --> AnswerLost
            --> Failure LATE (timeout) ------------------------> AnswerLate

Rules
1. A request that did not reach a broker is always repeated.
2. A request that may have been executed is repeated only if `is_repeatable` is set, and only within
   `REPEAT_SECONDS` of the first attempt. The broker detects repeated sends for 30 s.
3. The number of attempts is limited by `PAUSES_S`. The error of the last attempt is raised, unless an earlier
   attempt may have been executed and the last error denies it. In that case, the error of the earlier attempt
   is raised.

An error contains no traceback of the HTTP library, because failures are passed as values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar, cast

from tidewheel import errors
from tidewheel.errors import AnswerLate, AnswerLost, BrokerUnreachable, Busy, TidewheelError

PAUSES_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
REPEAT_SECONDS: Final = 20.0
UNAVAILABLE: Final = 503
RESULT_UNKNOWN: Final = "TW-171"
FROM_PROXIES: Final = (502, 503, 504)
"""Statuses that a proxy returns when the broker behind it did not answer."""
_SHOWN_CHARACTERS: Final = 100

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request. The broker may delay its answer by up to `wait_s` seconds."""

    method: str
    path: str
    body: bytes | None = None
    wait_s: float = 0.0
    is_repeatable: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause before the next attempt, in seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer. Times are seconds of a monotonic clock, and `where` is the broker's address."""

    status: int
    body: bytes
    where: str
    begun_s: float
    ended_s: float


class Fault(Enum):
    """The cause of a failed request. UNTAKEN: no connection was made.

    CROWDED: all connections of the client are in use.
    """

    UNTAKEN = "untaken"
    CROWDED = "crowded"
    CUT = "cut"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class Failure:
    """A request without an answer. `reason` is the message of the HTTP library or the operating system."""

    fault: Fault
    reason: str
    where: str
    begun_s: float
    ended_s: float


Reply = Answer | Failure
Steps = Generator[Request | Pause, Reply | None, T]


def asked(request: Request, reader: Callable[[int, Any], T], *statuses: int) -> Steps[T]:
    """Send a request, with retries, and return the value that `reader` creates from the status and the JSON
    of the answer.

    An answer counts as a success if its status is 2xx, or is in `statuses` and the JSON is not an error.

    Raises:
        TidewheelError: The error returned by the broker, or the reason for a missing answer.
    """
    begun_s: float | None = None
    lost: TidewheelError | None = None
    for pause_s in (*PAUSES_S, None):
        reply = cast("Reply", (yield request))
        begun_s = reply.begun_s if begun_s is None else begun_s
        found = read(reply, reader, statuses)
        if not isinstance(found, TidewheelError):
            return found
        is_untaken = isinstance(reply, Failure) and reply.fault in (Fault.UNTAKEN, Fault.CROWDED)
        if is_unknown(found):
            lost = found
        is_safe = is_untaken and lost is None
        if request.is_repeatable and (is_untaken or may_pass(reply)):
            is_safe |= reply.ended_s + (pause_s or 0.0) - begun_s <= REPEAT_SECONDS
        if pause_s is None or not is_safe:
            raise lost if lost is not None and isinstance(found, BrokerUnreachable | Busy) else found
        yield Pause(pause_s)
    raise AssertionError("the last try returns or raises")


def is_unknown(error: TidewheelError) -> bool:
    """Return whether an error leaves open if the request was executed."""
    return isinstance(error, AnswerLost) or error.code == RESULT_UNKNOWN


def may_pass(reply: Reply) -> bool:
    """Return whether a repeated request might succeed."""
    return reply.fault is Fault.CUT if isinstance(reply, Failure) else reply.status in FROM_PROXIES


def read(reply: Reply, reader: Callable[[int, Any], T], statuses: tuple[int, ...] = ()) -> T | TidewheelError:
    """Return the value that a reader creates from a reply, or the error of the reply."""
    if isinstance(reply, Failure):
        return failed(reply)
    try:
        content = json.loads(reply.body)
    except (ValueError, RecursionError):
        return _stranger(reply)
    if not isinstance(content, dict):
        return _stranger(reply)
    if not (200 <= reply.status < 300 or (reply.status in statuses and "code" not in content)):
        return refusal(reply.status, content) or _stranger(reply)
    try:
        return reader(reply.status, content)
    except (ValueError, TypeError, LookupError, AttributeError):
        return _unread(reply)


def failed(failure: Failure) -> TidewheelError:
    """Return the error for a request without an answer."""
    where, reason = failure.where, failure.reason
    if failure.fault is Fault.UNTAKEN:
        return BrokerUnreachable(
            f"There is no Tidewheel HTTP interface at {where} ({reason}). Start a broker with "
            "'tidewheel serve', or name its HTTP address by Client(url) or TIDEWHEEL_HTTP."
        )
    if failure.fault is Fault.CROWDED:
        return Busy(
            f"The call was not sent to {where}: {reason}. Let fewer calls wait at once, long polls among "
            "them, or give those that wait a client of their own."
        )
    if failure.fault is Fault.LATE:
        return AnswerLate(
            f"{where} did not answer within {failure.ended_s - failure.begun_s:.0f} s. "
            "The call may have been carried out: look before you repeat it."
        )
    return AnswerLost(
        f"{where} ended the connection ({reason}): a proxy, or a broker that stops. "
        "The call may have been carried out: look before you repeat it."
    )


def refusal(status: int, content: Any) -> TidewheelError | None:
    """Return the error described by the JSON of an answer or of one of its results, or None if there is no
    error.

    The class is chosen by the error code, then by the status: `status` is 0 for a single result of a batch.
    """
    match content:
        case {"code": str(code), "message": str(message)}:
            error = _class_of(code, status)(str(content.get("detail", "")))
            error.code = code
            error.args = (message,)
            return error
    return None


def _unread(answer: Answer) -> TidewheelError:
    """Return the error for an answer with unexpected fields or values."""
    return AnswerLost(
        f"{answer.where} answered {_shown(answer)}, which this client cannot read: is it a broker of another "
        "version, or something else? The call may have been carried out: look before you repeat it."
    )


def _shown(answer: Answer) -> str:
    begun = " ".join(answer.body[: 4 * _SHOWN_CHARACTERS].decode(errors="replace").split())
    return f"{answer.status} {begun[:_SHOWN_CHARACTERS]!r}"


def _stranger(answer: Answer) -> TidewheelError:
    """Return the error for an answer that does not come from Tidewheel."""
    shown = _shown(answer)
    if answer.status in FROM_PROXIES:
        return AnswerLost(
            f"A proxy before {answer.where} said {shown}: the broker behind it gave no answer. "
            "The call may have been carried out: look before you repeat it."
        )
    return BrokerUnreachable(
        f"The server at {answer.where} is no Tidewheel HTTP interface: it said {shown}. Give the address "
        "that 'tidewheel serve --http' has, 127.0.0.1:8088 unless it says otherwise; 8081 is for gRPC."
    )


_MISTAKES: Final = range(400, 500)
_OF_STATUS: Final = {
    401: errors.AccessRefused,
    403: errors.AccessRefused,
    404: errors.NotFound,
    409: errors.RefusedByState,
    UNAVAILABLE: errors.Busy,
}
_OF_RANGE: Final = {
    "TW-13": errors.ClientMistake,
    "TW-14": errors.ClientMistake,
    "TW-15": errors.NotFound,
    "TW-16": errors.RefusedByState,
    "TW-17": errors.Busy,
    "TW-18": errors.AccessRefused,
    "TW-22": errors.Busy,
}
"""Error classes by code prefix, for messages and receipt handles of a batch."""
_OF_CODE: Final = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, TidewheelError) and "code" in vars(kind)
}


def _class_of(code: str, status: int) -> type[TidewheelError]:
    if code in _OF_CODE:
        return _OF_CODE[code]
    if status in _OF_STATUS:
        return _OF_STATUS[status]
    return errors.ClientMistake if status in _MISTAKES else _OF_RANGE.get(code[:5], TidewheelError)
