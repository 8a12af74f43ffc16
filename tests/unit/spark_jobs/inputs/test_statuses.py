"""Orders whose status is none of the known ones: told with all of them, and never judged as sound."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine, create_engine

from spark_jobs.errors import DatabaseUnreadable
from spark_jobs.inputs.mapping import as_mapping
from spark_jobs.inputs.stores import Inputs
from tests.mariadb import running_mariadb
from tests.postgresql import running_postgresql


@pytest.fixture(scope="module")
def postgresql_url() -> Iterator[str]:
    with running_postgresql() as url:
        yield url


@pytest.fixture(scope="module")
def mariadb_url() -> Iterator[str]:
    with running_mariadb() as server:
        yield server.url


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """Orders whose statuses are of all sorts, beside 20 that are placed and one that is paid."""
    is_file = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'any.db'}" if is_file else request.getfixturevalue(f"{request.param}_url")
    engine = create_engine(url)
    statuses = ["PLACED"] * 20 + ["PAID", "new", "new", "new", "placed", "", None]
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS purchase")
        columns = "order_id INTEGER, customer_id TEXT, state TEXT, at DATE"
        connection.exec_driver_sql(f"CREATE TABLE purchase ({columns})")
        for number, status in enumerate(statuses):
            shown = "NULL" if status is None else f"'{status}'"
            connection.exec_driver_sql(f"INSERT INTO purchase VALUES ({number}, 'c', {shown}, NULL)")
    yield engine
    engine.dispose()


def export(engine: Engine, folder: Path, statuses: dict[str, Any]) -> None:
    optional = ("total_pence", "due_ms", "paid_ms", "timed_out_ms", "cancelled_ms")
    names = dict.fromkeys(optional, "") | {"table": "purchase", "status": "state", "placed_ms": "at"}
    mapping = as_mapping({"orders": names | {"statuses": statuses}}, "names.toml")
    url = engine.url.render_as_string(hide_password=False)
    Inputs(url, mapping=mapping).open().export_orders(folder)


def test_every_unknown_status_is_told_with_its_rows_and_what_to_write(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnreadable) as raised:
        export(engine, tmp_path, {})
    said = str(raised.value)
    assert "Table 'purchase'" in said
    assert "column 'state', has what is none of PLACED, PAID, TIMED_OUT, CANCELLED: " in said
    assert "'new' 3 times, '' 1 times, NULL 1 times, 'placed' 1 times. " in said
    assert (
        '[orders.statuses] of a --mapping what each is, as PLACED = ["PLACED", "new", "", "placed"] ' in said
    )


def test_what_is_said_to_be_written_is_taken(engine: Engine, tmp_path: Path) -> None:
    export(engine, tmp_path, {"PLACED": ["PLACED", "placed", ""], "PAID": ["PAID", "new"]})
    found = pq.read_table(tmp_path / "orders.parquet")["status"].value_counts().to_pylist()
    assert {one["values"]: one["counts"] for one in found} == {"PLACED": 23, "PAID": 4}


def test_a_mapped_status_that_none_of_ours_is_left_of_is_told(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnreadable, match=r"CANCELLED: 'placed' 1 times\. Write"):
        export(engine, tmp_path, {"PLACED": ["PLACED", "", "new"]})


def test_a_table_without_any_status_is_told(engine: Engine, tmp_path: Path) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE purchase SET state = NULL")
    with pytest.raises(DatabaseUnreadable, match=r"NULL 27 times"):
        export(engine, tmp_path, {"PAID": "new"})
    export(engine, tmp_path / "mapped", {"PLACED": ""})
    assert set(pq.read_table(tmp_path / "mapped" / "orders.parquet")["status"].to_pylist()) == {"PLACED"}
