"""Errors as the protocol's statuses: what a handler answers carries one, and gRPC's own status is OK then.

What never comes to a handler (too large a request, no such method) has only gRPC's (`front.grpc_wire`).

The message is what the command line prints too: "TW-nnn what, where, what next". Behind it, in brackets,
stand the status' name and RocketMQ's own words, for programs and tests that were written for its server and
look for them: some of its client libraries show a status' number only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from consumequeue.errors import IllegalFilter
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
from services.live.errors import BrokerBroken, ResultUnknown, StoreUnwell
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
    StoreUnwell: Code.INTERNAL_SERVER_ERROR,  # on TOO_MANY_REQUESTS Python's client gives up at once
    BrokerBroken: Code.INTERNAL_SERVER_ERROR,
    Unauthorized: Code.UNAUTHORIZED,
    IllegalTopic: Code.ILLEGAL_TOPIC,
    BodyEmpty: Code.MESSAGE_BODY_EMPTY,
    BodyTooLarge: Code.MESSAGE_BODY_TOO_LARGE,
}
"""The status of each error; one that is not here has that of the error it extends."""

ROCKETMQ_WORDS: Final[Mapping[type[TidewheelError], str]] = {
    BodyEmpty: "message body cannot be empty",
    IllegalFilter: "expression format is not correct",
    InvalidReceiptHandle: "receipt handle is expired",
}
"""What RocketMQ's own server says in the place of some errors, which clients may look for."""


def refusal(error: TidewheelError) -> Status:
    """Return the status for an error of the tree."""
    code, name = code_of(type(error)), name_of(type(error))
    rocketmq = error.rocketmq or ROCKETMQ_WORDS.get(type(error), "")
    words = f"{name}: {rocketmq}" if rocketmq else name
    return Status(code=code, message=f"{error.code} {error} ({words})")


def code_of(kind: type[TidewheelError]) -> Code:
    """Return the status code of a kind of error."""
    return next(CODES[one] for one in kind.__mro__ if one in CODES)


def name_of(kind: type[TidewheelError]) -> str:
    """Return the name of the status code of a kind of error, as rocketmq-apis has it."""
    return Code.Name(code_of(kind))


def overall(entries: Sequence[Status]) -> Status:
    """Return the status of a whole answer: its entries' common one, or MULTIPLE_RESULTS."""
    codes = {entry.code for entry in entries}
    return entries[0] if len(codes) == 1 else MIXED
