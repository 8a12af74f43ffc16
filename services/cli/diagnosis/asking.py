"""Queries of `tidewheel status`, `top`, `check` and `debug bundle` to a broker or the nodes of a cluster.

Cost: eight sequential requests. Groups and metrics require full scans in the broker.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from services.cli.terminal.api import broker_at
from services.http.calls import client_settings
from services.settings.config import HttpAddresses
from services.status import asking
from services.status.judgement import Answers

WAIT_SECONDS: Final = 5
"""Timeout for one answer in seconds."""


def answers_of(http: str | None, audits: Path | None, names: frozenset[str] | None = None) -> Answers:
    """Return the answers for `services.status.judgement`, restricted to `names` if given.

    If there are several addresses, the leader or the first address that accepts a connection is queried.
    Raises `BrokerUnreachable`, `AnswerLate`, `ConfigurationError`.
    """
    api = broker_at(http, WAIT_SECONDS)
    given = [str(HttpAddresses((one,))) for one in client_settings(http).http.all]
    others = {one: broker_at(one, WAIT_SECONDS) for one in given if one != api.address}
    return asking.answers_of(api, others, audits, names)
