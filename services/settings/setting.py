"""A setting: its name, type, default, bounds and meaning, declared in one place.

A class of settings is a frozen dataclass whose fields are `Annotated[type, Meta(...)]`. The field determines
the flag (`--queue-count`), the variable (`TIDEWHEEL_QUEUE_COUNT`), the key of the file (`queue_count`), the
help of the command, the documented example and the table in docs/configuration.md. `Setting.parse` parses
values from all sources: text, or TOML numbers and booleans.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

VARIABLE_PREFIX: Final = "TIDEWHEEL_"
TRUE: Final = frozenset({"true", "yes", "on", "1"})
FALSE: Final = frozenset({"false", "no", "off", "0"})


@dataclass(frozen=True)
class Meta:
    """The meaning of a field, its heading in the help, and its bounds (for text, those of its length)."""

    meaning: str
    heading: str = ""
    least: float | None = None
    most: float | None = None
    above: float | None = None


class Setting(NamedTuple):
    """One setting; `choices` is empty unless its type is a `Literal`."""

    name: str
    kind: Any
    choices: tuple[str, ...]
    default: Any
    about: Meta

    @property
    def flag(self) -> str:
        """The flag that sets the setting."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """The environment variable that sets the setting."""
        return f"{VARIABLE_PREFIX}{self.name.upper()}"

    def parse(self, value: object) -> Any:
        """Return a value of the setting's type. Raises ValueError with a description of the valid values."""
        if self.choices:
            if value not in self.choices:
                raise ValueError(f"it must be {' or '.join(map(repr, self.choices))}")
            return value
        read = READERS.get(self.kind) or self.kind.parse
        return self._bounded(read(value))

    def _bounded(self, value: Any) -> Any:
        size = len(value) if isinstance(value, str) else value
        unit = " characters long" if isinstance(value, str) else ""
        about = self.about
        if about.above is not None and size <= about.above:
            raise ValueError(f"it must be greater than {about.above:g}")
        if about.least is not None and size < about.least:
            raise ValueError(f"it must be at least {plain(about.least)}{unit}")
        if about.most is not None and size > about.most:
            raise ValueError(f"it must be at most {plain(about.most)}{unit}")
        return value


def settings_of(*kinds: type) -> dict[str, Setting]:
    """Return the settings of classes by name, in order of declaration.

    If a name occurs twice, the first is used.
    """
    found: dict[str, Setting] = {}
    for setting in (setting for kind in kinds for setting in declared(kind)):
        found.setdefault(setting.name, setting)
    return found


def declared(kind: type) -> Iterable[Setting]:
    """Yield the settings that a class declares."""
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        assert get_origin(hints[field.name]) is Annotated, f"{field.name} does not say what it is about"
        assert field.default is not MISSING, f"{field.name} has no default"
        type_, about = get_args(hints[field.name])
        bare = without_none(type_)
        choices = get_args(bare) if get_origin(bare) is Literal else ()
        yield Setting(field.name, bare, choices, field.default, about)


def without_none(type_: Any) -> Any:
    """Return X for `X | None`."""
    if get_origin(type_) not in (Union, UnionType):
        return type_
    (bare,) = (part for part in get_args(type_) if part is not NoneType)
    return bare


def plain(number: float) -> str:
    """Return a number as text, without a decimal point if it is whole."""
    return str(int(number)) if number == int(number) else str(number)


def truth(value: object) -> bool:
    """Parse a boolean."""
    if isinstance(value, bool):
        return value
    if str(value).lower() in TRUE | FALSE:
        return str(value).lower() in TRUE
    raise ValueError("it must be true or false")


def whole(value: object) -> int:
    """Parse an integer. Underscores, such as in 1_000, are allowed."""
    try:
        if isinstance(value, str) or type(value) is int:
            return int(value)
    except ValueError:
        pass
    raise ValueError("it must be a whole number")


def number(value: object) -> float:
    """Parse a number. Infinity and NaN are refused."""
    found = math.nan
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        with suppress(ValueError):
            found = float(value)
    if not math.isfinite(found):
        raise ValueError("it must be a number")
    return found


def text(value: object) -> str:
    """Return a text; raise ValueError for a value of another type."""
    if not isinstance(value, str):
        raise ValueError("it must be text, in quotes")
    return value


def path(value: object) -> Path:
    """Parse a path."""
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("it must be a path")
    return Path(value)


READERS: Final[dict[Any, Callable[[object], Any]]] = {
    bool: truth,
    int: whole,
    float: number,
    str: text,
    Path: path,
}
