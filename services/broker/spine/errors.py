"""Errors of the broker's core, such as client mistakes, missing objects, and exhausted resources."""

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
    """The change to the topic would lose or reorder messages."""

    code = "TW-168"


class HoldConflict(RefusedByState):
    """The change does not fit the hold of the topic's timers."""

    code = "TW-169"


class VersionNotFinalized(RefusedByState):
    """The cluster does not write the records of this operation yet."""

    code = "TW-183"


class KeyPending(RefusedByState):
    """There is already a pending timer with this key."""

    code = "TW-165"


class GroupExists(RefusedByState):
    """The consumer group already receives messages from the topic."""

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
    """The broker has reached the maximum number of consumer groups or of topics received by them."""

    code = "TW-228"


class TooManyFilters(Busy):
    """The maximum number of filters has been reached."""

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
