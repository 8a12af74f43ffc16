"""Every error that Tidewheel raises on purpose, as one tree.

    TidewheelError
    |-- ClientMistake            the caller sent something that can never be accepted
    |   |-- IllegalTopic, IllegalGroup, IllegalTag, IllegalKey, IllegalProperty, IllegalMessageId
    |   |-- IllegalMessageGroup, IllegalDeliveryTime, IllegalFilter, IllegalInvisibleTime
    |   |-- BodyEmpty, BodyTooLarge, PropertiesTooLarge
    |   |-- MessageTypeConflict
    |   |-- InvalidTransactionId, InvalidReceiptHandle, InvalidRecallHandle
    |   |-- IllegalAdvance, IllegalSchedule, IllegalLiteTopic
    |   |-- BodyNotJson, BodyUnfinished
    |-- NotFound                 it is not here
    |   |-- TopicNotFound, MessageNotFound, ScheduleNotFound, GroupNotFound, UserNotFound, RuleNotFound
    |   |-- ClientNotFound
    |-- RefusedByState           it is here, and what has already happened forbids the request
    |   |-- TransactionEnded, TimerEnded, TopicExists, ClockIsReal, KeyPending, GroupExists, UserExists
    |-- Busy                     try again later
    |   |-- ResultUnknown, DiskFull, TooManyTimers, ClientSilent
    |   |-- TooManyLiteTopics, TooManyLiteSubscriptions, DiskBehind, AnswersUnread
    |   |-- TooManyTopics, TooManyGroups, TooManyHalves
    |   |-- TooManyBodies, StoreUnwell, BrokerBroken
    |-- AccessRefused            the caller may not
    |   |-- Unauthorized, Forbidden, ForeignHost, ForeignPage
    |-- StoreError               the files on disk are not what they should be
    |   |-- StoreLocked, StoreDamaged, StoreTooNew, NotAStore, WrongClock, DiskFailed, NoRoom
    |-- ConfigurationError       a setting or an address cannot be used
        |-- PortTaken, InputUnreadable, UnknownChoice, BrokerUnreachable, DatabaseUnreadable, JavaMissing
        |-- LibraryMissing, WrongKey, OpenToAll, UnknownSetting, TokenAstray

A class carries a stable `code` for people, the name of the protocol's status for
client libraries (`status`, as in rocketmq-apis `Code`), and an `exit_code` for commands; `rocketmq` is what
RocketMQ's own server says in its place, which clients may look for (`services.rpc.statuses`).
The docstring is the first sentence of the message; the argument says where, why and what to do next.
An impossible state is an AssertionError, never one of these. What a user's process can meet is defined in
`tidewheel/errors.py`, which imports nothing of the broker.
"""

from __future__ import annotations

import errno
import os

from tidewheel.errors import BodyEmpty as BodyEmpty
from tidewheel.errors import BodyTooLarge as BodyTooLarge
from tidewheel.errors import ClientMistake as ClientMistake
from tidewheel.errors import ConfigurationError as ConfigurationError
from tidewheel.errors import IllegalTopic as IllegalTopic
from tidewheel.errors import LibraryMissing as LibraryMissing
from tidewheel.errors import RefusedByState as RefusedByState
from tidewheel.errors import TidewheelError as TidewheelError
from tidewheel.errors import TransactionEnded as TransactionEnded
from tidewheel.errors import UnknownChoice as UnknownChoice


class IllegalGroup(ClientMistake):
    """The consumer group name is illegal."""

    code, status = "TW-132", "ILLEGAL_CONSUMER_GROUP"


class IllegalTag(ClientMistake):
    """The tag is illegal."""

    code, status = "TW-133", "ILLEGAL_MESSAGE_TAG"


class IllegalKey(ClientMistake):
    """The message key is illegal."""

    code, status = "TW-134", "ILLEGAL_MESSAGE_KEY"


class IllegalProperty(ClientMistake):
    """The message property is illegal."""

    code, status = "TW-135", "ILLEGAL_MESSAGE_PROPERTY_KEY"


class IllegalMessageId(ClientMistake):
    """The message id is illegal."""

    code, status = "TW-136", "ILLEGAL_MESSAGE_ID"


class IllegalMessageGroup(ClientMistake):
    """The message group is illegal."""

    code, status = "TW-137", "ILLEGAL_MESSAGE_GROUP"


class IllegalDeliveryTime(ClientMistake):
    """The delivery time is illegal."""

    code, status = "TW-138", "ILLEGAL_DELIVERY_TIME"


class IllegalFilter(ClientMistake):
    """The filter expression is illegal."""

    code, status = "TW-139", "ILLEGAL_FILTER_EXPRESSION"
    rocketmq = "expression format is not correct"


class IllegalInvisibleTime(ClientMistake):
    """The invisible duration is illegal."""

    code, status = "TW-140", "ILLEGAL_INVISIBLE_TIME"


class PropertiesTooLarge(ClientMistake):
    """The message properties are too large."""

    code, status = "TW-143", "MESSAGE_PROPERTIES_TOO_LARGE"


class MessageTypeConflict(ClientMistake):
    """The topic does not take this type of message."""

    code, status = "TW-144", "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"


class InvalidTransactionId(ClientMistake):
    """The transaction id is not one of this store's."""

    code, status = "TW-145", "INVALID_TRANSACTION_ID"


class InvalidReceiptHandle(ClientMistake):
    """The receipt handle is no longer valid."""

    code, status = "TW-146", "INVALID_RECEIPT_HANDLE"
    rocketmq = "receipt handle is expired"


class InvalidRecallHandle(ClientMistake):
    """The recall handle is not one of this broker's."""

    code, status = "TW-147", "BAD_REQUEST"


class IllegalAdvance(ClientMistake):
    """The clock cannot be advanced by that."""

    code = "TW-148"


class IllegalSchedule(ClientMistake):
    """The schedule cannot be kept."""

    code = "TW-149"


class IllegalLiteTopic(ClientMistake):
    """The lite topic is illegal."""

    code, status = "TW-190", "ILLEGAL_LITE_TOPIC"


class BodyNotJson(ClientMistake):
    """A request's body must be declared as JSON."""

    code = "TW-232"


class BodyUnfinished(ClientMistake):
    """The request's body did not come to its end in time."""

    code = "TW-233"


class NotFound(TidewheelError):
    """It was not found."""

    code, status, exit_code = "TW-150", "NOT_FOUND", 4


class TopicNotFound(NotFound):
    """The topic does not exist."""

    code, status = "TW-151", "TOPIC_NOT_FOUND"


class MessageNotFound(NotFound):
    """The message was not found."""

    code, status = "TW-152", "MESSAGE_NOT_FOUND"


class ScheduleNotFound(NotFound):
    """The schedule does not exist."""

    code = "TW-153"


class GroupNotFound(NotFound):
    """The consumer group does not exist."""

    code = "TW-154"


class UserNotFound(NotFound):
    """The user does not exist."""

    code = "TW-155"


class RuleNotFound(NotFound):
    """There is no such rule."""

    code = "TW-156"


class ClientNotFound(NotFound):
    """There is no such client."""

    code = "TW-157"


class TimerEnded(RefusedByState):
    """The timer has already ended."""

    code = "TW-162"


class TopicExists(RefusedByState):
    """The topic exists with other settings."""

    code = "TW-163"


class ClockIsReal(RefusedByState):
    """The broker runs on real time, which nobody can advance."""

    code = "TW-164"


class KeyPending(RefusedByState):
    """A timer with this key waits already."""

    code = "TW-165"


class GroupExists(RefusedByState):
    """The consumer group receives the topic already."""

    code = "TW-166"


class UserExists(RefusedByState):
    """The user exists."""

    code = "TW-167"


class Busy(TidewheelError):
    """The broker is busy."""

    code, status = "TW-170", "TOO_MANY_REQUESTS"


class DiskFull(Busy):
    """The disk is nearly full, so new messages are refused."""

    code = "TW-172"


class TooManyTimers(Busy):
    """Too many delayed messages wait for this topic."""

    code = "TW-173"


class TooManyRequests(Busy):
    """The group has more in flight, or the client more receives open, than one may have."""

    code = "TW-174"


class DiskBehind(Busy):
    """The disk does not keep up with what is sent."""

    code = "TW-225"


class AnswersUnread(Busy):
    """Clients do not read what they have received."""

    code = "TW-226"


class TooManyTopics(Busy):
    """The broker has as many topics as it may."""

    code = "TW-227"


class TooManyGroups(Busy):
    """The broker has as many consumer groups, or groups receive as many topics, as may be."""

    code = "TW-228"


class TooManyHalves(Busy):
    """As many half messages wait for their end as may."""

    code = "TW-229"


class ClientSilent(Busy):
    """The client does not answer."""

    code = "TW-175"


class TooManyLiteTopics(Busy):
    """The topic has as many lite topics as it may."""

    code, status = "TW-176", "LITE_TOPIC_QUOTA_EXCEEDED"


class TooManyLiteSubscriptions(Busy):
    """The client subscribes to as many lite topics as it may."""

    code, status = "TW-177", "LITE_SUBSCRIPTION_QUOTA_EXCEEDED"


class TooManyBodies(Busy):
    """The requests under way hold as many bytes as they may together."""

    code = "TW-234"


class ResultUnknown(Busy):
    """The write may or may not be on disk."""

    code, status = "TW-171", "INTERNAL_SERVER_ERROR"


class StoreUnwell(Busy):
    """The disk of the store fails, so nothing is served until it works again."""

    code, status = "TW-220", "INTERNAL_SERVER_ERROR"  # Python's client gives up at once on TOO_MANY_REQUESTS


class BrokerBroken(Busy):
    """The broker has met a bug and ends, so nothing is served."""

    code, status = "TW-223", "INTERNAL_SERVER_ERROR"


class AccessRefused(TidewheelError):
    """The caller may not do this."""

    code, status, exit_code = "TW-180", "FORBIDDEN", 4


class Unauthorized(AccessRefused):
    """The caller has not proved who it is."""

    code, status, exit_code = "TW-181", "UNAUTHORIZED", 3


class Forbidden(AccessRefused):
    """The caller has no right to this."""

    code = "TW-182"


class ForeignHost(AccessRefused):
    """The HTTP interface does not answer to this name."""

    code = "TW-230"


class ForeignPage(AccessRefused):
    """The request comes from a web page that is not the broker's."""

    code = "TW-231"


class StoreError(TidewheelError):
    """The store cannot be used."""

    code, exit_code = "TW-110", 5


class StoreLocked(StoreError):
    """The store is open in another broker."""

    code, exit_code = "TW-102", 3


class StoreDamaged(StoreError):
    """The store holds bytes that are not what was written."""

    code = "TW-111"


class StoreTooNew(StoreError):
    """The store was written by a newer version."""

    code = "TW-105"


class NotAStore(StoreError):
    """The folder is not a Tidewheel store."""

    code = "TW-104"


class WrongClock(StoreError):
    """The store was kept by the other kind of clock."""

    code = "TW-106"


class DiskFailed(StoreError):
    """The disk of the store failed."""

    code = "TW-221"


class NoRoom(StoreError):
    """The disk of the store has no room."""

    code = "TW-222"


def disk_error(error: OSError, doing: str, then: str) -> StoreError:
    """Return the error for what the operating system refused: what was done, where, why, and what to do.

    `then` is the sentence about what to do once the disk works.
    """
    place = f" at {os.fspath(error.filename)!s}" if error.filename is not None else ""
    reason = f"{doing}{place} failed: {error.strerror or error} (errno {error.errno})."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoRoom(f"{reason} Free some space. {then}")
    return DiskFailed(f"{reason} The system's log (dmesg) says more. {then}")


def unread(error: OSError) -> StoreUnwell:
    """Return what a caller is told whose look at the store failed on the disk; nothing was changed."""
    return StoreUnwell(f"Reading it failed ({error}). Ask again once it works.")


class PortTaken(ConfigurationError):
    """The port is in use."""

    code, exit_code = "TW-101", 3


class InputUnreadable(ConfigurationError):
    """The input file cannot be read."""

    code = "TW-121"


class BrokerUnreachable(ConfigurationError):
    """No broker answers."""

    code, exit_code = "TW-123", 3


class DatabaseUnreadable(ConfigurationError):
    """The database cannot be read."""

    code = "TW-124"


class JavaMissing(ConfigurationError):
    """Spark needs Java 17 or newer."""

    code, exit_code = "TW-200", 3


class WrongKey(ConfigurationError):
    """The key file does not open the users' secrets."""

    code = "TW-126"


class OpenToAll(ConfigurationError):
    """Others could reach this address and do everything."""

    code = "TW-127"


class TokenAstray(ConfigurationError):
    """The token would be sent to an address that nobody has chosen."""

    code = "TW-246"


class UnknownSetting(ConfigurationError):
    """A setting is unknown."""

    code = "TW-245"
