"""The log as a Spark data source for user sessions.

    from tidewheel.spark import register

    register(spark)
    spark.read.format("tidewheel").load("/var/lib/tidewheel")

The data source is part of the broker's packages, which are not on the import path (`tidewheel/command.py`),
and Spark imports it in the session's process and in each worker process. The session therefore gets a zip
archive of these packages, which Spark adds to both import paths. A program that has a package with the same
name as a broker package (`commitlog`, `txn`, ...) cannot use the data source in the same process.

    python -m tidewheel.spark tidewheel-spark.zip

writes this archive for `spark-submit --py-files`.
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
    """Register the format "tidewheel" with a session and its workers.

    Raises:
        LibraryMissing: If the extra `audit` is not installed.
        ConfigurationError: If the program has packages with the names of the broker's packages.
    """
    require("audit")
    path = Path(tempfile.mkdtemp(prefix="tidewheel-spark-")) / NAME
    write_archive(path)
    context = spark.sparkContext
    context.addPyFile(str(path))
    # The processes that plan a stream do not receive these files, only the environment.
    before = context.environment.get("PYTHONPATH", "")
    context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, [before, str(path)]))
    found = source()
    spark.dataSource.register(found)


def source() -> Any:
    """Return the class of the data source. It is imported by name from the archive or the broker's folder."""
    for package in PACKAGES:
        found = importlib.import_module(package).__file__ or ""
        if not (Path(found).parents[1].name == NAME or Path(found).is_relative_to(broker_path())):
            raise ConfigurationError(
                f"{found} has the name of a package of Tidewheel's, so Spark cannot find ours. "
                "Read the log in a program that has none of its own."
            )
    return importlib.import_module("spark_jobs.source").TidewheelSource


def write_archive(path: Path) -> int:
    """Write the archive of the modules that the data source and the audit import.

    Returns the number of files.

    Libraries that must be installed on the workers (numpy, pyarrow, isal, pyspark) are not included.
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
