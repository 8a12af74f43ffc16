"""What a send that created its topic says about it: the topic may be misspelt."""

from __future__ import annotations

from typing import Any

import pytest

from services.status.created_topics import LOOKED_UP_MAX, created_lines, created_shapes, similar_topic
from tidewheel.errors import AccessRefused, BrokerUnreachable, TidewheelError


class Listing:
    """An API with a list of topics, or an error."""

    def __init__(self, *names: str, error: TidewheelError | None = None) -> None:
        self._names, self._error, self.calls = names, error, 0

    address = "broker"

    def get(self, *path: str) -> Any:
        """Return the topics."""
        assert path == ("topics",)
        self.calls += 1
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


def test_of_many_created_topics_the_first_ones_are_compared_with_older_topics_listed_once() -> None:
    new = [f"remindres{letter}" for letter in "abcdefghijklmnopqrst"]
    api = Listing("reminders", *new)
    shapes = created_shapes(api, [{"name": name, "queue_count": 4} for name in new])
    assert api.calls == 1
    assert [one["name"] for one in shapes] == new
    meant = ["reminders"] * LOOKED_UP_MAX + [None] * (len(new) - LOOKED_UP_MAX)
    assert [one["similar_topic"] for one in shapes] == meant
    lines = list(created_lines(shapes))
    assert lines[0].startswith("created topic remindresa (4 queues); did you mean reminders? ")
    assert lines[LOOKED_UP_MAX:] == ["and 10 more created topics (--json lists all)"]
    assert len(list(created_lines(shapes[:LOOKED_UP_MAX]))) == LOOKED_UP_MAX
    assert list(created_lines(shapes[: LOOKED_UP_MAX + 1]))[-1].startswith("and 1 more created topic (")


def test_topics_of_one_command_are_not_compared_with_each_other() -> None:
    created = [{"name": name, "queue_count": 4} for name in ("alpha-jobs", "alpha-job")]
    shapes = created_shapes(Listing("alpha-jobs", "alpha-job"), created)
    assert [one["similar_topic"] for one in shapes] == [None, None]


def test_topics_are_not_listed_for_a_command_that_created_none() -> None:
    api = Listing("reminders")
    assert created_shapes(api, []) == []
    assert api.calls == 0
