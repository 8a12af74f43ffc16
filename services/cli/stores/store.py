"""`tidewheel store`: inspect, verify, copy and repair a store without its broker."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli.settings.setting_options import was_typed
from services.cli.stores import store_views
from services.cli.terminal import output
from services.settings.config import ServeSettings, load

if TYPE_CHECKING:
    from services.store.progress import Progress

EXIT_DAMAGE = 5
LIMIT_DEFAULT = 1_000

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Look at a store, prove it, copy it, repair it, without its broker.\n\n"
    "info, verify, dump, snapshot and export-queues work while its broker runs, and write nothing there.\n\n"
    "Example: tidewheel store verify --store ./store",
)
dump_app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Print what a store holds, one JSON object per line.\n\n"
    "Example: tidewheel store dump log --store ./store --topic orders --limit 10",
)
app.add_typer(dump_app, name="dump")


def chosen_store(context: typer.Context, value: Path) -> Path:
    """Return the given store, or the store from the settings of tidewheel serve."""
    return value if was_typed(context, "store") else load(ServeSettings).store


StoreOption = Annotated[
    Path,
    typer.Option("--store", callback=chosen_store, help="Folder of the store, which may be in use."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
TopicOption = Annotated[str | None, typer.Option("--topic", help="Only entries of this topic.")]
LimitOption = Annotated[int, typer.Option("--limit", min=0, help="Largest number of lines; 0 for all.")]
STORE_DEFAULT = Path("tidewheel-store")


def wall_clock_ms() -> int:
    """Return the current time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@app.command("info")
def show_info(store: StoreOption = STORE_DEFAULT, as_json: JsonOption = False) -> None:
    """Show the content of a store: log, topics, groups, pending messages, and disk usage.

    Example: tidewheel store info --store ./store --json
    """
    from services.store.info import info

    found = info(store, wall_clock_ms())
    if as_json:
        output.print_json(found.as_json())
    else:
        store_views.print_info(found)


@app.command("verify")
def show_verify(store: StoreOption = STORE_DEFAULT, as_json: JsonOption = False) -> None:
    """Verify a store: every record, queue entry, key and snapshot, and their consistency.

    Exit code 0: nothing is damaged; 5: damage was found.

    Example: tidewheel store verify --store ./store
    """
    from services.store.read_only.opening import open_store
    from services.store.verify.verify import verify

    with progress_bar() as progress:
        verdict = verify(open_store(store), wall_clock_ms(), progress)
    if as_json:
        output.print_json(verdict.as_json())
    else:
        store_views.print_verdict(verdict, store)
    if not verdict.is_sound:
        raise typer.Exit(EXIT_DAMAGE)


@dump_app.command("log")
def dump_log(
    store: StoreOption = STORE_DEFAULT,
    from_offset: Annotated[int, typer.Option("--from", min=0, help="First log offset.")] = 0,
    topic: TopicOption = None,
    limit: LimitOption = LIMIT_DEFAULT,
) -> None:
    """Print records of the log, with their properties and bodies.

    Example: tidewheel store dump log --store ./store --from 4096 --limit 10
    """
    from services.store import dump
    from services.store.read_only.opening import open_store

    print_lines(dump.log_lines(open_store(store), from_offset, topic), limit)


@dump_app.command("queue")
def dump_queue(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    queue_id: Annotated[int, typer.Argument(min=0, help="The queue of the topic.")] = 0,
    store: StoreOption = STORE_DEFAULT,
    from_offset: Annotated[int, typer.Option("--from", min=0, help="First queue offset.")] = 0,
    limit: LimitOption = LIMIT_DEFAULT,
) -> None:
    """Print the entries of one queue, with the log offset of each record.

    The field "where" shows the location of the entry: a "file" of the queue, the newest "snapshot", or only
    the "log", from which the entry is built at start.

    Example: tidewheel store dump queue orders 1 --store ./store --from 100
    """
    from services.store import dump
    from services.store.read_only.opening import open_store

    print_lines(dump.queue_lines(open_store(store), topic, queue_id, from_offset), limit)


@dump_app.command("timers")
def dump_timers(
    store: StoreOption = STORE_DEFAULT, topic: TopicOption = None, limit: LimitOption = LIMIT_DEFAULT
) -> None:
    """Print the delayed messages: pending messages by due time, then ended messages in the retained history.

    Example: tidewheel store dump timers --store ./store --topic order-timeouts
    """
    from services.store import dump

    print_lines(dump.timer_lines(state_of(store), topic), limit)


@dump_app.command("halves")
def dump_halves(store: StoreOption = STORE_DEFAULT, limit: LimitOption = LIMIT_DEFAULT) -> None:
    """Print the half messages: open and expired ones, then ended ones in the retained history.

    Example: tidewheel store dump halves --store ./store
    """
    from services.store import dump

    print_lines(dump.half_lines(state_of(store)), limit)


@dump_app.command("groups")
def dump_groups(
    store: StoreOption = STORE_DEFAULT, topic: TopicOption = None, limit: LimitOption = LIMIT_DEFAULT
) -> None:
    """Print the offsets of each consumer group in each queue.

    Example: tidewheel store dump groups --store ./store
    """
    from services.store import dump

    print_lines(dump.group_lines(state_of(store), topic), limit)


@app.command("repair")
def run_repair(
    store: StoreOption = STORE_DEFAULT,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report the changes without writing them.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Make the change; without this option, it is only shown.")
    ] = False,
    gives_up: Annotated[
        bool,
        typer.Option("--give-up-lost-names", help="Continue without lost names and ends of timers."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Rebuild damaged queues, index, snapshots and timers, and skip damaged bytes of the log.

    The broker must be stopped. The log itself is never changed. Damaged bytes are copied to the folder
    'quarantine', and the losses are printed. If names and ends of timers cannot be read, operations that need
    them are refused until you restore a backup or give them up. Exit code 5: damage remains that only a
    backup can repair.

    Example: tidewheel store repair --store ./store --dry-run
    """
    from services.store.repair import repair

    if dry_run and yes:
        raise typer.BadParameter("--dry-run and --yes contradict each other: give one of them")
    with repair.locked(store) as opened, progress_bar() as progress:
        planned = repair.plan(opened, wall_clock_ms(), progress, gives_up)
        if yes:
            repair.carry_out(planned, store, opened, wall_clock_ms())
    if as_json:
        output.print_json(planned.as_json())
    else:
        store_views.print_plan(planned, done=yes)
        if not (yes or dry_run or planned.is_empty):
            output.say_undone()
    if planned.hopeless:
        raise typer.Exit(EXIT_DAMAGE)


@app.command("snapshot")
def run_snapshot(
    target: Annotated[Path, typer.Argument(help="Folder for the copy; must be empty or missing.")],
    store: StoreOption = STORE_DEFAULT,
    with_key: Annotated[
        bool,
        typer.Option(
            "--with-key", help="Also copy the users' key, without which secrets cannot be decrypted."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Copy a store, which may be in use. The copy is a complete store.

    Example: tidewheel store snapshot ./backup --store ./store
    """
    from dataclasses import asdict

    from services.store.copying.copying import copy_store

    with progress_bar() as progress:
        copied = copy_store(store, target, progress, with_key=with_key)
    if as_json:
        output.print_json(asdict(copied))
        return
    output.show(
        f"{copied.path} holds the log from {copied.first_offset} to {copied.durable_offset}, "
        f"{copied.file_count} files, {store_views.size(copied.copied_bytes)}"
    )
    output.say(f"check it: tidewheel store verify --store {target}")


@app.command("import")
def run_import(
    source: Annotated[
        Path, typer.Argument(help="Folder of an Apache RocketMQ store; its broker must be stopped.")
    ],
    store: StoreOption = STORE_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Import an Apache RocketMQ store into an empty store: log, topics, groups, delayed messages and
    transactions.

    The RocketMQ store is not changed.

    Example: tidewheel store import /var/lib/rocketmq/store --store ./store
    """
    from dataclasses import asdict

    from services.rocketmq.import_store import import_store

    summary = import_store(source, store, output.say, wall_clock_ms())
    if as_json:
        output.print_json(asdict(summary))
    else:
        store_views.print_import(summary, store)


@app.command("export")
def run_export(
    target: Annotated[Path, typer.Argument(help="Folder for the RocketMQ store; must be empty or missing.")],
    store: StoreOption = STORE_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Export a store for an Apache RocketMQ broker, and print which messages will be delivered again.

    The broker must be stopped. Its store is not changed.

    Example: tidewheel store export ./for-rocketmq --store ./store
    """
    from dataclasses import asdict

    from services.rocketmq.export_store import export_store

    summary = export_store(store, target, output.say, wall_clock_ms())
    if as_json:
        output.print_json(asdict(summary))
    else:
        store_views.print_export(summary, target)


@app.command("export-queues")
def run_export_queues(
    target: Annotated[Path, typer.Argument(help="Folder for the files; must be empty or missing.")],
    store: StoreOption = STORE_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Write complete ConsumeQueue files. The files in the store lack the latest entries.

    The broker may be running. The amount of data is printed before it is written. If the export fails, no
    files are left.

    Example: tidewheel store export-queues ./queues --store ./store
    """
    from dataclasses import asdict

    from services.store.export_queues import PlannedExport, export_queues

    def announce(planned: PlannedExport) -> None:
        output.say(
            f"{planned.entry_count} entries of {planned.queue_count} queues go to {planned.file_count} files "
            f"below {target}, {store_views.size(planned.disk_bytes)} on disk"
        )

    exported = export_queues(store, target, wall_clock_ms(), announce)
    if as_json:
        output.print_json(asdict(exported))
        return
    output.show(
        f"{exported.path} holds {exported.entry_count} entries of {exported.queue_count} queues, "
        f"{exported.file_count} files"
    )


def state_of(store: Path) -> Any:
    """Return the state that results from a store's log."""
    from services.store.read_only.opening import open_store
    from services.store.read_only.state import fold

    return fold(open_store(store), wall_clock_ms())


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show a progress bar on stderr. If stderr is not a terminal, nothing is shown."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def show(what: str, done_bytes: int, total_bytes: int) -> None:
            bar.update(task, description=what, completed=done_bytes, total=total_bytes or None)

        yield show


def print_lines(lines: Iterable[dict[str, Any]], limit: int) -> None:
    """Print JSON lines, at most `limit`, and a message if lines were omitted."""
    rest = iter(lines)
    for line in islice(rest, limit or None):
        output.print_json_line(line)
    if limit and next(rest, None) is not None:
        output.say(f"stopped after {limit} lines; --limit 0 prints all")
