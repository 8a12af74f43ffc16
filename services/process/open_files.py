"""The limit of a process on open files, which include connections."""

from __future__ import annotations

import resource
from contextlib import suppress


def allow_many_files() -> None:
    """Raise the limit of this process on open files as far as the system permits."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
