"""Whom `tidewheel status`, `top`, `check` and `debug bundle` ask: a broker, or the nodes of a cluster.

Cost: eight sequential requests. Groups and metrics are full scans in the broker.
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
"""Timeout of one answer."""


def answers_of(http: str | None, audits: Path | None, names: frozenset[str] | None = None) -> Answers:
    """Return the answers for `services.status.judgement`; only `names`, if given.

    Of several addresses the first that accepts a connection is asked, or the leader.
    Raise `BrokerUnreachable`, `AnswerLate`, `ConfigurationError`.
    """
    api = broker_at(http, WAIT_SECONDS)
    given = [str(HttpAddresses((one,))) for one in client_settings(http).http.all]
    others = {one: broker_at(one, WAIT_SECONDS) for one in given if one != api.address}
    return asking.answers_of(api, others, audits, names)
