"""The condition of a change: the values that its caller saw, which a request may have as its object `seen`.

If one of these values differs now, another caller has changed it, and the change is refused (409, TW-160). A
value that is already as the change would make it is no reason for a refusal, so that a request can be
repeated. The comparison is the `check` of `LiveBroker.call`: no other change comes between it and the change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from services.live.live_broker import LiveBroker
from tidewheel.errors import RefusedByState
from tidewheel.printable import one_line

VALUE_CHARACTERS_MAX: Final = 80


def changes_since(
    seen: Mapping[str, Any],
    now: Mapping[str, Any],
    wanted: Mapping[str, Any],
    words: Mapping[str, str],
    unsaid: Collection[str] = (),
) -> list[str]:
    """Return a sentence part for each seen value that differs now, and that `wanted` does not have either.

    `words` are the names of the values in sentences, in the order of the parts. Of the values in `unsaid`, a
    part contains only the name.
    """
    found = (
        name
        for name in words
        if name in seen and seen[name] != now[name] and (name not in wanted or wanted[name] != now[name])
    )
    return [
        f"its {words[name]}" if name in unsaid else change_of(words[name], seen[name], now[name])
        for name in found
    ]


def change_of(what: str, before: object, after: object) -> str:
    """Return a changed value as part of a sentence."""
    return f"its {what} from {_quoted(before)} to {_quoted(after)}"


def refuse_changed(live: LiveBroker, what: str, changes: list[str]) -> None:
    """Raise `RefusedByState` if something was changed. It is told once the last change is durable."""
    if changes:
        raise RefusedByState(
            f"{what} was changed since you saw it: {'; '.join(changes)}. Look at it again, and decide anew.",
            live.core.store.log.end_offset,
        )


def _quoted(value: object) -> str:
    """Return a value for a sentence, truncated if it is long."""
    text = one_line(str(value)) or "empty"
    return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[:VALUE_CHARACTERS_MAX]}..."
