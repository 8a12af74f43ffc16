"""`tidewheel outbox`: unsent messages in the outbox of a database, with the reasons, and replay of parked
messages.

The commands access the application's database directly and do not use a broker.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli.terminal import output
from services.cli.terminal.api import JsonOption
from services.cli.terminal.listing import lists
from services.times.display import exactly, now_ms, span, wall
from tidewheel.errors import ConfigurationError, NotFound
from tidewheel.extras import needing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import URL, Engine

    from tidewheel.outbox import OutboxRow

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Show the outbox of an application; replay parked messages.\n\n"
    "Example: tidewheel outbox ls --db sqlite:///shop.db",
)

TABLE = ("id", "topic", "order key", "age", "state", "attempts", "last error")
BODY_SHOWN_CHARACTERS = 200

DatabaseOption = Annotated[
    str,
    typer.Option(
        "--db",
        envvar="TIDEWHEEL_OUTBOX_DB",
        show_envvar=True,
        help="The database, as an SQLAlchemy URL: postgresql+psycopg://shop@host/shop.",
    ),
]


@lists(app)
def list_rows(
    db: DatabaseOption,
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Also show messages that wait for a relay.")
    ] = False,
    limit: Annotated[int, typer.Option(help="Largest number to show.", min=1, max=1000)] = 20,
    as_json: JsonOption = False,
) -> None:
    """List parked messages, oldest first.

    Example: tidewheel outbox ls --db sqlite:///shop.db
    """
    from tidewheel import outbox

    with opened(db) as engine:
        found = outbox.parked(engine, limit)
        if waiting:
            found = [*found, *outbox.waiting(engine, limit)][:limit]
        counts = outbox.counts(engine)
    if as_json:
        output.print_json([shown(row) for row in found])
        return
    if found:
        output.print_table(TABLE, (cells(row) for row in found), prose=("last error",))
    output.say(f"{counts.parked:,} parked, {counts.waiting:,} waiting")


@app.command()
def show(
    row_id: Annotated[int, typer.Argument(metavar="ID", help="The id of the row, as shown by ls.")],
    db: DatabaseOption,
    as_json: JsonOption = False,
) -> None:
    """Show one unsent message.

    Example: tidewheel outbox show 17 --db sqlite:///shop.db
    """
    from tidewheel import outbox

    with opened(db) as engine:
        found = outbox.row_of_id(engine, row_id)
        if found is None:
            raise NotFound(f"The outbox has no row {row_id} that is not sent.")
        fields = shown(found) | message_of(engine, row_id)
    fields["body"] = fields.pop("body")  # shown last
    if as_json:
        output.print_json(fields)
        return
    output.show(*field_lines(fields))


@app.command()
def replay(
    db: DatabaseOption,
    row_ids: Annotated[
        list[int] | None, typer.Argument(metavar="[ID]...", help="The ids of rows, as shown by ls.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All parked rows, up to 1,000.")] = False,
) -> None:
    """Send parked messages again, after the messages of their key that are already queued.

    Example: tidewheel outbox replay 17 18 --db sqlite:///shop.db
    """
    from tidewheel import outbox

    if bool(row_ids) == every:
        raise ConfigurationError("Give the ids of rows, or --all.")
    with opened(db) as engine:
        brought = outbox.replay(engine, [row.id for row in outbox.parked(engine)] if every else row_ids or [])
    output.show(f"{brought:,} wait for a relay again")
    if not every and brought < len(set(row_ids or [])):
        raise NotFound("The others are not parked: tidewheel outbox ls")


@contextmanager
def opened(url: str) -> Iterator[Engine]:
    """Connect to a database; raise `ConfigurationError` if the URL is invalid or the database does not
    answer.
    """
    with needing("txn"):
        from sqlalchemy import create_engine, make_url
        from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

        from tidewheel.databases import way_of_url
    try:
        check_url(make_url(url))
        engine = create_engine(url)
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise ConfigurationError(f"--db cannot be used: {error}.{way_of_url(url)}") from error
    try:
        yield engine
    except DBAPIError as error:
        raise ConfigurationError(f"The database does not do this: {error.orig}") from error
    finally:
        engine.dispose()


def check_url(url: URL) -> None:
    """Raise `ConfigurationError` for an asyncio driver, and for a missing SQLite file.

    SQLite would create the file, so a typing error in its name would result in an empty database.
    """
    from tidewheel.databases import DRIVERS

    if url.get_dialect().is_async:
        usual = url.set(drivername=DRIVERS.get(url.get_backend_name(), url.get_backend_name()))
        raise ConfigurationError(
            f"--db names {url.get_driver_name()}, a driver for a loop of asyncio. "
            f"Write {usual.render_as_string()}."
        )
    path = (url.database or "").removeprefix("file:").partition("?")[0]
    is_file = url.get_backend_name() == "sqlite" and path not in ("", ":memory:")
    if is_file and url.query.get("mode") != "memory" and not Path(path).exists():
        raise ConfigurationError(f"--db cannot be used: there is no file {path}.")


def message_of(engine: Engine, row_id: int) -> dict[str, Any]:
    """Return the names, delivery time and properties of a row's message."""
    from sqlalchemy import select

    from tidewheel.outbox_table import DELIVER_MS, outbox_table
    from tidewheel.own_transactions import own_transaction

    with own_transaction(engine) as connection:
        query = select(outbox_table).where(outbox_table.c.id == row_id)
        row = connection.execute(query).mappings().one()
    properties = json.loads(row["properties"])
    due_ms = int(properties.pop(DELIVER_MS, 0)) or (row["deliver_s"] or 0) * 1_000
    return {
        "tag": row["tag"] or None,
        "keys": json.loads(row["keys"]),
        "message_group": row["message_group"] or None,
        "deliver_at": exactly(due_ms) if due_ms else None,
        "properties": properties,
    }


def field_lines(fields: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each field and each property of a row."""
    for name, value in fields.items():
        if name == "properties":
            yield from (f"{'property':<15}{one}={said}" for one, said in value.items())
        else:
            said = " ".join(value) if isinstance(value, list) else value
            yield f"{name:<15}{'-' if said in (None, '') else said}"


def cells(row: OutboxRow) -> tuple[object, ...]:
    """Return a row as table cells."""
    state = "waiting" if row.parked_ms is None else "parked"
    age = span(now_ms() - row.created_ms)
    return row.id, row.topic, row.order_key or "-", age, state, row.attempts, row.last_error or "-"


def shown(row: OutboxRow) -> dict[str, Any]:
    """Return the fields of a row, with the beginning of the body as text."""
    body = row.body.decode(errors="replace")[:BODY_SHOWN_CHARACTERS]
    created, parked = wall(row.created_ms), None if row.parked_ms is None else wall(row.parked_ms)
    fields = asdict(row)
    del fields["created_ms"], fields["parked_ms"]
    return {**fields, "created": created, "parked": parked, "body": body}
