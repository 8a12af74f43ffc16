"""Differences between the databases that barrier, outbox and guard support.

Dialect names are those of SQLAlchemy: a URL `mysql+...` is "mysql" and `mariadb+...` is "mariadb", regardless
of the server.

Text in Tidewheel's tables is compared character by character, including case, accents and trailing blanks.
PostgreSQL and SQLite do so by default. MySQL and MariaDB require a binary collation without padding, whose
name differs between the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tidewheel.database_errors import DUPLICATE_KEY, says
from tidewheel.errors import UnknownChoice
from tidewheel.extras import needing

with needing("txn"):
    from sqlalchemy import insert
    from sqlalchemy.dialects import mysql, postgresql, sqlite
    from sqlalchemy.dialects.mysql.mariadb import MariaDBDialect
    from sqlalchemy.exc import IntegrityError
    from sqlalchemy.schema import CreateIndex, CreateTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sqlalchemy import Connection, Dialect, Index, MetaData, Table

MYSQL: Final = ("mysql", "mariadb")
COLLATIONS: Final = {"mysql": "utf8mb4_0900_bin", "mariadb": "utf8mb4_nopad_bin"}
EXACT: Final[dict[str, Any]] = {
    f"{name}_{option}": value
    for name, collation in COLLATIONS.items()
    for option, value in {
        "engine": "InnoDB",
        "row_format": "DYNAMIC",  # index limit is 3,072 bytes, otherwise 767
        "charset": "utf8mb4",
        "collate": collation,
    }.items()
}
"""Table options that all Tidewheel tables use."""

DIALECTS: Final[dict[str, Callable[[], Dialect]]] = {
    "sqlite": sqlite.dialect,
    "postgresql": postgresql.dialect,
    "mysql": mysql.dialect,
    "mariadb": MariaDBDialect,
}
KNOWN: Final = f"{', '.join(list(DIALECTS)[:-1])} and {list(DIALECTS)[-1]}"
INSERTS: Final[dict[str, Any]] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


DRIVERS: Final = {
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
}
"""Maps URL schemes to the scheme of the driver that Tidewheel installs."""


def way_of_url(url: str) -> str:
    """Return a hint for a URL that is malformed or whose driver is missing, or an empty string for other
    drivers.
    """
    scheme, parted, _ = url.partition("://")
    if not parted or ":" in scheme:
        return " Write a URL, such as sqlite:///shop.db or postgresql+psycopg://USER@HOST/DATABASE"
    if scheme in DRIVERS.values():
        library = "psycopg[binary]" if scheme == DRIVERS["postgresql"] else "tidewheel-client[mysql]"
        return f" Install it: pip install '{library}'"
    named = DRIVERS.get(scheme.partition("+")[0])
    return f" Name the driver: {named}://USER@HOST/DATABASE" if named else ""


def only_on(dialects: tuple[str, ...], index: Index) -> None:
    """Restrict an index to some of the dialects."""
    index.info["dialects"] = dialects
    index.ddl_if(callable_=lambda *_, dialect, **__: dialect.name in dialects)


def tables_sql(metadata: MetaData, dialect: str) -> str:
    """Return the SQL statements that create the tables and their indexes, each terminated by a semicolon.

    Raises:
        UnknownChoice: If the dialect is not supported.
    """
    if dialect not in DIALECTS:
        raise UnknownChoice(f"There is SQL for {KNOWN}, not for {dialect}.")
    return "\n".join(
        f"{statement};" for table in metadata.tables.values() for statement in statements_of(table, dialect)
    )


def statements_of(table: Table, dialect: str) -> Iterator[str]:
    """Yield the SQL statements that create a table and its indexes."""
    made = DIALECTS[dialect]()
    yield str(CreateTable(table).compile(dialect=made)).strip()
    for index in sorted(table.indexes, key=lambda index: str(index.name)):
        if dialect in index.info.get("dialects", DIALECTS):
            yield str(CreateIndex(index).compile(dialect=made))


def insert_if_new(connection: Connection, table: Table, row: Mapping[str, object]) -> bool:
    """Insert a row and return whether it is new. The insert waits for a concurrent insert of the same key.

    MySQL uses a plain INSERT, which detects keys that are not visible in the snapshot. A duplicate key only
    undoes that statement. IGNORE would truncate long text, and the row count of ON DUPLICATE KEY does not
    show whether the row is new.
    """
    if connection.dialect.name in INSERTS:
        new = INSERTS[connection.dialect.name](table).values(row).on_conflict_do_nothing()
        return connection.execute(new.returning(next(iter(table.primary_key)))).first() is not None
    try:
        connection.execute(insert(table).values(row))
    except IntegrityError as error:
        if says(error, DUPLICATE_KEY):
            return False
        raise
    return True
