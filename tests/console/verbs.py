"""Every action of every page of the console: how its object is made, what a user fills in, and its effect.

`CASES` has an entry for each action of the table of pages; `ACTIONS` lists the actions of that table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from services.console.broker import connect
from services.console.pages.audits import Audits
from services.console.pages.table import pages_of
from services.console.sparklines import Samples
from services.http.api import Api
from tidewheel.errors import NotFound

PAGES: Final = pages_of(Audits(Path()), Samples())
ACTIONS: Final = [(page.path, verb) for page in PAGES for verb in page.acts]
OF_CLUSTER: Final = "/cluster"
NUMBERS: Final = count(1)


@dataclass(frozen=True)
class Case:
    """An action that is ready to be carried out.

    `page` has the form, `typed` are its fields that a user fills in, `said` is a part of the sentence on
    success, and `is_done` returns whether the broker shows the effect.
    """

    page: str
    typed: Mapping[str, str]
    said: str
    is_done: Callable[[], bool]


@dataclass
class World:
    """A broker, as its administrator uses it over HTTP; `client` is the id of a consumer of topic `seen`."""

    http: str
    token: str = ""
    client: str = ""
    restart_as: Callable[[int], None] | None = None
    """Restart the nodes of a cluster with a program that supports this version."""
    gone_node: Callable[[], str] | None = None
    """Return the name of a new node that has left the cluster."""

    @property
    def api(self) -> Api:
        """The HTTP interface of the broker."""
        return connect(self.http, self.token)

    def topic(self, messages: int = 0, *, kind: str = "MIXED") -> str:
        """Return a new topic with messages."""
        name = f"orders-{next(NUMBERS)}"
        self.api.post("topics", body={"name": name, "queue_count": 1, "message_type": kind})
        for number in range(messages):
            self.api.post("messages", body={"topic": name, "body": f"{number} <b>"})
        return name

    def stored(self, topic: str) -> int:
        """Return the number of messages in the queues of a topic."""
        queues = self.api.get("topics", topic)["queues"]
        return sum(int(queue["end_offset"]) - int(queue["min_offset"]) for queue in queues)

    def timer(self) -> tuple[str, str]:
        """Return the topic and the message id of a new timer."""
        topic = self.topic()
        sent = self.api.post("timers", body={"topic": topic, "body": "7", "in": "1h", "timer_key": "k"})
        return topic, sent["message_id"]

    def ended(self, topic: str, message_id: str) -> str:
        """Return how a timer has ended, or an empty text."""
        return str(self.api.get("timers", "one", topic=topic, id=message_id).get("verdict", ""))

    def half(self) -> str:
        """Return a new transaction."""
        return str(self.api.post("transactions", body={"topic": self.topic(), "body": "9"})["transaction_id"])

    def group(self, messages: int = 1) -> tuple[str, str]:
        """Return a new group and its topic, whose messages it has not received."""
        group, topic = f"shop-{next(NUMBERS)}", self.topic()
        self.api.post("groups", group, "receive", body={"topic": topic})
        for number in range(messages):
            self.api.post("messages", body={"topic": topic, "body": f"{number}"})
        return group, topic

    def dead_letters(self, number: int = 1) -> tuple[str, str]:
        """Return a new group with dead letters, and the offset of its first dead letter."""
        group, topic = self.group(number)
        found = self.api.post("groups", group, "receive", body={"topic": topic, "count": number})["messages"]
        handles = [one["receipt_handle"] for one in found]
        refusal = {"receipt_handles": handles, "dead_letter": True, "reason": "no such order"}
        self.api.post("groups", group, "nack", body=refusal)
        return group, str(self.left(group)[0]["offset"])

    def left(self, group: str) -> list[Any]:
        """Return the dead letters of a group."""
        return list(self.api.get("dead-letters", "groups", group)["dead_letters"])

    def schedule(self) -> str:
        """Return a new schedule."""
        name = f"report-{next(NUMBERS)}"
        self.api.put("schedules", name, body={"cron": "0 9 * * *", "topic": self.topic(), "body": "go"})
        return name

    def has(self, *path: str) -> bool:
        """Return whether a resource exists."""
        try:
            self.api.get(*path)
        except NotFound:
            return False
        return True


def create(world: World) -> Case:
    name = f"orders-{next(NUMBERS)}"
    return Case("/topics", {"name": name}, f"{name} is there", lambda: world.has("topics", name))


def again(world: World) -> Case:
    topic = world.topic(1)
    page = f"/topics/message?topic={topic}&queue=0&offset=0"
    return Case(page, {}, f"Sent to {topic}", lambda: world.stored(topic) == 2)


def send(world: World) -> Case:
    topic = world.topic()
    page = f"/topics/send?topic={topic}"
    return Case(page, {"body": "<b>7"}, f"Sent to {topic}", lambda: world.stored(topic) == 1)


def alter(world: World) -> Case:
    topic = world.topic()

    def is_done() -> bool:
        return len(world.api.get("topics", topic)["queues"]) == 3

    return Case(change(topic), {"queues": "3"}, "has 3 queues", is_done)


def hold(world: World) -> Case:
    topic = world.topic()
    said = f"The timers of {topic} are held"
    return Case(change(topic), {"reason": "sick"}, said, lambda: is_held(world, topic))


def release(world: World) -> Case:
    topic = world.topic()
    world.api.post("topics", topic, "hold", body={"reason": "sick"})
    said = f"{topic} is released"
    return Case(change(topic), {"reason": "well"}, said, lambda: not is_held(world, topic))


def is_held(world: World, topic: str) -> bool:
    """Return whether the timers of a topic are held."""
    return world.api.get("topics", topic, "use")["hold"] is not None


def purge(world: World) -> Case:
    topic = world.topic(2)
    typed = {"typed": topic, "reason": "over", "discard": "true"}
    return Case(change(topic), typed, f"{topic} is empty", lambda: world.stored(topic) == 0)


def delete(world: World) -> Case:
    topic = world.topic(2)
    typed = {"typed": topic, "reason": "over", "discard": "true"}
    return Case(change(topic), typed, f"{topic} is deleted", lambda: not world.has("topics", topic))


def change(topic: str) -> str:
    """Return the page that changes a topic."""
    return f"/topics/change?name={topic}"


def cancel(world: World) -> Case:
    topic, name = world.timer()
    page = f"/timers/one?topic={topic}&id={name}"
    return Case(page, {"reason": "paid"}, "CANCELLED", lambda: world.ended(topic, name) != "")


def move(world: World) -> Case:
    topic, name = world.timer()
    before = world.api.get("timers", "one", topic=topic, id=name)["due_ms"]

    def is_done() -> bool:
        return bool(world.api.get("timers", "one", topic=topic, id=name).get("due_ms") != before)

    page = f"/timers/one?topic={topic}&id={name}"
    return Case(page, {"to": "in 2h", "reason": "later"}, "MOVED", is_done)


def fire(world: World) -> Case:
    topic, name = world.timer()
    page = f"/timers/one?topic={topic}&id={name}"
    return Case(page, {"reason": "now"}, "FIRED", lambda: world.stored(topic) == 1)


def start_timers(world: World) -> Case:
    topic, name = world.timer()
    page = f"/timers/all?topic={topic}&verb=cancel&reason=over"
    return Case(page, {"count": "1"}, "cancel 1 timer", lambda: world.ended(topic, name) != "")


def pause_schedule(world: World) -> Case:
    name = world.schedule()
    return Case(
        f"/schedules/one?name={name}", {}, f"{name} is paused", lambda: state_of(world, name) == "PAUSED"
    )


def resume_schedule(world: World) -> Case:
    name = world.schedule()
    world.api.post("schedules", name, "pause", body={})
    return Case(
        f"/schedules/one?name={name}", {}, f"{name} goes on", lambda: state_of(world, name) != "PAUSED"
    )


def state_of(world: World, schedule: str) -> str:
    """Return the state of a schedule."""
    return str(world.api.get("schedules", schedule)["state"])


def remove_schedule(world: World) -> Case:
    name = world.schedule()
    typed, said = {"typed": name}, f"{name} is removed"
    return Case(f"/schedules/one?name={name}", typed, said, lambda: not world.has("schedules", name))


def keep_schedule(world: World) -> Case:
    name = f"report-{next(NUMBERS)}"
    typed = {"name": name, "topic": world.topic(), "body": "go"}
    page = f"/schedules/set?{urlencode({'cron': '0 9 * * 1-5'})}"
    return Case(page, typed, f"{name} is set", lambda: world.has("schedules", name))


def check(world: World) -> Case:
    name = world.half()
    page = f"/transactions/one?id={name}"
    return Case(page, {}, "No producer of its topic", lambda: bool(half_of(world, name)["questions"]))


def resolve(world: World) -> Case:
    name = world.half()
    typed = {"resolution": "ROLLBACK", "reason": "void"}
    page = f"/transactions/one?id={name}"
    return Case(page, typed, "ROLLBACK of", lambda: half_of(world, name)["state"] == "ROLLED_BACK")


def half_of(world: World, name: str) -> Any:
    """Return a transaction."""
    return world.api.get("transactions", name)


def pause_group(world: World) -> Case:
    name, _ = world.group()
    return Case(f"/groups/one?name={name}", {}, f"{name} is paused", lambda: is_paused(world, name))


def resume_group(world: World) -> Case:
    name, _ = world.group()
    world.api.post("groups", name, "pause", body={})
    return Case(f"/groups/one?name={name}", {}, f"{name} is resumed", lambda: not is_paused(world, name))


def is_paused(world: World, group: str) -> bool:
    """Return whether a group is paused."""
    return bool(world.api.get("groups", group)["policy"]["is_paused"])


def reset(world: World) -> Case:
    name, _ = world.group()
    page, said = f"/groups/reset?name={name}&to=latest", f"{name} goes on from latest"
    return Case(page, {}, said, lambda: world.api.get("groups", name)["lag"] == 0)


def redrive(world: World) -> Case:
    group, offset = world.dead_letters()
    page = f"/dead-letters/one?group={group}&offset={offset}"
    return Case(page, {}, "REDRIVEN", lambda: not world.left(group))


def start_redrive(world: World) -> Case:
    group, _ = world.dead_letters()
    page = f"/dead-letters/redrive?group={group}&rate=1000&why=mended"
    return Case(page, {}, "has started", lambda: not world.left(group))


def stop(world: World) -> Case:
    group, _ = world.dead_letters(3)
    for other in world.api.get("dead-letters", "tasks")["tasks"]:  # At most four may run at once.
        world.api.delete("dead-letters", "tasks", other["id"])
    order = {"verb": "redrive", "group": group, "rate_per_second": 0.01, "reason": "mended"}
    task = world.api.post("dead-letters", "tasks", body=order)["id"]

    def is_done() -> bool:
        return bool(world.api.get("dead-letters", "tasks", task)["state"] == "stopped")

    return Case(f"/tasks/one?kind=dead-letters&id={task}", {}, "items were handled", is_done)


def verify(world: World) -> Case:
    page = f"/clients/one?{urlencode({'client': world.client})}"
    before = notes(world, "verify")
    typed = {"topic": "seen", "queue": "0", "offset": "0"}
    # The Python client does not answer, so that the broker's answer is that it was asked.
    return Case(page, typed, "has not answered for", lambda: notes(world, "verify") > before)


def reconnect(world: World) -> Case:
    page = f"/clients/one?{urlencode({'client': world.client})}"
    before = notes(world, "reconnect")
    return Case(page, {}, "was told to connect again", lambda: notes(world, "reconnect") > before)


def notes(world: World, verb: str) -> int:
    """Return the number of operations of a verb in the journal."""
    return len(world.api.get("journal", limit=1000, about=verb)["entries"])


def lead(world: World) -> Case:
    before = cluster_of(world)["leader"]["node"]

    def is_done() -> bool:
        return bool(cluster_of(world)["leader"]["node"] != before)

    return Case(OF_CLUSTER, {}, "leads, at", is_done)


def forget(world: World) -> Case:
    assert world.gone_node
    name = world.gone_node()
    typed, said = {"node": name, "typed": name}, f"Node {name} is forgotten"
    return Case(OF_CLUSTER, typed, said, lambda: name not in cluster_of(world)["copies"])


def set_version(world: World) -> Case:
    assert world.restart_as
    found = cluster_of(world)
    before = found["finalized_version"]
    if min(one["supports"] for one in found["copies"].values()) == before:
        world.restart_as(before + 1)

    def is_done() -> bool:
        return bool(cluster_of(world)["finalized_version"] > before)

    return Case(OF_CLUSTER, {}, "is finalized", is_done)


def cluster_of(world: World) -> Any:
    """Return the cluster as its leader describes it."""
    while not (found := world.api.get("cluster"))["leader"]:
        pass
    return found


CASES: Final[dict[tuple[str, str], Callable[[World], Case]]] = {
    ("/topics", "create"): create,
    ("/topics/message", "again"): again,
    ("/topics/send", "now"): send,
    ("/topics/change", "alter"): alter,
    ("/topics/change", "hold"): hold,
    ("/topics/change", "release"): release,
    ("/topics/change", "purge"): purge,
    ("/topics/change", "delete"): delete,
    ("/timers/one", "cancel"): cancel,
    ("/timers/one", "move"): move,
    ("/timers/one", "fire"): fire,
    ("/timers/all", "start"): start_timers,
    ("/schedules/one", "pause"): pause_schedule,
    ("/schedules/one", "resume"): resume_schedule,
    ("/schedules/one", "remove"): remove_schedule,
    ("/schedules/set", "keep"): keep_schedule,
    ("/transactions/one", "check"): check,
    ("/transactions/one", "resolve"): resolve,
    ("/groups/one", "pause"): pause_group,
    ("/groups/one", "resume"): resume_group,
    ("/groups/reset", "start"): reset,
    ("/dead-letters/one", "redrive"): redrive,
    ("/dead-letters/redrive", "start"): start_redrive,
    ("/tasks/one", "stop"): stop,
    ("/clients/one", "verify"): verify,
    ("/clients/one", "reconnect"): reconnect,
    (OF_CLUSTER, "move"): lead,
    (OF_CLUSTER, "forget"): forget,
    (OF_CLUSTER, "set-version"): set_version,
}
