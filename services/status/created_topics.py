"""Texts about topics that a send created, which may be misspelt names of other topics."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, Final

from services.status.asking import Api
from tidewheel.errors import TidewheelError

SIMILARITY_MIN: Final = 0.82
"""The ratio of difflib from which names are similar. Two swapped letters of six have 0.83."""
_DIGITS: Final = str.maketrans("", "", "0123456789")
_DEAD_LETTERS: Final = "%DLQ%"


def similar_topic(api: Api, name: str) -> str:
    """Return the topic whose name is most similar to that of a created topic, or "".

    Names that differ only in digits are not similar, because they belong to a series. If the topics cannot be
    listed, return "", because the message has been stored all the same.
    """
    with suppress(TidewheelError):
        names = [one["name"] for one in api.get("topics")["topics"]]
        return _nearest(name, names)
    return ""


def _nearest(name: str, names: list[str]) -> str:
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
    return (
        None if created is None else {**created, "similar_topic": similar_topic(api, created["name"]) or None}
    )


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
