"""Opens a database by SQLAlchemy URL. SQLite is configured for services with several threads.

Write-ahead logging allows reads during a commit. A busy timeout makes concurrent writers wait instead of
failing. With `synchronous=FULL` a commit is on disk before it returns, which the barrier requires.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, event, inspect
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from tidewheel.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy import Engine, MetaData

SQLITE_BUSY_S = 30
POOL_SIZE = 32


def open_database(url: str, *tables: MetaData) -> Engine:
    """Open a database and create missing tables.

    Raises:
        ConfigurationError: If the URL is invalid, its driver is missing, the server does not answer, or an
            existing table has other columns.
    """
    try:
        engine = create_engine(url, **settings_of(url))
        if engine.dialect.name == "sqlite":
            event.listen(engine, "connect", prepare_sqlite)
        for metadata in tables:
            metadata.create_all(engine)
            refuse_other_columns(engine, metadata)
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError, SQLAlchemyError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigurationError(
            f"Database {url} cannot be opened: {reason}. Give an SQLAlchemy URL."
        ) from error
    return engine


def refuse_other_columns(engine: Engine, metadata: MetaData) -> None:
    """Raise an error for tables of another version or program."""
    for name, table in metadata.tables.items():
        found = {column["name"] for column in inspect(engine).get_columns(name)}
        different = found.symmetric_difference(table.columns.keys())
        if different:
            raise ConfigurationError(
                f"Table {name} at {engine.url!r} is of another version: it differs in "
                f"{', '.join(sorted(different))}. Give a database in which it is new."
            )


def settings_of(url: str) -> dict[str, Any]:
    """Return engine settings with enough connections for the service's threads."""
    if url.startswith("sqlite"):
        return {"connect_args": {"timeout": SQLITE_BUSY_S}, "pool_size": POOL_SIZE}
    return {"pool_size": POOL_SIZE, "pool_pre_ping": True}


def prepare_sqlite(connection: Any, _: Any) -> None:
    """Set the SQLite options of a connection."""
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def sqlite_url(path: Path) -> str:
    """Return the URL of a SQLite file."""
    return f"sqlite:///{path.absolute()}"
