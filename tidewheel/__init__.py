"""Client library for user processes: client, barrier, outbox, idempotence guard, and pytest plugin.

    from tidewheel import Barrier

Rules:
1. An installation adds only this package to the import path of the user. The broker's packages (`services`,
   `commitlog`, ...) are in the folder `broker` of this package and can be imported only in the broker's own
   processes.
2. This package never imports them and communicates with the broker over the network.
3. Names are imported on first use, so `import tidewheel` is fast and requires no library. If a required
   library is not installed, `LibraryMissing` is raised with the pip command to install it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidewheel import errors as errors
    from tidewheel import idempotence as idempotence
    from tidewheel import outbox as outbox
    from tidewheel.barrier import Barrier as Barrier
    from tidewheel.barrier import Outcome as Outcome
    from tidewheel.barrier import barrier_sql as barrier_sql
    from tidewheel.client.clients import AsyncClient as AsyncClient
    from tidewheel.client.clients import Client as Client
    from tidewheel.client.endings import Backoff as Backoff
    from tidewheel.client.endings import Reject as Reject
    from tidewheel.client.endings import Retry as Retry
    from tidewheel.client.handles import Message as Message
    from tidewheel.client.handles import Timer as Timer
    from tidewheel.client.values import NewMessage as NewMessage
    from tidewheel.client.values import Sent as Sent
    from tidewheel.client.values import SomeRefused as SomeRefused
    from tidewheel.client.values import TimerResult as TimerResult
    from tidewheel.client.values import Verdict as Verdict
    from tidewheel.client.worker import Worker as Worker
    from tidewheel.errors import TidewheelError as TidewheelError
    from tidewheel.errors import TransactionEnded as TransactionEnded
    from tidewheel.idempotence import OnceListener as OnceListener
    from tidewheel.idempotence import RedisGuard as RedisGuard
    from tidewheel.idempotence import async_once as async_once
    from tidewheel.idempotence import consumed_sql as consumed_sql
    from tidewheel.idempotence import identity_of as identity_of
    from tidewheel.idempotence import once as once
    from tidewheel.idempotence import once_listener as once_listener
    from tidewheel.outbox import Relay as Relay
    from tidewheel.outbox import outbox_sql as outbox_sql
    from tidewheel.testing.kit import Tidewheel as Tidewheel

HOME_OF = {
    "Barrier": "barrier",
    "Outcome": "barrier",
    "barrier_sql": "barrier",
    "AsyncClient": "client.clients",
    "Client": "client.clients",
    "Backoff": "client.endings",
    "Reject": "client.endings",
    "Retry": "client.endings",
    "Message": "client.handles",
    "Timer": "client.handles",
    "NewMessage": "client.values",
    "Sent": "client.values",
    "SomeRefused": "client.values",
    "TimerResult": "client.values",
    "Verdict": "client.values",
    "Worker": "client.worker",
    "TidewheelError": "errors",
    "TransactionEnded": "errors",
    "OnceListener": "idempotence",
    "RedisGuard": "idempotence",
    "async_once": "idempotence",
    "consumed_sql": "idempotence",
    "identity_of": "idempotence",
    "once": "idempotence",
    "once_listener": "idempotence",
    "Relay": "outbox",
    "outbox_sql": "outbox",
    "Tidewheel": "testing.kit",
}
"""Maps each lazily imported name to its module."""
MODULES = ("errors", "idempotence", "outbox")

__all__ = [*HOME_OF, *MODULES]  # contains only strings


def __getattr__(name: str) -> Any:
    if name in HOME_OF:
        return getattr(importlib.import_module(f"tidewheel.{HOME_OF[name]}"), name)
    if name in MODULES:
        return importlib.import_module(f"tidewheel.{name}")
    raise AttributeError(f"module 'tidewheel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
