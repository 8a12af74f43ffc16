"""An audit of somebody's own tables in MariaDB, with the command and the mapping that docs/audit.md shows."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from sqlalchemy import Engine, create_engine, text

from spark_jobs.inputs.mapping import Mapping, as_mapping
from spark_jobs.inputs.stores import Inputs
from spark_jobs.layout import RunFolders
from spark_jobs.main import Sources, compare
from spark_jobs.options import AuditOptions
from tests.mariadb import MariadbServer, running_mariadb
from tests.spark.conftest import Shop

SHOWN = (
    (Path(__file__).parents[2] / "docs" / "audit.md")
    .read_text()
    .split("### Tables in MySQL and MariaDB\n")[1]
)
COMMAND = re.findall(r"^tidewheel (audit run .*)$", SHOWN, re.MULTILINE)[0]
GRANTED = re.findall(r"^mysql> (CREATE USER .*);$", SHOWN, re.MULTILINE)[0].split("; ")
MAPPING = re.findall(r"^```toml\n(.*?)^```$", SHOWN, re.DOTALL | re.MULTILINE)[0]

TABLES = (
    "CREATE TABLE purchase (number VARCHAR(64), buyer VARCHAR(64), state ENUM('open', 'settled', 'lapsed'),"
    " worth DECIMAL(12, 0), made_at DATETIME(3), pay_by DATETIME(3),"
    " settled_at DATETIME(3) NOT NULL DEFAULT 0, lapsed_at DATETIME(3) NOT NULL DEFAULT 0, KEY (number))",
    "CREATE TABLE item (purchase CHAR(64), article VARCHAR(64), pieces INTEGER UNSIGNED, KEY (purchase))",
    "CREATE TABLE basket (customer_id VARCHAR(64), sku VARCHAR(64), quantity SMALLINT UNSIGNED)",
    "CREATE TABLE basket_moves (customer_id VARCHAR(64), entry ENUM('add', 'order'), entry_id VARCHAR(64),"
    " sku VARCHAR(64), quantity BIGINT UNSIGNED, moved_at DATETIME(3))",
)
STATES = {"PLACED": "open", "PAID": "settled", "TIMED_OUT": "lapsed"}


@pytest.fixture(scope="module")
def server() -> Iterator[MariadbServer]:
    with running_mariadb() as running:
        yield running


@pytest.fixture
def own(server: MariadbServer) -> Iterator[Engine]:
    """A database with the tables of the mapping, empty."""
    server.run("DROP DATABASE shop", "CREATE DATABASE shop CHARACTER SET utf8mb4")
    engine = create_engine(server.url)
    with engine.begin() as connection:
        for statement in TABLES:
            connection.execute(text(statement))
    yield engine
    engine.dispose()


def shown_mapping() -> Mapping:
    return as_mapping(tomllib.loads(MAPPING), "docs/audit.md")


def clock(at_ms: int | None) -> str:
    """Return what a clock in the zone of the mapping shows."""
    if at_ms is None:
        return "0000-00-00 00:00:00"
    at = datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(ZoneInfo(shown_mapping().orders.zone))
    return at.replace(tzinfo=None).isoformat(" ", "milliseconds")


def copy(shop: Shop, own: Engine, folder: Path) -> None:
    """Write the shop's rows, carts and ledgers into the own tables."""
    folder.mkdir()
    Inputs(shop.orders_url, shop.redis_url).open().export_carts(folder)
    carts, ledger = (pq.read_table(folder / f"{name}.parquet").to_pylist() for name in ("carts", "ledger"))
    with shop.database.connect() as connection:
        orders = [dict(row) for row in connection.execute(text("SELECT * FROM orders")).mappings()]
        lines = [dict(row) for row in connection.execute(text("SELECT * FROM order_lines")).mappings()]
    times = ("placed_ms", "due_ms", "paid_ms", "timed_out_ms")
    rows: list[tuple[str, tuple[Any, ...]]] = []
    for one in orders:
        named = (one["order_id"], one["customer_id"], STATES[one["status"]], one["total_pence"])
        rows.append(("purchase", (*named, *(clock(one[name]) for name in times))))
    rows += [("item", (one["order_id"], one["sku"], one["quantity"])) for one in lines]
    rows += [("basket", (one["customer_id"], one["sku"], one["quantity"])) for one in carts]
    rows += [("basket_moves", (*[*one.values()][:5], clock(one["at_ms"]))) for one in ledger]
    with own.begin() as connection:
        for table, values in rows:
            connection.exec_driver_sql(
                f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(values))})", tuple(values)
            )


def test_the_documented_audit_balances(
    traded: Shop, own: Engine, server: MariadbServer, readers_folder: Path
) -> None:
    copy(traded, own, readers_folder / "copied")
    server.run(*(statement.replace("'...'", "'secret'") for statement in GRANTED))
    (readers_folder / "shop.toml").write_text(MAPPING)
    url = f"mysql://auditor:secret@/shop?unix_socket={server.socket}"
    named = {"mysql://auditor:...@db/shop": url, "./store": str(traded.store)}
    words = [named.get(word, word) for word in shlex.split(COMMAND)]
    ran = subprocess.run(
        [sys.executable, "-m", "services.cli.main", *words, "--json"],
        cwd=readers_folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    summary = json.loads(ran.stdout)
    assert (summary["balanced"], summary["totals"]["orders paid"]) == (True, 2)
    assert summary["cases"]["balanced"] == 4
    assert "secret" not in (readers_folder / "audit-out" / "report.html").read_text()


def test_orders_and_customers_that_a_collation_takes_for_one_are_judged_apart(
    spark: SparkSession, shop: Shop, own: Engine, server: MariadbServer, tmp_path: Path
) -> None:
    """One of the four loses its entry in the ledger, by hand."""
    places = [("o-1", "ann"), ("O-1", "Ann"), ("o-2", "ann"), ("O-2", "ann ")]
    for order_id, customer_id in places:
        shop.place(order_id, customer_id, {"apple": 1})
        shop.advance(1_000)
    shop.clear_carts()
    for order_id, _ in places:
        shop.pay(order_id)
    copy(shop, own, tmp_path / "copied")
    with own.begin() as connection:
        connection.exec_driver_sql("DELETE FROM basket_moves WHERE BINARY entry_id = 'O-1'")

    sources = Sources(shop.store, Inputs(server.url, server.url, mapping=shown_mapping()))
    folders, scratch = RunFolders(tmp_path / "out", "run"), tmp_path / "exported"
    for made in (folders.folder, scratch):
        made.mkdir(parents=True)
    exported: Any = sources.export(scratch)
    summary = compare(spark, exported, shop.store, folders, AuditOptions("run"), print)
    assert {one.subject_id: one.case for one in summary.findings} == {"O-1": "ledger-entry-missing"}
    assert summary.cases["balanced"] == 3
