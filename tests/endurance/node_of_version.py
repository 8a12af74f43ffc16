"""`tidewheel serve` of a program that supports another version of the shared log's records."""

from __future__ import annotations

import os

from sharedlog import versions

# An older program is the same one with another constant.
versions.SUPPORTED = int(os.environ["SUPPORTED_VERSION"])  # type: ignore[misc]

from services.cli.main import main  # noqa: E402 -- what reads it comes later

main()
