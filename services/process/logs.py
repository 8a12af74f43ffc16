"""Logs: one line per event on stderr, as text on a terminal and as JSON elsewhere, unless configured
otherwise.
"""

from __future__ import annotations

import logging
import sys
from typing import Final, TextIO, cast

import structlog

from services.process.streams import Unfailing
from tidewheel.printable import one_line

TRACEBACKS = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)
"""Local variables are omitted, because they are long and may contain customer data."""

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class Quoted:
    """A text that is shown in quotes, as a Python literal."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return repr(self._text)


def written_out(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape nonprintable characters in an event's texts, such as a client id, so that an event is
    one line.
    """
    for name, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[name] = one_line(value) if name == "event" else Quoted(value)
    return event


def configure(level: str = "info", form: str = "auto") -> None:
    """Configure structlog for this process.

    Events of `level` and above are logged as `text`, `json` or `auto` (depending on stderr).

    Log messages of libraries are included from level WARNING.
    """
    terminal = sys.stderr.isatty()
    is_text = terminal if form == "auto" else form == "text"
    least = LEVELS[level]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S.%f" if terminal else "iso", utc=not terminal),
    ]
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=terminal) if is_text else structlog.processors.JSONRenderer()
    )
    if is_text:
        shared.append(written_out)
    errors: list[structlog.typing.Processor] = [] if is_text else [TRACEBACKS]
    structlog.configure(
        processors=[*shared, *errors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, Unfailing(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *errors, renderer],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=max(least, logging.WARNING), force=True)
