"""Roles: named sets of rules for people who observe and operate a broker.

| role       | on all topics and groups | on the named topics | on the named groups |
|------------|--------------------------|---------------------|---------------------|
| `viewer`   | `view`                   |                     |                     |
| `operator` | `view`                   | `send`, `admin`     | `admin`             |
| `admin`    | `send`, `admin`          |                     |                     |

A role only creates its rules, which can be changed individually afterwards. `admin` on all topics and groups
makes an administrator, so an operator gets names or prefixes. Schedules and tasks, which concern all topics,
are reserved for administrators.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from services.auth.rights import WILD, Kind, Rule, Verb
from tidewheel.errors import ClientMistake


class Role(StrEnum):
    """A role."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


def rules_of(role: Role, user: str, topics: Sequence[str] = (), groups: Sequence[str] = ()) -> list[Rule]:
    """Return the rules of a role. Raises `ClientMistake` for unexpected or missing names."""
    if role is not Role.OPERATOR and (topics or groups):
        raise ClientMistake(
            f"A {role} has its rights on all topics and groups: leave out --topic and --group."
        )
    if role is Role.OPERATOR and (not (topics or groups) or WILD in (*topics, *groups)):
        raise ClientMistake(
            "Name the topics and groups of an operator, such as --topic 'orders*' --group 'shop*'; "
            "one of all topics and groups is an admin."
        )
    if role is Role.ADMIN:
        return [
            Rule(user, Kind.TOPIC, WILD, Verb.SEND),
            Rule(user, Kind.TOPIC, WILD, Verb.ADMIN),
            Rule(user, Kind.GROUP, WILD, Verb.ADMIN),
        ]
    return [
        *(Rule(user, kind, WILD, Verb.VIEW) for kind in Kind),
        *(Rule(user, Kind.TOPIC, topic, verb) for topic in topics for verb in (Verb.SEND, Verb.ADMIN)),
        *(Rule(user, Kind.GROUP, group, Verb.ADMIN) for group in groups),
    ]
