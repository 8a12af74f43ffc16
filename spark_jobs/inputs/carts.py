"""Export of the carts and their ledgers to Parquet, with the differences between the two.

    redis://...        the shop's carts in Redis (`redis_carts`); also rediss:// and unix://
    an SQLAlchemy URL  two tables, carts and ledger (columns: `mapping`)
    parquet:FOLDER     the files of an earlier export, or other files with the same columns
    None               no carts; orders are judged without them

Invariant: for every customer and article, the cart holds the additions minus the removals of the ledger.

    carts.parquet    customer_id, sku, quantity
    ledger.parquet   customer_id, entry (add | order), entry_id, sku, quantity, at_ms;
                     an order that removed nothing has one row without an article
    differences.parquet   customer_id, sku, cart, ledger: rows whose two quantities differ
    repeated.parquet      customer_id, order_id, sku, entries, quantity: the articles for which an order has
                          several entries, and the quantity that these removed; not written for Redis, whose
                          ledger has one entry per order

Differences are computed by bucket of customers (a bucket of Redis, or of the rows of a database or folder),
so memory holds one bucket. A ledger entry of any other kind has no effect; in Redis and in a database it is
also reported as unreadable, and so is the number of a database's rows without a customer.

Limitation: a database is read in one snapshot, but Redis in groups of customers, each at its own instant.
Differences are correct as long as no operation moves articles between customers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from spark_jobs.buckets import bucket_of
from spark_jobs.errors import DatabaseUnreadable
from spark_jobs.inputs.databases import Database
from spark_jobs.inputs.mapping import NOT_OURS, SHOP, Mapping
from spark_jobs.inputs.redis_carts import CartRows, RedisCarts
from spark_jobs.inputs.schemas import ADD, CARTS, LEDGER, ORDER
from spark_jobs.inputs.tables import ROWS_PER_BATCH, RowWriter, part_name, parts_of

DIFFERENCES: Final = pa.schema([
    ("customer_id", pa.string()),
    ("sku", pa.string()),
    ("cart", pa.int64()),
    ("ledger", pa.int64()),
])  # fmt: skip

REPEATED: Final = pa.schema([
    ("customer_id", pa.string()),
    ("order_id", pa.string()),
    ("sku", pa.string()),
    ("entries", pa.int64()),
    ("quantity", pa.int64()),
])  # fmt: skip

PARQUET: Final = "parquet:"
UNREADABLE_MAX: Final = 10_000
"""Maximum number of unreadable fields that are named; one more entry may follow, "and more"."""

_REDIS: Final = ("redis://", "rediss://", "unix://")
_ROWS_PER_BUCKET: Final = 1_000_000
_BUCKETS_MAX: Final = 200


Export = Callable[[Path], list[str]]
"""Writes the files below a folder and returns the unreadable fields, limited as in `_note`; raises
`DatabaseUnreadable`."""


def open_carts(url: str | None, mapping: Mapping = SHOP) -> Export:
    """Return the export of the carts at a URL, after a check of the connection, tables and columns.

    Raise `DatabaseUnreadable` if the URL is invalid, or if the check fails.
    """
    if url is None:
        return _export_none
    if url.startswith(PARQUET):
        return FolderOfCarts(Path(url.removeprefix(PARQUET))).export
    if url.startswith(_REDIS):
        return partial(_export_redis, RedisCarts(url, mapping.redis))
    if "://" not in url or url.startswith(("http://", "https://")):
        raise DatabaseUnreadable(
            f"{url} is no address of carts. Correct --carts: give redis://HOST:PORT/NUMBER, a database's "
            "URL such as sqlite:///carts.db, or parquet:FOLDER."
        )
    return partial(_export_database, Database(url, "--carts", mapping.carts, mapping.ledger))


def _export_none(folder: Path) -> list[str]:
    """Write three empty files."""
    for name, schema in (("carts", CARTS), ("ledger", LEDGER), ("differences", DIFFERENCES)):
        with RowWriter(_part(folder, name, 0), schema):
            pass
    return []


def _export_redis(carts: RedisCarts, folder: Path) -> list[str]:
    """Write a part for each bucket of customers."""
    unreadable: list[str] = []
    for number, bucket in enumerate(carts.buckets()):
        _write_bucket(folder, number, bucket, unreadable)
        _write_differences(folder, number)
    return unreadable


def _export_database(database: Database, folder: Path) -> list[str]:
    """Write both tables, then compare them by the texts of their keys.

    The type of the customer ids, and so their order, may differ between the tables.
    """
    unreadable: list[str] = []
    try:
        for name, counts in database.export_together(("carts", "ledger"), folder).items():
            if counts.without_key:
                unreadable.append(f"{name}: {counts.without_key} without customer_id")
    finally:
        database.close()
    for path in sorted(parts_of(folder, "ledger").iterdir()):
        _note(unreadable, _unknown_entries(pq.read_table(path)))
    _compare(parts_of(folder, "carts"), parts_of(folder, "ledger"), folder)
    return unreadable


class FolderOfCarts:
    """Existing Parquet files, which the export links to and does not copy."""

    def __init__(self, source: Path) -> None:
        self._source = source.absolute()
        for name, schema in (("carts", CARTS), ("ledger", LEDGER)):
            self._check(name, schema)
        self._has_differences = self._path("differences").exists()
        if self._has_differences:
            self._check("differences", DIFFERENCES)

    def export(self, folder: Path) -> list[str]:
        """Link to the files (see `Export`). If the folder has no differences, compute them and the repeated
        entries, which are then not linked to: they would be written into the source folder.
        """
        computed = ("differences", "repeated") if self._has_differences else ()
        for name in ("carts", "ledger", *computed):
            if self._path(name).exists():
                (folder / f"{name}.parquet").symlink_to(self._path(name))
        if not self._has_differences:
            _compare(self._path("carts"), self._path("ledger"), folder)
        return []

    def _path(self, name: str) -> Path:
        return self._source / f"{name}.parquet"

    def _check(self, name: str, schema: pa.Schema) -> None:
        path = self._path(name)
        if not path.exists():
            raise DatabaseUnreadable(f"There is no {path}. Correct --carts parquet:FOLDER.")
        try:
            there = ds.dataset(path, format="parquet").schema
        except (OSError, pa.ArrowException) as error:
            raise DatabaseUnreadable(
                f"{path} is no Parquet file ({str(error).splitlines()[0]}). Correct --carts parquet:FOLDER."
            ) from error
        for one in schema:
            if one.name not in there.names:
                raise DatabaseUnreadable(
                    f"{path} has no column '{one.name}' (there are {', '.join(there.names)}). Write it with "
                    f"the columns {', '.join(schema.names)}."
                )
            if not _fits(there.field(one.name).type, one.type):
                raise DatabaseUnreadable(
                    f"Column '{one.name}' of {path} is {there.field(one.name).type}. Write it as {one.type}."
                )


def _compare(carts: Path, ledger: Path, to: Path) -> None:
    """Deal carts and ledger into buckets of customers; write differences and repeated entries."""
    sources = {"carts": (carts, CARTS), "ledger": (ledger, LEDGER)}
    rows = max(ds.dataset(path, format="parquet").count_rows() for path, _ in sources.values())
    count = min(1 + rows // _ROWS_PER_BUCKET, _BUCKETS_MAX)
    with tempfile.TemporaryDirectory(dir=to) as scratch:
        for name, (path, schema) in sources.items():
            _deal(path, schema, parts_of(Path(scratch), name), count)
        for number in range(count):
            _write_differences(Path(scratch), number, to)
            found = repeated(pq.read_table(_part(Path(scratch), "ledger", number)))
            pq.write_table(found, _part(to, "repeated", number))


def repeated(ledger: pa.Table) -> pa.Table:
    """Return the articles for which an order has several entries, with the sum of these, as `REPEATED`."""
    is_of_order = pc.and_(pc.equal(ledger["entry"], ORDER), pc.is_valid(ledger["entry_id"]))
    taken = ledger.filter(pc.and_(is_of_order, pc.is_valid(ledger["sku"])))
    keys = ["customer_id", "entry_id", "sku"]
    found = taken.group_by(keys).aggregate([([], "count_all"), ("quantity", "sum")])
    found = found.filter(pc.greater(found["count_all"], 1))
    return pa.table([found[name] for name in (*keys, "count_all", "quantity_sum")], schema=REPEATED)


def differences(carts: pa.Table, ledger: pa.Table) -> pa.Table:
    """Return each customer and article whose cart is not additions minus removals, as `DIFFERENCES`."""
    moved = ledger.filter(pc.and_(pc.is_valid(ledger["sku"]), _is_known(ledger)))
    sign = pc.if_else(pc.equal(moved["entry"], ADD), 1, -1)
    signed = moved.append_column("signed", pc.multiply(moved["quantity"], sign))
    balances = signed.group_by(["customer_id", "sku"]).aggregate([("signed", "sum")])
    held = carts.group_by(["customer_id", "sku"]).aggregate([("quantity", "sum")])
    both = held.join(balances, ["customer_id", "sku"], join_type="full outer")
    cart, balance = pc.fill_null(both["quantity_sum"], 0), pc.fill_null(both["signed_sum"], 0)
    columns = [both["customer_id"], both["sku"], cart, balance]
    compared = pa.table(dict(zip(DIFFERENCES.names, columns, strict=True)), schema=DIFFERENCES)
    return compared.filter(pc.not_equal(cart, balance))


def _write_bucket(folder: Path, number: int, bucket: Iterator[CartRows], unreadable: list[str]) -> None:
    held = CartRows()
    carts, ledger = (_part(folder, name, number) for name in ("carts", "ledger"))
    with RowWriter(carts, CARTS) as cart_writer, RowWriter(ledger, LEDGER) as ledger_writer:

        def flush() -> None:
            cart_writer.write_rows(held.carts)
            ledger_writer.write_rows(held.ledger)
            held.carts.clear()
            held.ledger.clear()

        for rows in bucket:
            held.carts += rows.carts
            held.ledger += rows.ledger
            _note(unreadable, rows.unreadable)
            if max(len(held.carts), len(held.ledger)) >= ROWS_PER_BATCH:
                flush()
        flush()


def _write_differences(folder: Path, number: int, to: Path | None = None) -> None:
    carts, ledger = (pq.read_table(_part(folder, name, number)) for name in ("carts", "ledger"))
    pq.write_table(differences(carts, ledger), _part(to or folder, "differences", number))


def _part(folder: Path, name: str, number: int) -> Path:
    return parts_of(folder, name) / part_name(number)


def _note(unreadable: list[str], more: list[str]) -> None:
    """Append to the unreadable fields, up to `UNREADABLE_MAX` of them and then "and more"."""
    if len(unreadable) <= UNREADABLE_MAX:
        unreadable += more
        unreadable[UNREADABLE_MAX:] = ["and more"] if len(unreadable) > UNREADABLE_MAX else []


def _is_known(ledger: pa.Table) -> pa.ChunkedArray:
    return pc.is_in(ledger["entry"], pa.array([ADD, ORDER]))


def _unknown_entries(ledger: pa.Table) -> list[str]:
    unknown = ledger.filter(pc.invert(_is_known(ledger)))
    return [
        f"ledger of {row['customer_id']}: entry {row['entry']} {row['entry_id']}".replace(NOT_OURS, "")
        for row in unknown.to_pylist()
    ]


def _deal(source: Path, schema: pa.Schema, folder: Path, count: int) -> None:
    """Deal the rows of a data set into `count` files, by a checksum of their customer."""
    with ExitStack() as files:
        writers = [files.enter_context(RowWriter(folder / part_name(one), schema)) for one in range(count)]
        for batch in ds.dataset(source, schema=schema, format="parquet").to_batches(batch_readahead=2):
            buckets = bucket_of(pc.fill_null(batch.column(0), ""), count)
            for bucket in np.unique(buckets):
                writers[bucket].write(batch.filter(pa.array(buckets == bucket)))


def _fits(there: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_string(wanted):
        return bool(pa.types.is_string(there) or pa.types.is_large_string(there))
    return bool(pa.types.is_integer(there))
