"""The rights that each action of a page requires, in the table `NEEDS`, and the rights of a session's user.

A page offers an action only to a user with these rights, so that a user does not fill in a form that the
broker refuses. The broker authorizes each request itself (`services.ops.needs`), and the console adds no
rights. An action without an entry in the table cannot be offered: the test of the table fails.

Cost: one `GET /api/whoami` for each page, and one look-up for each action of the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from services.auth.rights import WILD, Effect, Kind, Need, Rights, Rule, Verb, lacking
from services.console.page import Model

ANY: Final = ""
"""The name in a need that any topic or group satisfies, because the form contains the name."""
PLACEHOLDER: Final = "NAME"
"""The name that a sentence contains in place of `ANY`."""

NeedsOf = Callable[[Model], Sequence[Need]]


class Caller:
    """The rights of a user, from the answer of `GET /api/whoami`."""

    def __init__(self, whoami: dict[str, Any]) -> None:
        self._user: str = whoami["user"] or ""
        self._has_all_rights: bool = whoami["has_all_rights"]
        self._rights = Rights()
        for one in whoami["rules"]:
            kind, verb, effect = Kind(one["kind"]), Verb(one["verb"]), Effect(one["effect"])
            self._rights.set(Rule(self._user, kind, one["pattern"], verb, effect))

    def may(self, verb: str, kind: str, name: str = ANY) -> bool:
        """Return whether the user has a verb on a topic or group, or on any if the name is empty."""
        return not self.missing([Need(Verb(verb), Kind(kind), name)])

    def missing(self, needs: Iterable[Need]) -> list[Need]:
        """Return the needs that the user does not have."""
        return [] if self._has_all_rights else [need for need in needs if not self._has(need)]

    def refusal(self, needs: Iterable[Need]) -> str:
        """Return the sentence for missing rights, with the command that grants them, or an empty text."""
        named = [need._replace(name=need.name or PLACEHOLDER) for need in self.missing(needs)]
        return lacking(self._user, named) if named else ""

    def _has(self, need: Need) -> bool:
        if need.name == ANY and need.verb is not None:
            return self._rights.allows_some(self._user, need.verb, need.kind)
        return self._rights.allows(self._user, need)


def on_topic(verb: Verb, *path: str) -> NeedsOf:
    """Return a function that returns a verb on the topic at a path in the model."""
    return lambda model: [Need(verb, Kind.TOPIC, name_in(model, path))]


def on_group(*path: str) -> NeedsOf:
    """Return a function that returns `admin` on the group at a path in the model."""
    return lambda model: [Need(Verb.ADMIN, Kind.GROUP, name_in(model, path))]


def name_in(model: Model, path: Sequence[str]) -> str:
    """Return the name at a path in the model."""
    found: Any = model
    for part in path:
        found = found[part]
    return str(found)


def any_topic(model: Model) -> Sequence[Need]:
    """Return `admin` on any topic."""
    return [Need(Verb.ADMIN, Kind.TOPIC, ANY)]


def all_topics(model: Model) -> Sequence[Need]:
    """Return `admin` on all topics."""
    return [Need(Verb.ADMIN, Kind.TOPIC, WILD)]


def whole_broker(model: Model) -> Sequence[Need]:
    """Return `admin` on all topics and groups."""
    return [Need(Verb.ADMIN, kind, WILD) for kind in Kind]


def filtered_topics(model: Model) -> Sequence[Need]:
    """Return `admin` on the topics of a timer filter."""
    wanted = model["order"]["filter"]
    return [Need(Verb.ADMIN, Kind.TOPIC, wanted.get("topic") or f"{wanted.get('topic-prefix', '')}{WILD}")]


def redriven(model: Model) -> Sequence[Need]:
    """Return `admin` on the group of dead letters, and `send` on the target topic if it is given."""
    order = model["order"]
    target = [Need(Verb.SEND, Kind.TOPIC, order["target"])] if order["target"] else []
    return [Need(Verb.ADMIN, Kind.GROUP, order["group"]), *target]


def task_items(model: Model) -> Sequence[Need]:
    """Return `admin` on all groups for a task over dead letters, or else on all topics."""
    kind = Kind.GROUP if model["task"]["kind"] == "dead-letters" else Kind.TOPIC
    return [Need(Verb.ADMIN, kind, WILD)]


NEEDS: Final[dict[tuple[str, str], NeedsOf]] = {
    ("/topics", "create"): any_topic,
    ("/topics/message", "again"): on_topic(Verb.SEND, "message", "topic"),
    ("/topics/send", "now"): on_topic(Verb.SEND, "fields", "topic"),
    ("/topics/change", "alter"): on_topic(Verb.ADMIN, "use", "name"),
    ("/topics/change", "hold"): on_topic(Verb.ADMIN, "use", "name"),
    ("/topics/change", "release"): on_topic(Verb.ADMIN, "use", "name"),
    ("/topics/change", "purge"): on_topic(Verb.ADMIN, "use", "name"),
    ("/topics/change", "delete"): on_topic(Verb.ADMIN, "use", "name"),
    ("/timers/one", "cancel"): on_topic(Verb.SEND, "topic"),
    ("/timers/one", "move"): on_topic(Verb.SEND, "topic"),
    ("/timers/one", "fire"): on_topic(Verb.SEND, "topic"),
    ("/timers/all", "start"): filtered_topics,
    ("/schedules/one", "pause"): all_topics,
    ("/schedules/one", "resume"): all_topics,
    ("/schedules/one", "remove"): all_topics,
    ("/schedules/set", "keep"): all_topics,
    ("/transactions/one", "check"): on_topic(Verb.ADMIN, "transaction", "topic"),
    ("/transactions/one", "resolve"): on_topic(Verb.ADMIN, "transaction", "topic"),
    ("/groups/one", "pause"): on_group("group", "name"),
    ("/groups/one", "resume"): on_group("group", "name"),
    ("/groups/reset", "start"): on_group("name"),
    ("/dead-letters/one", "redrive"): on_group("dead_letter", "group"),
    ("/dead-letters/redrive", "start"): redriven,
    ("/tasks/one", "stop"): task_items,
    ("/clients/one", "verify"): whole_broker,
    ("/clients/one", "reconnect"): whole_broker,
    ("/cluster", "move"): whole_broker,
    ("/cluster", "forget"): whole_broker,
    ("/cluster", "set-version"): whole_broker,
}
"""The needs of each action, by the path of its page and its name."""
