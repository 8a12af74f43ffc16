"""Conversion of errors to status codes of the protocol. If a handler replies, the gRPC status is OK.

Errors that occur before a handler is called (request too large, unknown method) have only a gRPC status
(`front.grpc_wire`).

The status message is the same as in the command line: "TW-nnn message". It is followed in parentheses by the
name of the status and RocketMQ's own message, for programs and tests that were written for RocketMQ's server.
Some client libraries show only the number of a status.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from consumequeue.filters.errors import IllegalFilter
from services.auth.errors import Unauthorized
from services.broker.spine.errors import (
    IllegalDeliveryTime,
    IllegalGroup,
    IllegalInvisibleTime,
    IllegalKey,
    IllegalLiteTopic,
    IllegalMessageGroup,
    IllegalMessageId,
    IllegalProperty,
    IllegalTag,
    MessageNotFound,
    MessageTypeConflict,
    PropertiesTooLarge,
    TooManyLiteSubscriptions,
    TooManyLiteTopics,
    TopicNotFound,
)
from services.live.errors import BrokerBroken, ResultUnknown, StoreUnavailable
from services.rpc.generated.definition_pb2 import Code, Status
from tidewheel.errors import (
    AccessRefused,
    BodyEmpty,
    BodyTooLarge,
    Busy,
    ClientMistake,
    IllegalTopic,
    InvalidReceiptHandle,
    NotFound,
    RefusedByState,
    TidewheelError,
)
from txn.errors import InvalidTransactionId

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

CODES: Final[Mapping[type[TidewheelError], Code]] = {
    TidewheelError: Code.INTERNAL_SERVER_ERROR,
    ClientMistake: Code.BAD_REQUEST,
    NotFound: Code.NOT_FOUND,
    RefusedByState: Code.PRECONDITION_FAILED,
    Busy: Code.TOO_MANY_REQUESTS,
    AccessRefused: Code.FORBIDDEN,
    IllegalGroup: Code.ILLEGAL_CONSUMER_GROUP,
    IllegalTag: Code.ILLEGAL_MESSAGE_TAG,
    IllegalKey: Code.ILLEGAL_MESSAGE_KEY,
    IllegalProperty: Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
    IllegalMessageId: Code.ILLEGAL_MESSAGE_ID,
    IllegalMessageGroup: Code.ILLEGAL_MESSAGE_GROUP,
    IllegalDeliveryTime: Code.ILLEGAL_DELIVERY_TIME,
    IllegalFilter: Code.ILLEGAL_FILTER_EXPRESSION,
    IllegalInvisibleTime: Code.ILLEGAL_INVISIBLE_TIME,
    PropertiesTooLarge: Code.MESSAGE_PROPERTIES_TOO_LARGE,
    MessageTypeConflict: Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    InvalidTransactionId: Code.INVALID_TRANSACTION_ID,
    InvalidReceiptHandle: Code.INVALID_RECEIPT_HANDLE,
    IllegalLiteTopic: Code.ILLEGAL_LITE_TOPIC,
    TopicNotFound: Code.TOPIC_NOT_FOUND,
    MessageNotFound: Code.MESSAGE_NOT_FOUND,
    TooManyLiteTopics: Code.LITE_TOPIC_QUOTA_EXCEEDED,
    TooManyLiteSubscriptions: Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
    ResultUnknown: Code.INTERNAL_SERVER_ERROR,
    StoreUnavailable: Code.INTERNAL_SERVER_ERROR,  # Python's client gives up immediately on TOO_MANY_REQUESTS
    BrokerBroken: Code.INTERNAL_SERVER_ERROR,
    Unauthorized: Code.UNAUTHORIZED,
    IllegalTopic: Code.ILLEGAL_TOPIC,
    BodyEmpty: Code.MESSAGE_BODY_EMPTY,
    BodyTooLarge: Code.MESSAGE_BODY_TOO_LARGE,
}
"""The status of each error. Other errors have the status of their base class."""

ROCKETMQ_WORDS: Final[Mapping[type[TidewheelError], str]] = {
    BodyEmpty: "message body cannot be empty",
    IllegalFilter: "expression format is not correct",
    InvalidReceiptHandle: "receipt handle is expired",
}
"""Messages of RocketMQ's server for some errors, which clients may search for."""


def refusal(error: TidewheelError) -> Status:
    """Return the status for an error."""
    code, name = code_of(type(error)), name_of(type(error))
    rocketmq = error.rocketmq or ROCKETMQ_WORDS.get(type(error), "")
    words = f"{name}: {rocketmq}" if rocketmq else name
    return Status(code=code, message=f"{error.code} {error} ({words})")


def code_of(kind: type[TidewheelError]) -> Code:
    """Return the status code for an error class."""
    return next(CODES[one] for one in kind.__mro__ if one in CODES)


def name_of(kind: type[TidewheelError]) -> str:
    """Return the name of the status code for an error class, as in rocketmq-apis."""
    return Code.Name(code_of(kind))


def overall(entries: Sequence[Status]) -> Status:
    """Return the status of a whole answer: the common status of its entries, or MULTIPLE_RESULTS."""
    codes = {entry.code for entry in entries}
    return entries[0] if len(codes) == 1 else MIXED
