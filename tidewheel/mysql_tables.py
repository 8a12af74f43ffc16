"""Validation of tables and servers for MySQL and MariaDB."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from tidewheel.databases import COLLATIONS, MYSQL
from tidewheel.errors import ConfigurationError, UnknownChoice
from tidewheel.extras import needing

with needing("txn"):
    from sqlalchemy import text

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, Table

_ENGINE = (
    "SELECT engine FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = :name"
)
_COLLATIONS = (
    "SELECT column_name, collation_name FROM information_schema.columns "
    "WHERE table_schema = DATABASE() AND table_name = :name"
)
SKIPS_LOCKS = {"MySQL": (8, 0, 1), "MariaDB": (10, 6, 0)}
"""The first versions that support SKIP LOCKED."""

_fit: WeakKeyDictionary[Engine, set[str]] = WeakKeyDictionary()


def refuse_unfit_mysql_table(connection: Connection, table: Table) -> None:
    """Refuse a table that does not use InnoDB, or does not compare text character by character.

    Each table is checked once per engine, and only on MySQL and MariaDB. A table without a required column is
    outdated and is reported by the next statement.

    Raises:
        ConfigurationError: If the table is unsuitable.
    """
    seen = _fit.setdefault(connection.engine, set())
    if connection.dialect.name not in MYSQL or table.name in seen:
        return
    told = connection.execute(text(_COLLATIONS), {"name": table.name})
    collations = {str(column): collation for column, collation in told}
    if not set(table.columns.keys()) <= set(collations):
        return
    engine = connection.execute(text(_ENGINE), {"name": table.name}).scalar_one_or_none()
    if engine is not None and str(engine).lower() != "innodb":
        raise ConfigurationError(
            f"The table {table.name} is {engine}'s, which has no transactions: its rows would stay when "
            f"yours are rolled back. ALTER TABLE {table.name} ENGINE=InnoDB."
        )
    for column, collation in collations.items():
        if column in table.columns and collation not in (None, *COLLATIONS.values()):
            raise ConfigurationError(
                f"The column {column} of {table.name} is compared by {collation}, which takes two messages "
                f"for one. ALTER TABLE {table.name} CONVERT TO CHARACTER SET utf8mb4 COLLATE "
                f"{' (MySQL) or '.join(COLLATIONS.values())} (MariaDB)."
            )
    if engine is not None:
        seen.add(table.name)


def look_again(engine: Engine) -> None:
    """Discard the cached results of an engine, so that its tables are checked again on the next use."""
    _fit.pop(engine, None)


def refuse_lossy_charset(connection: Connection) -> None:
    """Refuse a connection whose character set makes the server replace characters by "?" without an error.

    The server replaces characters in results and, outside strict mode, also in stored text.

    Raises:
        ConfigurationError: If the character set is not utf8mb4.
    """
    told = str(connection.execute(text("SELECT @@character_set_results")).scalar_one())
    if told != "utf8mb4":
        raise ConfigurationError(
            f"The connection's character set is {told}, in which keys, tags and groups would lose letters. "
            "Put charset=utf8mb4 into the engine's URL."
        )


def refuse_server_that_waits(connection: Connection) -> None:
    """Refuse a server that does not support SKIP LOCKED.

    Raises:
        UnknownChoice: If the server is older than MySQL 8.0.1 or MariaDB 10.6.
    """
    told = str(connection.execute(text("SELECT VERSION()")).scalar_one())
    name = "MariaDB" if "MariaDB" in told else "MySQL"
    numbers = told.removeprefix("5.5.5-").split("-")[0].split(".")
    if tuple(int(number) for number in numbers if number.isdigit()) < SKIPS_LOCKS[name]:
        first = ".".join(map(str, SKIPS_LOCKS[name]))
        raise UnknownChoice(f"The relay needs SKIP LOCKED, which {name} has from {first} on; this is {told}.")
