"""Errors of the broker core, such as client mistakes, missing objects, and exhausted resources."""

from __future__ import annotations

from tidewheel.errors import Busy, ClientMistake, NotFound, RefusedByState
from tidewheel.errors import IllegalDeliveryTime as IllegalDeliveryTime
from tidewheel.errors import IllegalKey as IllegalKey
from tidewheel.errors import IllegalMessageGroup as IllegalMessageGroup
from tidewheel.errors import IllegalMessageId as IllegalMessageId
from tidewheel.errors import IllegalProperty as IllegalProperty
from tidewheel.errors import IllegalTag as IllegalTag
from tidewheel.errors import PropertiesTooLarge as PropertiesTooLarge


class IllegalGroup(ClientMistake):
    """The consumer group name is illegal."""

    code = "TW-132"


class IllegalInvisibleTime(ClientMistake):
    """The invisible duration is illegal."""

    code = "TW-140"


class MessageTypeConflict(ClientMistake):
    """The topic does not accept messages of this type."""

    code = "TW-144"


class InvalidRecallHandle(ClientMistake):
    """The recall handle was not issued by this broker."""

    code = "TW-147"


class IllegalSchedule(ClientMistake):
    """The schedule is illegal."""

    code = "TW-149"


class IllegalLiteTopic(ClientMistake):
    """The lite topic is illegal."""

    code = "TW-190"


class TopicNotFound(NotFound):
    """The topic does not exist."""

    code = "TW-151"


class MessageNotFound(NotFound):
    """The message was not found."""

    code = "TW-152"


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
    """The access rule does not exist."""

    code = "TW-156"


class TokenNotFound(NotFound):
    """The access token does not exist."""

    code = "TW-158"


class TimerUnknown(NotFound):
    """A strict timer operation refers to a timer that was never set or whose history has expired."""

    code = "TW-159"


class TimerEnded(RefusedByState):
    """The timer has already ended."""

    code = "TW-162"


class TopicExists(RefusedByState):
    """The topic already exists with different settings."""

    code = "TW-163"


class TopicInUse(RefusedByState):
    """The requested change to the topic would lose or reorder messages."""

    code = "TW-168"


class HoldConflict(RefusedByState):
    """The requested change conflicts with the hold state of the topic."""

    code = "TW-169"


class VersionNotFinalized(RefusedByState):
    """The operation writes records that require a version not yet in effect in the cluster."""

    code = "TW-183"


class KeyPending(RefusedByState):
    """A timer with this key is already pending."""

    code = "TW-165"


class GroupExists(RefusedByState):
    """The consumer group already receives messages of the topic."""

    code = "TW-166"


class UserExists(RefusedByState):
    """The user already exists."""

    code = "TW-167"


class DiskFull(Busy):
    """New messages are refused because the disk is almost full."""

    code, is_own = "TW-172", True


class TooManyTimers(Busy):
    """The topic has reached the maximum number of pending delayed messages."""

    code = "TW-173"


class TooManyRequests(Busy):
    """The consumer group has reached the maximum number of messages in flight."""

    code = "TW-174"


class TooManyTopics(Busy):
    """The broker has reached the maximum number of topics."""

    code = "TW-227"


class TooManyGroups(Busy):
    """The broker has reached the maximum number of consumer groups, or of topics that they receive."""

    code = "TW-228"


class TooManyFilters(Busy):
    """The broker has reached the maximum number of filters."""

    code = "TW-239"


class TooManyHalves(Busy):
    """The broker has reached the maximum number of open and expired half messages."""

    code = "TW-229"


class TooManyLiteTopics(Busy):
    """The topic has reached the maximum number of lite topics."""

    code = "TW-176"


class TooManyLiteSubscriptions(Busy):
    """The client has reached the maximum number of lite topic subscriptions."""

    code = "TW-177"
