"""What producers were asked about their transactions, and what they said: the last questions, in memory.

The list tells an operator why a half is still open. It decides nothing: that a half was asked about is
counted in the log (`txn.checkback`), and its end is a record. A restart begins a new list.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

QUESTIONS_MAX = 10_000
NOBODY = ""


@dataclass(slots=True)
class Question:
    """One question; `client_id` is `NOBODY` when none could be asked, `answer` empty until there is one."""

    transaction_id: str
    topic: str
    client_id: str
    asked_ms: int
    answer: str = ""
    answered_ms: int = 0


class CheckLog:
    """The last questions, newest last."""

    def __init__(self, questions_max: int = QUESTIONS_MAX) -> None:
        self._questions_max = questions_max
        self._questions: deque[Question] = deque()
        self._by_transaction: dict[str, deque[Question]] = {}

    def asked(self, transaction_id: str, topic: str, client_id: str, now_ms: int) -> None:
        """Note that a producer was asked, or that none was there (once in a row for a transaction)."""
        last = next(self.of(transaction_id), None)
        if client_id == NOBODY and last is not None and last.client_id == NOBODY:
            return
        new = Question(transaction_id, topic, client_id, now_ms)
        self._questions.append(new)
        self._by_transaction.setdefault(transaction_id, deque()).append(new)
        if len(self._questions) > self._questions_max:
            self._drop_oldest()

    def answered(self, transaction_id: str, answer: str, now_ms: int) -> None:
        """Note a producer's answer: COMMIT, ROLLBACK or UNKNOWN, and whether that was too late."""
        if transaction_id not in self._by_transaction:
            return
        open_one = next((one for one in self.of(transaction_id) if one.client_id and not one.answer), None)
        if open_one is not None:
            open_one.answer, open_one.answered_ms = answer, now_ms

    def of(self, transaction_id: str) -> Iterator[Question]:
        """Return the questions about one transaction, the newest first."""
        return reversed(self._by_transaction.get(transaction_id, ()))

    def newest(self, topic: str, count_max: int) -> list[Question]:
        """Return up to `count_max` questions about a topic's transactions (empty: all), the newest first."""
        found = (one for one in reversed(self._questions) if not topic or one.topic == topic)
        return [*islice(found, count_max)]

    def _drop_oldest(self) -> None:
        oldest = self._questions.popleft()
        mine = self._by_transaction[oldest.transaction_id]
        first = mine.popleft()
        assert first is oldest, "a transaction's questions are in another order than all of them"
        if not mine:
            del self._by_transaction[oldest.transaction_id]
