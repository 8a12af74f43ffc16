"""Nightly audits:

`tidewheel audit run` is run daily at a given time in a time zone, each time in a separate process.

Rules:
- Only one run is active at a time. If a run is still active at the next scheduled time, that time is skipped.
  Each folder has at most one scheduler, which holds a lock.
- If the machine was suspended at the scheduled time, one run starts when it resumes.
- The command is the same as on the command line, and its output is written to `<out>/scheduler.log`. Its exit
  code is logged: 0 balanced, 1 findings, any other code a failure.
- After each run, old runs are deleted. Seals are kept, because they contain their own identities.
- When the scheduler is stopped, the active run is interrupted and leaves no partial result.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import structlog
from apscheduler.schedulers.blocking import BlockingScheduler
from apscheduler.triggers.cron import CronTrigger
from prometheus_client import start_http_server

from services.ops.metrics.audit_metrics import AuditMetrics
from services.process.ending import signals_to_end
from services.process.errors import PortTaken
from services.settings.config import Address
from spark_jobs.runs import forget, scratch_prefix
from tidewheel.command import COMMAND
from tidewheel.errors import ConfigurationError, RefusedByState

ANSWERS: Final = {0: "balanced", 1: "findings"}
STOP_SECONDS: Final = 30
_CLOCK: Final = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Nightly:
    """The schedule: `arguments` are those of `tidewheel audit run`, and the newest `keep` runs are kept."""

    at: str
    zone: str
    arguments: tuple[str, ...]
    out: Path
    keep: int
    metrics: Address | None = None
    is_first_now: bool = False

    def trigger(self) -> CronTrigger:
        """Return the trigger. Raises `ConfigurationError` for an invalid time or zone."""
        found = _CLOCK.fullmatch(self.at)
        if found is None:
            raise ConfigurationError(f"--at is {self.at!r}: write it as 02:00.")
        return CronTrigger(hour=int(found[1]), minute=int(found[2]), timezone=zone_of(self.zone))


def zone_of(name: str) -> ZoneInfo:
    """Return a time zone. Raises `ConfigurationError`."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigurationError(f"--zone is {name!r}: write it as Europe/London, or UTC.") from error


@dataclass(slots=True)
class AuditJob:
    """Runs audits in separate processes, one after the other."""

    nightly: Nightly
    _process: subprocess.Popen[bytes] | None = None
    _is_stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> int | None:
        """Run an audit and delete old runs. Returns the exit code, or None if the scheduler is stopping."""
        if self._is_stopping.is_set():
            return None
        with open(self.nightly.out / "scheduler.log", "ab") as words:
            self._process = subprocess.Popen(
                command(self.nightly.arguments), stdin=subprocess.DEVNULL, stdout=words, stderr=words,
                start_new_session=True,
            )  # fmt: skip
            log.info("audit begins", pid=self._process.pid)
            exit_code = self._process.wait()
        gone = forget(self.nightly.out, self.nightly.keep)
        answer = ANSWERS.get(exit_code, f"could not be done: see {self.nightly.out / 'scheduler.log'}")
        log.info("audit ended", exit_code=exit_code, answer=answer, runs_deleted=len(gone))
        return exit_code

    def stop(self) -> None:
        """Interrupt the active run. If it does not end in time or leaves a child process, it is killed."""
        self._is_stopping.set()
        if self._process is None or self._process.poll() is not None:
            return
        for _ in range(STOP_SECONDS):  # repeated, because library code may swallow an interrupt
            self._process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
                break
        with suppress(ProcessLookupError):  # a Java process that is starting may outlive its Python parent
            os.killpg(self._process.pid, signal.SIGKILL)
        for scratch in self.nightly.out.glob(
            f"{scratch_prefix(self._process.pid)}*"
        ):  # may have been recreated by the Java process
            shutil.rmtree(scratch, ignore_errors=True)


def command(arguments: Sequence[str]) -> list[str]:
    """Return the command line of a run in the current Python environment."""
    return [*COMMAND, "audit", "run", *arguments]


def serve(nightly: Nightly, announce: Callable[[datetime, Address | None], None]) -> None:
    """Run audits until SIGTERM or Ctrl-C.

    `announce` is called with the next time and the address of the metrics.

    Raises `ConfigurationError`, `PortTaken`, and `RefusedByState` if the folder already has a scheduler.
    """
    trigger, job = nightly.trigger(), AuditJob(nightly)
    scheduler = BlockingScheduler(timezone=trigger.timezone)
    first = {"next_run_time": datetime.now(trigger.timezone)} if nightly.is_first_now else {}
    scheduler.add_job(job.run, trigger, max_instances=1, coalesce=True, misfire_grace_time=None, **first)
    with lock(nightly.out), measuring(nightly) as address, told_to_stop(scheduler, job):
        announce(next_time(trigger), address)
        scheduler.start()


def next_time(trigger: CronTrigger) -> datetime:
    """Return the next time of the trigger."""
    found: datetime = trigger.get_next_fire_time(None, datetime.now(trigger.timezone))
    return found


@contextmanager
def lock(out: Path) -> Iterator[None]:
    """Lock the folder for this scheduler. Raises `ConfigurationError`, `RefusedByState`."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = open(out / "scheduler.lock", "ab")  # noqa: SIM115  closed below, after the whole block
    except OSError as error:
        raise ConfigurationError(f"{out} cannot be written ({error.strerror}). Correct --out.") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RefusedByState(
                f"{out} has a scheduler already. Stop that one, or give another --out."
            ) from error
        yield


@contextmanager
def measuring(nightly: Nightly) -> Iterator[Address | None]:
    """Serve the metrics if an address is given. Raises `PortTaken`."""
    if nightly.metrics is None:
        yield None
        return
    host, port = nightly.metrics
    try:
        server, thread = start_http_server(port, host, AuditMetrics(nightly.out).registry)
    except OSError as error:
        raise PortTaken(f"{nightly.metrics} ({error.strerror}). Give another --metrics.") from error
    try:
        yield Address(host, server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def told_to_stop(scheduler: Any, job: AuditJob) -> Iterator[None]:
    """Stop the active run and the scheduler on a termination signal."""

    def stop(*_: object) -> None:
        job.stop()
        scheduler.shutdown(wait=False)

    before = {number: signal.signal(number, stop) for number in signals_to_end()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
