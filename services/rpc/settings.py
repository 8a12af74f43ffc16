"""The answer to a client's settings.

Silent killers (reference/wire-protocol.md 2 and 4): without `status: OK` the Python client ignores the
whole answer; without `max_body_size` it refuses every send; a push consumer accepts only a customized
back-off; other clients ignore an answer whose `pub_sub` case is not their own.
"""

from __future__ import annotations

from commitlog.limits import ATTEMPTS_MAX, BODY_BYTES_MAX, RECEIVE_BATCH_MAX, RETRY_AFTER_MS
from services.rpc.generated.definition_pb2 import (
    ClientType,
    CustomizedBackoff,
    ExponentialBackoff,
    Metric,
    RetryPolicy,
    Settings,
)
from services.rpc.generated.service_pb2 import TelemetryCommand
from services.rpc.messages import duration
from services.rpc.statuses import OK

LONG_POLL_MS = 20_000
SEND_ATTEMPTS_MAX = 3

SEND_RETRY = RetryPolicy(
    max_attempts=SEND_ATTEMPTS_MAX,
    exponential_backoff=ExponentialBackoff(initial=duration(10), max=duration(1_000), multiplier=2),
)
CONSUME_RETRY = RetryPolicy(
    max_attempts=ATTEMPTS_MAX,
    customized_backoff=CustomizedBackoff(next=[duration(after_ms) for after_ms in RETRY_AFTER_MS]),
)


def answer(settings: Settings) -> TelemetryCommand:
    """Return the client's own settings with the broker's part filled in."""
    settled = Settings()
    settled.CopyFrom(settings)
    settled.metric.CopyFrom(Metric(on=False))
    if settled.client_type == ClientType.PRODUCER:
        settled.backoff_policy.CopyFrom(SEND_RETRY)
        settled.publishing.max_body_size = BODY_BYTES_MAX
        settled.publishing.validate_message_type = True
    else:
        settled.backoff_policy.CopyFrom(CONSUME_RETRY)
        settled.subscription.fifo = False
        settled.subscription.receive_batch_size = RECEIVE_BATCH_MAX
        if not settled.subscription.HasField("long_polling_timeout"):
            settled.subscription.long_polling_timeout.CopyFrom(duration(LONG_POLL_MS))
    return TelemetryCommand(status=OK, settings=settled)
