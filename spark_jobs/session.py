"""A Spark of our own for one audit: local, quiet, on two cores and 2 GB, gone when the audit is.

Spark is started by hand so that all it says goes to one file and nothing to the terminal, and so that it
can be ended: pyspark itself keeps one JVM for the life of the process. A JVM that somebody else has started
(`PYSPARK_GATEWAY_PORT`, as `spark-submit` sets it) is used as it is, and goes on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from spark_jobs.errors import JavaMissing
from spark_jobs.java import java_home
from spark_jobs.source import TidewheelSource

SETTINGS: Final = {
    "spark.app.name": "tidewheel audit",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.ansi.enabled": "true",
    # Else each call on a column is followed by others that tell Java which line of ours made it.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
"""Python's workers keep the memory that a batch has freed for the next one: glibc would give it back to the
system and ask for it again, page by page, at a twentieth of what reading a log costs."""
_STOP_TIMEOUT_S: Final = 20
MASTER_DEFAULT: Final = "local[2]"
PACKAGES: Final = Path(__file__).parents[1]
"""Where Python's workers find our packages: an installation keeps them off everybody's path."""
JAVA_OPTIONS: Final = "-XX:-DontCompileHugeMethods"
"""All cases of an order are judged in one generated method, which Java else never compiles."""
QUICK_JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Compiles once and cheaply: a third less work for an audit of seconds, and a fifth less for one of minutes,
since the method of all cases is so large that optimizing it takes longer than running it (10 M orders)."""


@contextlib.contextmanager
def spark_session(
    scratch: Path, log_file: Path, *, quick: bool, master: str = MASTER_DEFAULT
) -> Iterator[SparkSession]:
    """Yield a session that knows the data source "tidewheel", until the block ends.

    Spark's temporary files go below `scratch`, its output to `log_file`; `quick` for an audit, of which Java
    does the smaller part. Raise `JavaMissing`.
    """
    settings = SETTINGS | {
        "spark.master": master,
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} {QUICK_JAVA_OPTIONS if quick else ''}".strip(),
    }
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    with _environment(java_home(scratch)), open(log_file, "ab") as output, unlogged_interrupts():
        gateway = _launch(conf, output, log_file)
        try:
            with SparkContext(conf=conf, gateway=gateway) as context:
                session = SparkSession(context)
                session.dataSource.register(TidewheelSource)
                yield session
                session.stop()
        finally:
            _end(gateway)


@contextlib.contextmanager
def unlogged_interrupts() -> Iterator[None]:
    """Keep the gateway from logging Ctrl-C with a traceback, until the block ends: it raises it as well."""
    logging.root.addFilter(_is_no_interrupt)
    try:
        yield
    finally:
        logging.root.removeFilter(_is_no_interrupt)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    is_interrupt = record.exc_info is not None and record.exc_info[0] is KeyboardInterrupt
    return not (is_interrupt and record.module == "java_gateway")


@contextlib.contextmanager
def _environment(home: Path) -> Iterator[None]:
    """Set the variables that Spark's scripts and Python workers read, until the block ends."""
    wanted = {
        "JAVA_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PACKAGES), os.environ.get("PYTHONPATH")])),
    }
    before = {name: os.environ.get(name) for name in (*wanted, "SPARK_HOME", "PYSPARK_SUBMIT_ARGS")}
    for name in before:
        os.environ.pop(name, None)
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _launch(conf: SparkConf, output: Any, log_file: Path) -> Any:
    try:
        return launch_gateway(conf, {"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]
    except PySparkException as error:
        raise JavaMissing(f"The one that was found cannot start Spark; {log_file} says why.") from error


def _end(gateway: Any) -> None:
    if gateway.proc is None:
        gateway.close()
    else:
        gateway.shutdown()
        gateway.proc.stdin.close()
        try:
            gateway.proc.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            gateway.proc.kill()
            gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None
