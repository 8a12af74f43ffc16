"""Opens a database by SQLAlchemy URL. A SQLite file gets what a service with several threads needs.

Write-ahead logging lets readers go on while one writer commits; a busy timeout makes writers queue instead of
failing; a commit is on disk before it answers (`synchronous=FULL`), as the barrier assumes.
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
    """Open a database and create the tables that are missing.

    Raises:
        ConfigurationError: when the URL is no database URL, its driver is missing, nothing answers there, or
            a table is there with other columns.
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
    """Refuse tables of another version or another program; the first statement would fail."""
    for name, table in metadata.tables.items():
        found = {column["name"] for column in inspect(engine).get_columns(name)}
        different = found.symmetric_difference(table.columns.keys())
        if different:
            raise ConfigurationError(
                f"Table {name} at {engine.url!r} is of another version: it differs in "
                f"{', '.join(sorted(different))}. Give a database in which it is new."
            )


def settings_of(url: str) -> dict[str, Any]:
    """Return engine settings: enough connections for the service's threads."""
    if url.startswith("sqlite"):
        return {"connect_args": {"timeout": SQLITE_BUSY_S}, "pool_size": POOL_SIZE}
    return {"pool_size": POOL_SIZE, "pool_pre_ping": True}


def prepare_sqlite(connection: Any, _: Any) -> None:
    """Set what SQLite remembers per connection."""
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def sqlite_url(path: Path) -> str:
    """Return the URL of an SQLite file."""
    return f"sqlite:///{path.absolute()}"
