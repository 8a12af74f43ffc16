"""The programs of docs/spark.md, in a session that is there, on the log of a shop's day."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Shop

PROGRAMS = re.findall(
    r"^```python\n(.*?)^```$",
    (Path(__file__).parents[2] / "docs" / "spark.md").read_text(),
    re.DOTALL | re.MULTILINE,
)


def test_the_documented_programs_read_a_store(
    spark: SparkSession, traded: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table, stream = (
        text.replace("/var/lib/tidewheel", str(traded.store)).replace("2026-11-21", "2023-11-01")
        for text in PROGRAMS
    )
    names: dict[str, Any] = {}
    exec(table, names)
    assert names["paid"].where("keys IS NOT NULL AND body IS NOT NULL").count() > 0
    exec(
        stream.replace('"checkpoint"', f'"{tmp_path}/checkpoint"').replace('"out"', f'"{tmp_path}/out"'),
        names,
    )
    followed = spark.read.parquet(f"{tmp_path}/out").count()
    assert followed == spark.read.format("tidewheel").load(str(traded.store)).count()
