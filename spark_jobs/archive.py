"""What `spark-submit --py-files` needs to read stores: one zip of our own packages.

    python -m spark_jobs.archive tidewheel-spark.zip

It holds every module that the data source and the audit import, and nothing that a worker must have by
other ways (numpy, pyarrow, isal, pyspark).
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Final

PACKAGES: Final = ("tidewheel", "commitlog", "consumequeue", "timingwheel", "txn", "spark_jobs")
_SUFFIXES: Final = (".py", ".j2", ".css", ".html")


def write_archive(path: Path) -> int:
    """Writes the archive; returns how many files it holds."""
    root = Path(__file__).parents[1]
    files = [
        file
        for package in PACKAGES
        for file in sorted((root / package).rglob("*"))
        if file.suffix in _SUFFIXES
    ]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            archive.write(file, file.relative_to(root))
    return len(files)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Give the path of the archive: python -m spark_jobs.archive tidewheel-spark.zip")
    print(f"{write_archive(Path(sys.argv[1]))} files in {sys.argv[1]}")
