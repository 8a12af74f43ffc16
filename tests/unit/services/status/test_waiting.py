"""Why a message is not done: what is said of each group that has not finished it."""

from __future__ import annotations

from typing import Any

from services.status.waiting import waiting, why_unfinished
from tidewheel.errors import NotFound


def group(committed: int, **more: Any) -> dict[str, Any]:
    queue = {
        "topic": "orders",
        "queue_id": 1,
        "committed_offset": str(committed),
        "in_flight": 0,
        "waiting": 0,
    }
    policy = {"is_paused": more.pop("is_paused", False)}
    return {"consumers": more.pop("consumers", 0), "policy": policy, "queues": [queue | more]}


class Fake:
    """A broker that answers with what it was made of."""

    def __init__(self, groups: dict[str, dict[str, Any]], topic: str = "orders") -> None:
        self.groups, self.topic = groups, topic

    def get(self, *path: str) -> Any:
        if path == ("topics", self.topic, "use"):
            return {"groups": [{"group": name} for name in self.groups]}
        if path[0] == "topics":
            raise NotFound("there is no such topic")
        found = self.groups[path[1]]
        return found | {"queues": [one | {"topic": self.topic} for one in found["queues"]]}


def told(topic: str = "orders", state: str = "acknowledged by nobody yet", done: str = "") -> dict[str, Any]:
    own = {"topic": topic, "message_id": "M", "group": "", "queue_id": 1, "queue_offset": "7"}
    events = [own | {"what": "stored"}, *([own | {"what": "acknowledged", "group": done}] if done else [])]
    return {"messages": [{"topic": topic, "message_id": "M", "state": state}], "events": events}


def test_a_group_that_has_not_finished_it_has_a_reason() -> None:
    assert why_unfinished(group(7, is_paused=True), "orders", (1, 7)) == "it is paused"
    said = why_unfinished(group(4, in_flight=2, waiting=1), "orders", (1, 7))
    assert said == (
        "no consumer of the protocol port is there; up to 3 unfinished before it in queue 1; "
        "2 of the queue leased now; 1 of the queue to be delivered again"
    )
    assert why_unfinished(group(7, consumers=1), "orders", (1, 7)) == "1 consumer of the group connected"


def test_a_group_that_has_passed_it_or_has_no_such_queue_has_none() -> None:
    assert why_unfinished(group(8), "orders", (1, 7)) == ""
    assert why_unfinished(group(0), "orders", (2, 7)) == ""


def test_groups_that_acknowledged_it_are_left_out() -> None:
    broker = Fake({"shop": group(0), "mail": group(0, is_paused=True), "past": group(9)})
    assert [(one.group, one.why) for one in waiting(broker, told(done="shop"))] == [
        ("mail", "it is paused; up to 7 unfinished before it in queue 1")
    ]


def test_a_topic_without_groups_and_one_that_is_gone() -> None:
    [found] = waiting(Fake({}), told())
    assert (found.group, found.why) == ("", "no group receives the topic orders")
    assert waiting(Fake({}), told("gone")) == []


def test_what_is_in_no_queue_is_left_out() -> None:
    broker = Fake({"shop": group(0)})
    assert waiting(broker, told(state="pending: waits for its time")) == []
    assert waiting(broker, told() | {"events": []}) == []


def redriven(topic: str) -> dict[str, Any]:
    """Return the events of a message dead-lettered by `shop`, finished by `mail` and redriven to a topic."""
    rows = [
        ("orders", "stored", "", 1, "5"),
        ("orders", "dead letter", "shop", 0, "3"),
        ("orders", "finished", "shop", 1, "5"),
        ("orders", "acknowledged", "mail", 1, "5"),
        (topic, "sent back", "", 1, "7"),
        ("orders", "settled", "TW_SYS_OPERATORS", 0, "3"),
    ]
    names = ("topic", "what", "group", "queue_id", "queue_offset")
    note = {"message_id": "M", "note": "from the dead letters of %DLQ%shop:3"}
    events = [note | dict(zip(names, row, strict=True)) for row in rows]
    state = "acknowledged by nobody yet"
    return {"messages": [{"topic": topic, "message_id": "M", "state": state}], "events": events}


def test_a_redriven_message_is_waited_for_at_its_new_place_by_its_group_alone() -> None:
    broker = Fake({"shop": group(6), "mail": group(6)})
    [found] = waiting(broker, redriven("orders"))
    assert (found.group, found.why) == (
        "shop",
        "no consumer of the protocol port is there; up to 1 unfinished before it in queue 1",
    )
    assert waiting(Fake({"shop": group(8)}), redriven("orders")) == []


def test_a_group_that_has_not_finished_a_message_redriven_for_another_waits_at_its_former_place() -> None:
    told = redriven("orders")
    told["events"] = [one for one in told["events"] if one["group"] != "mail"]
    broker = Fake({"shop": group(8), "mail": group(4, is_paused=True)})
    assert [(one.group, one.why) for one in waiting(broker, told)] == [
        ("mail", "it is paused; up to 1 unfinished before it in queue 1")
    ]


def test_the_group_of_a_redriven_message_that_is_gone_is_named() -> None:
    [found] = waiting(Fake({"mail": group(6)}), redriven("orders"))
    gone = "the group shop, to which alone it was sent back, does not receive orders"
    assert (found.group, found.why) == ("", gone)


def test_a_message_redriven_to_another_topic_is_waited_for_by_all_its_groups() -> None:
    broker = Fake({"shop": group(7), "mail": group(7)}, "carts")
    assert [one.group for one in waiting(broker, redriven("carts"))] == ["shop", "mail"]
