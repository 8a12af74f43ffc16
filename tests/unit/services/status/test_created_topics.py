"""What a send that created its topic says about it: the topic may be misspelt."""

from __future__ import annotations

from typing import Any

import pytest

from services.status.created_topics import similar_topic
from tidewheel.errors import AccessRefused, BrokerUnreachable, TidewheelError


class Listing:
    """An API with a list of topics, or an error."""

    def __init__(self, *names: str, error: TidewheelError | None = None) -> None:
        self._names, self._error = names, error

    address = "broker"

    def get(self, *path: str) -> Any:
        """Return the topics."""
        assert path == ("topics",)
        if self._error is not None:
            raise self._error
        return {"topics": [{"name": name} for name in self._names]}

    def probe(self, path: str) -> tuple[int, str]:
        """Return nothing."""
        raise NotImplementedError


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("ordres", ("orders", "order-timeouts", "ordres"), "orders"),
        ("order", ("orders",), "orders"),
        ("Orders", ("orders",), "orders"),
        ("order_timeouts", ("orders", "order-timeouts"), "order-timeouts"),
        ("payments", ("orders", "payments"), ""),
        ("notices", ("invoices", "notices"), ""),
        ("orders-2", ("orders-1", "orders-2", "orders-10"), ""),
        ("jobs", ("%DLQ%jobs", "jobs"), ""),
        ("jobs", (), ""),
    ],
)
def test_the_topic_that_was_meant_has_nearly_the_same_name(
    name: str, known: tuple[str, ...], meant: str
) -> None:
    assert similar_topic(Listing(*known), name) == meant


@pytest.mark.parametrize("error", [AccessRefused("No."), BrokerUnreachable("Gone.")])
def test_topics_that_cannot_be_listed_are_no_error_because_the_message_is_stored(
    error: TidewheelError,
) -> None:
    assert similar_topic(Listing(error=error), "ordres") == ""
