"""The options of the data source: their names, their scope (batch, stream or both), and their values.

Spark passes options as text, with case-insensitive names. An unknown option, or one that does not apply, is
refused: otherwise a misspelt `topics` would read every topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from tidewheel.errors import ConfigurationError, UnknownChoice

BATCH: Final = "spark.read"
STREAM: Final = "spark.readStream"

_ANYWHERE: Final = (
    "topics", "from", "startingTimestamp", "bodies", "dataset", "verify", "index", "slice_bytes",
)  # fmt: skip
_ONLY: Final = {
    "to": BATCH,
    "endingTimestamp": BATCH,
    "durable": BATCH,
    "max_bytes_per_trigger": STREAM,
    "failOnDataLoss": STREAM,
}
_OF_SPARK: Final = ("path",)
_BOOLEANS: Final = {"true": True, "false": False}


def check_names(options: Iterable[str], use: str | None = None) -> None:
    """Raise `UnknownChoice` for an option that is unknown or does not apply to `use`.

    `use` is `BATCH` or `STREAM`, or None if it is not known yet.
    """
    known = {name.lower(): name for name in (*_ANYWHERE, *_ONLY, *_OF_SPARK)}
    for given in options:
        name = known.get(given.lower())
        if name is None:
            raise UnknownChoice(f"{given!r} is no option of the format.{_meant(given)} {_listed(use)}")
        where = _ONLY.get(name, use)
        if use is not None and where != use:
            raise UnknownChoice(f"{name!r} is an option of {where} and has no meaning here. {_listed(use)}")


def bytes_of(options: Mapping[str, str], name: str, default: int, least: int = 1) -> int:
    """Return an option that is a number of bytes, at least `least`; raise `UnknownChoice`."""
    given = options.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdigit()) or int(given) < least:
        raise UnknownChoice(f"{name}={given!r} is no number of bytes from {least} on, as 1048576.")
    return int(given)


def path_of(options: Mapping[str, str]) -> Path:
    """Return the folder of the store; raise `ConfigurationError`."""
    if not options.get("path"):
        raise ConfigurationError("The format 'tidewheel' reads a store. Give its folder: .load(folder).")
    return Path(options["path"])


def choice(options: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    """Return an option that is one of `choices`, by default the first; raise `UnknownChoice`."""
    given = options.get(name, choices[0])
    if given not in choices:
        raise UnknownChoice(f"{name}={given!r} is none of {', '.join(choices)}.")
    return given


def boolean(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return an option that is true or false; raise `UnknownChoice`."""
    given = options.get(name, str(default))
    if given.lower() not in _BOOLEANS:
        raise UnknownChoice(f"{name}={given!r} is none of true, false.")
    return _BOOLEANS[given.lower()]


def _meant(given: str) -> str:
    names = {name.lower(): name for name in (*_ANYWHERE, *_ONLY)}
    close = get_close_matches(given.lower(), names, 1)
    return f" Did you mean {names[close[0]]!r}?" if close else ""


def _listed(use: str | None) -> str:
    if use is not None:
        return f"{use} has {', '.join((*_ANYWHERE, *_only(use)))}."
    only = "; ".join(f"{one} also {', '.join(_only(one))}" for one in (BATCH, STREAM))
    return f"There are {', '.join(_ANYWHERE)}; {only}."


def _only(use: str) -> list[str]:
    return [name for name, where in _ONLY.items() if where == use]
