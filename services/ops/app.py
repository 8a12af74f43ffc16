"""The application that serves the HTTP interface. Each operation of the table is bound to its object."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route

from services.auth.refusals import Refusals
from services.explain.evidence import Files
from services.live.bulk.dead_letter_tasks import DeadLetterTasks
from services.live.bulk.move_tasks import MoveTasks
from services.live.bulk.timer_tasks import TimerTasks
from services.live.clients.client_metrics import ClientMetrics
from services.live.clients.clients import ClientRequests, NoClients
from services.live.clients.consumers import ConsumersOf, no_consumers
from services.live.live_broker import LiveBroker
from services.ops import entrance
from services.ops.administration.access import AccessApi
from services.ops.administration.clients import ClientsApi
from services.ops.administration.clock import ClockApi
from services.ops.administration.groups import GroupsApi
from services.ops.administration.journal import JournalApi, journalled
from services.ops.administration.topics import TopicsApi
from services.ops.bulk.dead_letters import DeadLettersApi
from services.ops.bulk.tasks import TasksApi
from services.ops.entrance import ConsoleLink, Entrance
from services.ops.gate import Demands, Gate
from services.ops.messages.explain import ExplainApi
from services.ops.messages.messages import MessagesApi
from services.ops.messages.receiving import ReceivingApi
from services.ops.messages.search import SearchApi
from services.ops.messages.sending import SendingApi
from services.ops.metrics.broker_metrics import Metrics
from services.ops.needs import admitted
from services.ops.openapi import document
from services.ops.probes import Probes
from services.ops.requests.callers import authority_of
from services.ops.requests.polls import Polls
from services.ops.requests.statuses import WRONG_METHOD, bug, disk_failed, refuse, unknown, wrong_method
from services.ops.routes import OPERATIONS, TASKS
from services.ops.timers.schedules import SchedulesApi
from services.ops.timers.timers import TimersApi
from services.ops.transactions.halves import HalvesApi
from services.ops.transactions.transactions import TransactionsApi
from services.ops.whoami import WhoamiApi
from tidewheel.errors import TidewheelError

HANDLERS = {
    TidewheelError: refuse,
    WRONG_METHOD: wrong_method,
    HTTPException: unknown,
    OSError: disk_failed,
    Exception: bug,
}
"""What becomes of what a handler raises: always JSON that says so."""


def make_app(
    live: LiveBroker,
    metrics: Metrics,
    consuming: ConsumersOf = no_consumers,
    files: Files | None = None,
    refusals: Refusals | None = None,
    demands: Demands | None = None,
    clients: ClientRequests | None = None,
    measured: ClientMetrics | None = None,
    console: ConsoleLink | None = None,
) -> Starlette:
    """Return the application that serves the HTTP interface of a broker. `files` are the files of its store.

    The application accepts only requests that meet `demands`, which by default are the checks for loopback.
    With a `console`, `/` redirects to the console. Each task in `state.tasks` must be closed before the
    broker. `state.polls` contains the open long polls.
    """
    refusals, demands = refusals or Refusals(live.clock.real_ms), demands or Demands()
    polls = Polls()
    metrics.count_polls(polls.counts)
    tasks = TimerTasks(live), DeadLetterTasks(live), MoveTasks(live)
    explaining = ExplainApi(live, files)
    parts = (
        Probes(live, metrics, document),
        TopicsApi(live),
        MessagesApi(live, polls),
        SearchApi(live),
        SendingApi(live),
        ClockApi(live),
        TimersApi(live),
        TasksApi(live, dict(zip(TASKS, tasks, strict=True))),
        TransactionsApi(live),
        HalvesApi(live, polls),
        SchedulesApi(live),
        GroupsApi(live, consuming),
        ReceivingApi(live, polls),
        DeadLettersApi(live),
        AccessApi(live, refusals, asks=bool(demands.token)),
        JournalApi(live),
        WhoamiApi(live, asks=bool(demands.token)),
        ClientsApi(live, clients or NoClients(), measured),
        explaining,
    )
    served = routes(parts, live)
    if console is not None:
        served.append(Route(entrance.PATH, Entrance(console, asks=bool(demands.token)).enter))
    app = Starlette(routes=served, exception_handlers=HANDLERS)
    authority = authority_of(live.access)
    app.add_middleware(Gate, demands=demands, refusals=refusals, authority=lambda: authority)
    app.state.tasks, app.state.polls = (*tasks, explaining), polls
    return app


def routes(parts: tuple[Any, ...], live: LiveBroker) -> list[Route]:
    """Return the routes of the table.

    Each route is bound to the object of its class and checks the caller's rights.
    """
    return [
        Route(
            one.path,
            admitted(one, journalled(one, partial(one.handler, part), live), live),
            methods=[one.method],
            name=one.handler.__name__,
        )
        for part in parts
        for one in OPERATIONS[type(part)]
    ]
