"""Implementation of the command `tidewheel work` (`python -m tidewheel.client.work MODULE:NAME`).

The worker module is imported as part of the application: the current directory is first on the import path,
and the broker's packages are not on it. The exit codes are those of the commands (`services.cli.main`).
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidewheel.client.http import LIBRARIES
from tidewheel.client.worker import CONCURRENCY_MAX, Worker
from tidewheel.errors import ConfigurationError, TidewheelError
from tidewheel.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

log = logging.getLogger("tidewheel.worker")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the worker given by the arguments until it is stopped. An error is printed as one line."""
    parser = argparse.ArgumentParser("tidewheel work")
    parser.add_argument("worker", metavar="MODULE:NAME")
    parser.add_argument("--concurrency", type=int, default=None)
    given = parser.parse_args(arguments)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter((OnTerminal if sys.stderr.isatty() else logging.Formatter)(LOG_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for name in LIBRARIES:  # the library logs each request at level INFO
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        worker = found(given.worker)
        if given.concurrency is not None:
            set_concurrency(worker, given.concurrency)
        for one in worker.consumers:
            name = getattr(one.function, "__qualname__", repr(one.function))
            log.info("%s of group %s: %s, %d at once", one.topic, one.group, name, one.concurrency)
        worker.run()
    except TidewheelError as error:
        if isinstance(error, Unimportable):
            print(own_lines(error.cause), file=sys.stderr, end="")
        print(f"{error.code} {error}", file=sys.stderr)
        sys.exit(error.exit_code)


class OnTerminal(logging.Formatter):
    """Escapes nonprintable characters, because an error message may quote an untrusted body.

    A message is one line. Traceback lines are indented, so that they cannot be mistaken for messages.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 # of logging
        """Return the message as one line."""
        return one_line(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 # of logging
        """Return an indented traceback."""
        return "\n".join(f"  {one_line(line)}" for line in super().formatException(ei).split("\n"))


class Unimportable(ConfigurationError):
    """A setting cannot be used."""

    def __init__(self, detail: str, cause: Exception) -> None:
        super().__init__(detail)
        self.cause = cause


def own_lines(error: Exception) -> str:
    """Return the traceback of a failed import, without the frames of the import machinery."""
    told = traceback.TracebackException.from_exception(error)
    foreign = (__file__, importlib.__file__, "<frozen ")
    frames = [one for one in told.stack if not one.filename.startswith(foreign)]
    told.stack = traceback.StackSummary.from_list(frames)
    return "".join(told.format())


def found(target: str) -> Worker:
    """Import MODULE:NAME and return the worker. Raises `ConfigurationError`."""
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise ConfigurationError(f"{target!r} is no worker: write MODULE:NAME, such as shop.messages:worker.")
    sys.path.insert(0, os.getcwd())
    module = imported(module_name)
    worker = getattr(module, name, None)
    if not isinstance(worker, Worker):
        what = "not there" if worker is None else f"of type {type(worker).__name__}, not a tidewheel.Worker"
        raise ConfigurationError(f"{name!r} of module {module_name} is {what}.")
    return worker


def imported(name: str) -> ModuleType:
    """Import a module.

    Raises `ConfigurationError` if the module is missing, and `Unimportable` if its code fails.
    """
    if not all(name.split(".")):
        raise no_module(name)
    try:
        return importlib.import_module(name)
    except TidewheelError:
        raise
    except Exception as error:
        missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise no_module(missing) from None
        reason = traceback.format_exception_only(error)[-1].strip()
        raise Unimportable(f"Module {name!r} cannot be imported: {reason}", error) from None


def no_module(name: str) -> ConfigurationError:
    """Return the error for a missing module."""
    return ConfigurationError(f"There is no module {name!r} in {os.getcwd()}, nor on the path of Python.")


def set_concurrency(worker: Worker, concurrency: int) -> None:
    """Set the concurrency of each consumer. Raises `ConfigurationError`."""
    if not 1 <= concurrency <= CONCURRENCY_MAX:
        raise ConfigurationError(f"--concurrency is {concurrency}: give 1 to {CONCURRENCY_MAX}.")
    worker.consumers[:] = [replace(one, concurrency=concurrency) for one in worker.consumers]


if __name__ == "__main__":
    main()
