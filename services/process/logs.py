"""Logs: one event, one line, to stderr; text on a terminal, JSON everywhere else, unless told otherwise."""

from __future__ import annotations

import logging
import sys
from typing import Final

import structlog

TRACEBACKS = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)
"""Without the variables of each frame: they are long, and may hold what customers sent."""

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure(level: str = "info", form: str = "auto") -> None:
    """Set structlog up for this process: `level` and above, as `text`, `json` or `auto` (by what stderr is).

    Libraries' own logs from warning upwards come out the same way.
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
    errors: list[structlog.typing.Processor] = [] if is_text else [TRACEBACKS]
    structlog.configure(
        processors=[*shared, *errors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *errors, renderer],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=max(least, logging.WARNING), force=True)
