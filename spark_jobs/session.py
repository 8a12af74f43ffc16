"""A local Spark session for one audit, on two cores and 2 GB, which ends with the audit.

The JVM is launched here, so that all of its output goes to one file and nothing to the terminal, and so that
it can be stopped: pyspark itself keeps one JVM for the life of the process. A JVM that was started elsewhere
(`PYSPARK_GATEWAY_PORT`, as set by `spark-submit`) is used without changes, and continues to run.
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
    # Otherwise each call on a column causes further calls that pass its line of Python code to Java.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
"""The settings of every session.

With the MALLOC variables, Python workers keep the memory of a batch for the next one. By default, glibc would
return it to the system and allocate it again, page by page, which is a twentieth of the cost to read a log.
"""
_STOP_TIMEOUT_S: Final = 20
MASTER_DEFAULT: Final = "local[2]"
PACKAGES: Final = Path(__file__).parents[1]
"""The folder of our packages, for the path of Python workers, since an installation does not add it."""
JAVA_OPTIONS: Final = "-XX:-DontCompileHugeMethods"
"""The cases of an order are one generated method, so large that Java does not compile it by default."""
QUICK_JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Only the first compiler tier: a third less work for an audit of seconds, and a fifth less for one of
minutes, since it takes longer to optimize the large method of all cases than to run it (10 M orders)."""


@contextlib.contextmanager
def spark_session(
    scratch: Path, log_file: Path, *, quick: bool, master: str = MASTER_DEFAULT
) -> Iterator[SparkSession]:
    """Yield a session with the data source "tidewheel" until the block ends; raise `JavaMissing`.

    Spark's temporary files are below `scratch`, and its output is appended to `log_file`. `quick` adds
    `QUICK_JAVA_OPTIONS`, for an audit, where Java does the smaller part of the work.
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
    """Keep the gateway from logging a traceback for Ctrl-C, which it also raises, until the block ends."""
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
    """Set the environment variables of Spark's scripts and Python workers until the block ends."""
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
