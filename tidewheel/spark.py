"""The log as a Spark data source, in a session of the user's own.

    from tidewheel.spark import register

    register(spark)
    spark.read.format("tidewheel").load("/var/lib/tidewheel")

The source is a part of the broker's packages, which are on nobody's path (`tidewheel/command.py`), and Spark
imports it in the session's process and in each worker's. So the session is given one zip of them, which Spark
puts on both paths. A program that has a package of one of their names (`commitlog`, `txn`, ...) beside it
cannot use the source in the same process.

    python -m tidewheel.spark tidewheel-spark.zip

writes that zip for `spark-submit --py-files`.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidewheel.command import broker_path
from tidewheel.errors import ConfigurationError
from tidewheel.extras import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES: Final = ("commitlog", "consumequeue", "timingwheel", "txn", "spark_jobs")
SUFFIXES: Final = (".py", ".j2", ".css", ".html")
NAME: Final = "tidewheel-spark.zip"


def register(spark: SparkSession) -> None:
    """Make the format "tidewheel" known to a session, and its workers able to read it.

    Raises:
        LibraryMissing: when the extra `audit` is not installed.
        ConfigurationError: when the program has packages of its own with the names of the broker's.
    """
    require("audit")
    path = Path(tempfile.mkdtemp(prefix="tidewheel-spark-")) / NAME
    write_archive(path)
    context = spark.sparkContext
    context.addPyFile(str(path))
    # The processes that plan a stream are given no such files, only the environment.
    before = context.environment.get("PYTHONPATH", "")
    context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, [before, str(path)]))
    found = source()
    spark.dataSource.register(found)


def source() -> Any:
    """Return the class of the data source: the broker's, so imported by name, and only from the zip."""
    for package in PACKAGES:
        found = importlib.import_module(package).__file__ or ""
        if not (Path(found).parents[1].name == NAME or Path(found).is_relative_to(broker_path())):
            raise ConfigurationError(
                f"{found} has the name of a package of Tidewheel's, so Spark cannot find ours. "
                "Read the log in a program that has none of its own."
            )
    return importlib.import_module("spark_jobs.source").TidewheelSource


def write_archive(path: Path) -> int:
    """Write the zip of what the data source and the audit import; return how many files it holds.

    It holds nothing that a worker must have by other ways (numpy, pyarrow, isal, pyspark).
    """
    own = Path(__file__).parent
    files = [(file, Path("tidewheel") / file.relative_to(own)) for file in own.glob("*.py")]
    for package in PACKAGES:
        there = sorted((broker_path() / package).rglob("*"))
        files += [(file, file.relative_to(broker_path())) for file in there if file.suffix in SUFFIXES]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, name in files:
            archive.write(file, name)
    return len(files)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"Give the path of the archive: python -m tidewheel.spark {NAME}")
    print(f"{write_archive(Path(sys.argv[1]))} files in {sys.argv[1]}")
