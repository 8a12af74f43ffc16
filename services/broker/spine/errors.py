"""Errors of the broker's core: client mistakes, missing objects, state conflicts, and exhausted resources."""

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
    """The topic does not take this type of message."""

    code = "TW-144"


class InvalidRecallHandle(ClientMistake):
    """The recall handle is not one of this broker's."""

    code = "TW-147"


class IllegalSchedule(ClientMistake):
    """The schedule cannot be kept."""

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
    """There is no such rule."""

    code = "TW-156"


class TokenNotFound(NotFound):
    """There is no such token."""

    code = "TW-158"


class TimerUnknown(NotFound):
    """A strict verb names a timer that was never set, or is no longer remembered."""

    code = "TW-159"


class TimerEnded(RefusedByState):
    """The timer has already ended."""

    code = "TW-162"


class TopicExists(RefusedByState):
    """The topic exists with other settings."""

    code = "TW-163"


class TopicInUse(RefusedByState):
    """The change of the topic would lose or disorder messages."""

    code = "TW-168"


class KeyPending(RefusedByState):
    """A timer with this key waits already."""

    code = "TW-165"


class GroupExists(RefusedByState):
    """The consumer group receives the topic already."""

    code = "TW-166"


class UserExists(RefusedByState):
    """The user exists."""

    code = "TW-167"


class DiskFull(Busy):
    """The disk is nearly full, so new messages are refused."""

    code, is_own = "TW-172", True


class TooManyTimers(Busy):
    """Too many delayed messages wait for this topic."""

    code = "TW-173"


class TooManyRequests(Busy):
    """The group has the maximum number of messages in flight."""

    code = "TW-174"


class TooManyTopics(Busy):
    """The broker has as many topics as it may."""

    code = "TW-227"


class TooManyGroups(Busy):
    """The broker has as many consumer groups, or groups receive as many topics, as may be."""

    code = "TW-228"


class TooManyFilters(Busy):
    """There is no room for another filter."""

    code = "TW-239"


class TooManyHalves(Busy):
    """As many half messages wait for their end as may."""

    code = "TW-229"


class TooManyLiteTopics(Busy):
    """The topic has as many lite topics as it may."""

    code = "TW-176"


class TooManyLiteSubscriptions(Busy):
    """The client subscribes to as many lite topics as it may."""

    code = "TW-177"
