"""An in-memory list of the latest transaction check-backs and the producers' answers.

The list shows operators why a half message is still open. The broker itself does not use the list, because
the log records the number of check-backs (`txn.checkback`) and the end of each transaction. A restart clears
the list.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

CHECK_BACKS_MAX = 10_000
NOBODY = ""


@dataclass(slots=True)
class CheckBackEntry:
    """A transaction check-back sent to a producer.

    If the topic had no producer, `client_id` is `NOBODY`. Until the producer answers, `answer` is empty.
    """

    transaction_id: str
    topic: str
    client_id: str
    asked_ms: int
    answer: str = ""
    answered_ms: int = 0


class CheckBackLog:
    """The latest transaction check-backs, oldest first."""

    def __init__(self, questions_max: int = CHECK_BACKS_MAX) -> None:
        self._questions_max = questions_max
        self._questions: deque[CheckBackEntry] = deque()
        self._by_transaction: dict[str, deque[CheckBackEntry]] = {}

    def record_check_back(self, transaction_id: str, topic: str, client_id: str, now_ms: int) -> None:
        """Record a transaction check-back.

        Consecutive check-backs for a transaction whose topic has no producer are recorded as one entry.
        """
        last = next(self.check_backs_of(transaction_id), None)
        if client_id == NOBODY and last is not None and last.client_id == NOBODY:
            return
        new = CheckBackEntry(transaction_id, topic, client_id, now_ms)
        self._questions.append(new)
        self._by_transaction.setdefault(transaction_id, deque()).append(new)
        if len(self._questions) > self._questions_max:
            self._drop_oldest()

    def record_answer(self, transaction_id: str, answer: str, now_ms: int) -> None:
        """Record the answer of a producer to the last unanswered check-back for a transaction.

        The answer is COMMIT, ROLLBACK, or UNKNOWN, and may be marked as too late.
        """
        if transaction_id not in self._by_transaction:
            return
        sent = (one for one in self.check_backs_of(transaction_id) if one.client_id)
        open_one = next((one for one in sent if not one.answer), None)
        if open_one is not None:
            open_one.answer, open_one.answered_ms = answer, now_ms

    def check_backs_of(self, transaction_id: str) -> Iterator[CheckBackEntry]:
        """Yield the check-backs for a transaction, newest first."""
        return reversed(self._by_transaction.get(transaction_id, ()))

    def newest_check_backs(self, topic: str, count_max: int) -> list[CheckBackEntry]:
        """Return the newest `count_max` check-backs for `topic`, or for all topics if `topic` is empty.

        The check-backs are sorted from newest to oldest.
        """
        found = (one for one in reversed(self._questions) if not topic or one.topic == topic)
        return [*islice(found, count_max)]

    def _drop_oldest(self) -> None:
        oldest = self._questions.popleft()
        mine = self._by_transaction[oldest.transaction_id]
        first = mine.popleft()
        assert first is oldest, "a transaction's questions are in another order than all of them"
        if not mine:
            del self._by_transaction[oldest.transaction_id]
