"""uvicorn inside the broker's loop; signals belong to the composition root, so it may not take them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette

GRACE_SECONDS = 1


class HttpServer(uvicorn.Server):
    """A server for sockets that listen already; set `should_exit` to end it."""

    def __init__(self, app: Starlette) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield
