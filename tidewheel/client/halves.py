"""Producer operations for transactions, without I/O. `tidewheel.client.calls` has the other operations.

    begin          POST /api/transactions: a half message, which is invisible until its commit
    commit, end    POST /api/transactions/ID/commit, /rollback, or /unknown as the answer to a check-back
    check_backs    POST /api/transactions/check-backs: waits for check-backs

All operations can be repeated. A half message gets its id before the first attempt, a repeated commit or
rollback is confirmed, and the broker repeats a check-back if the poll was lost. Applications use the barrier
(`tidewheel.barrier`) instead of this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import quote

from tidewheel.client.calls import carried_result, encoded, message_fields
from tidewheel.client.exchange import Request, Steps, asked
from tidewheel.client.spans import Span, span_ms
from tidewheel.client.values import NewMessage, TimerResult

TRANSACTIONS_PATH: Final = "/api/transactions"
POLL_TOPICS_MAX: Final = 16
"""Maximum number of topics in a poll for transaction check-backs."""

End = Literal["commit", "rollback", "unknown"]


@dataclass(frozen=True, slots=True)
class Begun:
    """A half message that has been written to the broker's disk."""

    message_id: str
    transaction_id: str


@dataclass(frozen=True, slots=True)
class Question:
    """A transaction check-back: the broker's query for the outcome of a transaction."""

    transaction_id: str
    message_id: str
    properties: Mapping[str, str]


def begin(
    message: NewMessage, namespace: str, message_id: str, properties: Mapping[str, str]
) -> Steps[Begun]:
    """Begin a transaction. `properties` are added to the properties of the message."""
    fields = message_fields(message, namespace, message_id)
    body = encoded(fields | {"properties": fields.get("properties", {}) | dict(properties)})
    request = Request("POST", TRANSACTIONS_PATH, body, is_repeatable=True)
    return asked(request, lambda _, said: Begun(said["message_id"], said["transaction_id"]))


def commit(transaction_id: str, message: NewMessage) -> Steps[TimerResult | None]:
    """Commit a transaction. Returns the verdict on the attached timer operation, if there is one.

    Raises:
        TransactionEnded: If the transaction was already rolled back.
    """
    request = end_request(transaction_id, "commit")
    return asked(request, lambda _, said: carried_result(said["verdict"], message))


def end(transaction_id: str, how: End) -> Steps[None]:
    """End a transaction or report an unknown outcome. Raises `TransactionEnded` as `commit` does."""
    return asked(end_request(transaction_id, how), lambda *_: None)


def end_request(transaction_id: str, how: End) -> Request:
    """Return the request that ends a transaction."""
    path = f"{TRANSACTIONS_PATH}/{quote(transaction_id, safe='')}/{how}"
    return Request("POST", path, is_repeatable=True)


def check_backs(topics: Sequence[str], *, count: int, wait: Span, name: str) -> Steps[list[Question]]:
    """Wait for check-backs of transactions in the given topics. Topic names include the namespace prefix."""
    wait_ms = span_ms(wait, "wait")
    fields = {"topics": list(topics), "count": count, "wait": f"{wait_ms}ms", "client": name}
    path = f"{TRANSACTIONS_PATH}/check-backs"
    request = Request("POST", path, encoded(fields), wait_ms / 1000, is_repeatable=True)
    return asked(request, lambda _, said: [_question(one) for one in said["questions"]])


def _question(one: Mapping[str, Any]) -> Question:
    message = one["message"]
    return Question(one["transaction_id"], message["message_id"], message["properties"])
