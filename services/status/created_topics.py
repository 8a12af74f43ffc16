"""Texts about topics that a send created, which may be misspelt names of other topics."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, Final

from services.status.asking import Api
from tidewheel.errors import TidewheelError

SIMILARITY_MIN: Final = 0.82
"""The ratio of difflib from which names are similar. Two swapped letters of six have 0.83."""
LOOKED_UP_MAX: Final = 10
"""The number of created topics for which similar ones are looked up, which takes milliseconds for each."""
_DIGITS: Final = str.maketrans("", "", "0123456789")
_DEAD_LETTERS: Final = "%DLQ%"


def similar_topic(api: Api, name: str) -> str:
    """Return the topic whose name is most similar to that of a created topic, or "".

    Names that differ only in digits are not similar, because they belong to a series. If the topics cannot be
    listed, return "", because the message has been stored all the same.
    """
    return _nearest(name, _names(api))


def _names(api: Api) -> list[str]:
    """Return the names of all topics, or none if they cannot be listed."""
    with suppress(TidewheelError):
        return [one["name"] for one in api.get("topics")["topics"]]
    return []


def _nearest(name: str, names: Iterable[str]) -> str:
    letters = name.translate(_DIGITS)
    others = {
        one.lower(): one
        for one in names
        if one.translate(_DIGITS) != letters and not one.startswith(_DEAD_LETTERS)
    }
    close = get_close_matches(name.lower(), others, 1, SIMILARITY_MIN)
    return others[close[0]] if close else ""


def created_shape(api: Api, created: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a created topic of an answer with the field `similar_topic`, or None."""
    return None if created is None else _shape(created, similar_topic(api, created["name"]))


def created_shapes(api: Api, created: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the created topics of several answers, each with the field `similar_topic`.

    Similar topics are looked up for the first `LOOKED_UP_MAX` of them, among the topics that existed before.
    The topics are listed once.
    """
    new = {one["name"] for one in created}
    names = [name for name in _names(api) if name not in new] if created else []
    return [
        _shape(one, _nearest(one["name"], names) if at < LOOKED_UP_MAX else "")
        for at, one in enumerate(created)
    ]


def _shape(created: Mapping[str, Any], similar: str) -> dict[str, Any]:
    return {**created, "similar_topic": similar or None}


def created_lines(created: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield lines of a command about created topics, as returned by `created_shapes`: the first ones, and the
    number of the others.
    """
    yield from map(created_line, created[:LOOKED_UP_MAX])
    if (rest := len(created) - LOOKED_UP_MAX) > 0:
        yield f"and {rest:,} more created {'topic' if rest == 1 else 'topics'} (--json lists all)"


def created_line(created: Mapping[str, Any]) -> str:
    """Return the line of a command about a created topic, as returned by `created_shape`."""
    name, meant = created["name"], created["similar_topic"]
    line = f"created topic {name} ({_queues(created)})"
    if meant is None:
        return line
    deletion = shlex.join(["tidewheel", "topic", "delete", name])
    return f"{line}; did you mean {meant}? To delete {name}:  {deletion}"


def created_sentence(created: Mapping[str, Any]) -> str:
    """Return a sentence about a created topic, as returned by `created_shape`."""
    meant = f" Did you mean {created['similar_topic']}?" if created["similar_topic"] else ""
    return f"It created the topic {created['name']}, with {_queues(created)}.{meant}"


def _queues(created: Mapping[str, Any]) -> str:
    count = created["queue_count"]
    return f"{count} {'queue' if count == 1 else 'queues'}"
