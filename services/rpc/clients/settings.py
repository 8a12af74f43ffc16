"""The answer to a client's settings.

Compatibility (reference/wire-protocol.md 2 and 4): without `status: OK`, the Python client ignores the whole
answer, and without `max_body_size` it refuses every send. Push consumers accept only a customized back-off,
except Node's, which accepts only an exponential back-off and otherwise makes a single attempt for ordered
messages. Other clients ignore an answer with a different `pub_sub` case.

The answer for a consumer includes its group's policy (number of attempts and delays between them). Changes
take effect when the client sends its settings again, which official clients do every few minutes. With
`subscription.fifo`, a push consumer preserves the order within each message group. The flag is set if any of
its topics has the type FIFO. A consumer of lite topics receives one message of each lite topic at a time. The
flag is set for it only if its group allows runs. The quotas are those that the broker enforces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from commitlog.limits import BODY_BYTES_MAX, ENTRIES_PER_REQUEST_MAX, LONG_POLL_MS, RECEIVE_BATCH_MAX
from commitlog.records.message import MessageType
from services.broker.groups.group_values import GroupPolicy
from services.broker.spine.errors import TopicNotFound
from services.live.live_broker import LiveBroker
from services.rpc.clients.session import Session
from services.rpc.generated.definition_pb2 import (
    ClientType,
    CustomizedBackoff,
    ExponentialBackoff,
    Language,
    Metric,
    RetryPolicy,
    Settings,
)
from services.rpc.generated.service_pb2 import TelemetryCommand
from services.rpc.wire.messages import duration
from services.rpc.wire.names import stored_name
from services.rpc.wire.statuses import OK
from tidewheel.errors import ClientMistake

SEND_ATTEMPTS_MAX = 3
NO_METRICS: Final = Metric(on=False)
LITE_CONSUMERS = (ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER)

SEND_RETRY = RetryPolicy(
    max_attempts=SEND_ATTEMPTS_MAX,
    exponential_backoff=ExponentialBackoff(initial=duration(10), max=duration(1_000), multiplier=2),
)


MetricFor = Callable[[Settings, Session], Metric]
"""Returns where a client sends its metrics."""


def nowhere(settings: Settings, session: Session) -> Metric:
    """Disable metrics."""
    return NO_METRICS


def answer(settings: Settings, live: LiveBroker, metric: Metric = NO_METRICS) -> TelemetryCommand:
    """Return the client's settings with the broker's values."""
    answer = Settings()
    answer.CopyFrom(settings)
    answer.metric.CopyFrom(metric)
    if answer.client_type == ClientType.PRODUCER:
        answer.backoff_policy.CopyFrom(SEND_RETRY)
        answer.publishing.max_body_size = BODY_BYTES_MAX
        answer.publishing.validate_message_type = True
    else:
        policy = policy_of(settings, live)
        answer.backoff_policy.CopyFrom(retry_policy(policy, settings.user_agent.language))
        is_run = answer.client_type in LITE_CONSUMERS and policy.fifo_run_max > 1
        answer.subscription.fifo = is_run or any(is_fifo(topic, live) for topic in topics_of(settings))
        answer.subscription.receive_batch_size = RECEIVE_BATCH_MAX
        if answer.client_type in LITE_CONSUMERS:
            answer.subscription.lite_subscription_quota = live.settings.lite_subscriptions_per_client_max
            answer.subscription.max_lite_topic_size = live.settings.lite_topic_bytes_max
        if not answer.subscription.HasField("long_polling_timeout"):
            answer.subscription.long_polling_timeout.CopyFrom(duration(LONG_POLL_MS))
    return TelemetryCommand(status=OK, settings=answer)


def policy_of(settings: Settings, live: LiveBroker) -> GroupPolicy:
    """Return the delivery policy of a consumer's group. A new group has the default policy."""
    return live.core.groups.policy(stored_name(settings.subscription.group))


def retry_policy(policy: GroupPolicy, language: int) -> RetryPolicy:
    """Return the retry policy of a group in the form that a client language supports."""
    told = RetryPolicy(max_attempts=policy.attempts_max)
    if language == Language.NODE_JS:
        first_ms, last_ms = policy.retry_after_ms[0], policy.retry_after_ms[-1]
        backoff = ExponentialBackoff(initial=duration(first_ms), max=duration(last_ms), multiplier=2)
        told.exponential_backoff.CopyFrom(backoff)
    else:
        pauses = [duration(after_ms) for after_ms in policy.retry_after_ms]
        told.customized_backoff.CopyFrom(CustomizedBackoff(next=pauses))
    return told


def check_names(settings: Settings) -> None:
    """Raise `ClientMistake` if the settings contain too many topics."""
    count = max(len(settings.subscription.subscriptions), len(settings.publishing.topics))
    if count > ENTRIES_PER_REQUEST_MAX:
        raise ClientMistake(
            f"Its settings name {count} topics, at most {ENTRIES_PER_REQUEST_MAX} may be. "
            "Let several clients share them."
        )


def topics_of(settings: Settings) -> list[str]:
    """Return the stored names of the topics of a consumer."""
    return [stored_name(one.topic) for one in settings.subscription.subscriptions]


def is_fifo(topic: str, live: LiveBroker) -> bool:
    """Return whether a topic has the type FIFO. Returns False for a missing topic."""
    try:
        return live.core.topics.get(topic).message_type is MessageType.FIFO
    except TopicNotFound:
        return False
