"""Sources of setting values.

A flag takes precedence over a variable, a variable over the file, and the file over the default.

The file is a TOML file with one key per setting. It is given by `--config` or `TIDEWHEEL_CONFIG`; the default
is `tidewheel.toml` in the working directory, if it exists. A relative path in the file is relative to the
file. An empty variable counts as unset. An unknown key in the file is refused with the nearest known name,
because a setting that is silently ignored is worse than a broker that does not start. An unknown
`TIDEWHEEL_*` variable may belong to an application, so commands only print a warning (`unknown_variables`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

from services.settings.errors import InputUnreadable, UnknownSetting
from services.settings.setting import VARIABLE_PREFIX, Setting
from tidewheel.errors import ConfigurationError

FILE_NAME: Final = "tidewheel.toml"
FILE_VARIABLE: Final = f"{VARIABLE_PREFIX}CONFIG"

OTHER_VARIABLES: Final = {
    FILE_VARIABLE: "The file of settings, where no --config is given.",
    "TIDEWHEEL_SECRET_KEY": "The secret of the access key, for the programs of `tidewheel sample`.",
    "TIDEWHEEL_SHOP_FAULTS": "What goes wrong in the services of the shop (services/shop/faults.py).",
    "TIDEWHEEL_SHOP_FAULT_LOG": "Where the shop notes what went wrong.",
    "TIDEWHEEL_BUILD_CLIENTS": "Tests build the official clients first (make test-clients).",
    "TIDEWHEEL_CLIENT_ACCESS_KEY": "Who the test clients are.",
    "TIDEWHEEL_CLIENT_SECRET": "The secret of the test clients.",
    "TIDEWHEEL_CLIENT_PLAINTEXT": "Test clients connect without TLS.",
    "TIDEWHEEL_LONG": "Tests that take minutes run, too (make endurance).",
    "TIDEWHEEL_OUTBOX_DB": "The database whose outbox `tidewheel outbox` shows.",
    "TIDEWHEEL_BENCH_PYVOY": "A benchmark's server finds its part.",
}
"""Variables that are not settings, with their purpose; other variables with the prefix cause a warning."""

KUBERNETES: Final = re.compile(
    r"TIDEWHEEL_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""Variables that Kubernetes sets in pods if the name of a Service begins with `tidewheel`."""

_PASSWORD: Final = re.compile(r"://.*@|^[^/]*@", re.DOTALL)


DEFAULT: Final = "default"


class Found(NamedTuple):
    """A value and its origin: a flag, a variable, a key of a file, or `default`."""

    value: Any
    origin: str


def resolve(
    settings: Mapping[str, Setting],
    known: Iterable[str],
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    file: Path | None,
) -> dict[str, Found]:
    """Return the value of each setting. Raises a `ConfigurationError` that names every invalid source.

    `flags` contains the flags (None: not given); `known` contains all valid names of a file or variable.
    """
    assert flags.keys() <= settings.keys(), "a flag of no setting"
    in_file = read_file(file, known) if file else {}
    found, wrong = {}, []
    for name, setting in settings.items():
        value, origin, base = first_given(setting, flags, environ, in_file, file)
        try:
            parsed = setting.default if origin == DEFAULT else anchored(setting.parse(value), base)
        except ValueError as error:
            wrong.append(f"{origin} is {shown(value)}: {error}.")
        else:
            found[name] = Found(parsed, origin)
    if wrong:
        raise ConfigurationError(" ".join(wrong))
    return found


def shown(value: object) -> str:
    """Return an invalid value for an error message, without the user, password and query of an address."""
    text = str(value)
    return repr(_PASSWORD.sub("://...@", text.partition("?")[0] + "?..." * ("?" in text)))


def first_given(
    setting: Setting,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    in_file: Mapping[str, Any],
    file: Path | None,
) -> tuple[Any, str, Path | None]:
    """Return the raw value with the highest precedence, its origin, and the base folder of its paths."""
    if flags.get(setting.name) is not None:
        return flags[setting.name], setting.flag, None
    if environ.get(setting.variable):
        return environ[setting.variable], setting.variable, None
    if setting.name in in_file:
        assert file is not None, "a value of no file"
        return in_file[setting.name], f"{setting.name} in {file}", file.parent
    return setting.default, DEFAULT, None


def anchored(value: Any, base: Path | None) -> Any:
    """Return a value; if it is a relative path and `base` is given, join it to `base`."""
    return base / value if base is not None and isinstance(value, Path) else value


def file_to_read(named: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the file of settings: the given file, the file in the working directory, or None."""
    if named is not None:
        return named
    if environ.get(FILE_VARIABLE):
        return Path(environ[FILE_VARIABLE])
    return Path(FILE_NAME) if Path(FILE_NAME).exists() else None


def read_file(file: Path, known: Iterable[str]) -> dict[str, Any]:
    """Return the keys and values of a file.

    Raises `InputUnreadable`, or `UnknownSetting` for an unknown key.
    """
    import tomllib

    try:
        held = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputUnreadable(f"{file}: {error.strerror}.") from error
    except ValueError as error:
        raise InputUnreadable(f"{file} is no TOML: {error}.") from error
    names = set(known)
    for key in held:
        if key not in names:
            raise UnknownSetting(unknown(f"{key} in {file}", key.replace("-", "_").lower(), names))
    return held


def unknown_variables(environ: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return a warning for each variable that has the prefix of settings but is unknown."""
    others = (name.removeprefix(VARIABLE_PREFIX) for name in OTHER_VARIABLES)
    names = {*map(str.upper, known), *others}
    given = (name for name in environ if name.startswith(VARIABLE_PREFIX) and not KUBERNETES.fullmatch(name))
    bare = (name.removeprefix(VARIABLE_PREFIX) for name in given)
    return [
        unknown(VARIABLE_PREFIX + name, name, names, VARIABLE_PREFIX) for name in bare if name not in names
    ]


def unknown(where: str, name: str, names: Iterable[str], prefix: str = "") -> str:
    """Return the message about an unknown name, with the nearest known name after a prefix."""
    (nearest, *_) = [*get_close_matches(name, names, 1), ""]
    return f"{where} is no setting; " + (
        f"did you mean {prefix}{nearest}?" if nearest else "tidewheel config example lists all."
    )
