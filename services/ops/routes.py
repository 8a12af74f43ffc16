"""The HTTP interface as one table: what is served, and what `/openapi.json` says of it.

Each noun is one file, which holds in this order: its paths, what is asked (pydantic models, checked on the
way in), what is answered (typed dictionaries: mypy holds the code to them, OpenAPI is written from them), its
handlers, and its table of operations. A new request is a handler, a row there, and one in `needs`, which says
what right it takes; a new noun is a file, a row here and an object in `make_app` (`services.ops.app`). What
nouns share is in `request` (what is asked), `messages` (what a message says), `errors` (what is answered
instead) and `operation` (a row).

64-bit numbers (offsets, times) go out as strings, because JavaScript's numbers cannot hold them. Times are
real time; the broker's own differs on a virtual clock (`services.ops.clock`).

The handlers of a class are given together, so that whoever builds the application (`services.ops.app`) only
hands in an object of each class. The document lists nouns in the order of the table.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from services.ops import (
    access,
    clients,
    clock,
    dead_letters,
    explain,
    groups,
    halves,
    journal,
    messages,
    probes,
    receiving,
    schedules,
    search,
    sending,
    tasks,
    timer_tasks,
    timers,
    topics,
    transactions,
    whoami,
)
from services.ops.operation import Operation

TASKS = (timer_tasks.TIMERS, dead_letters.DEAD_LETTERS)
OPERATIONS: dict[type[Any], tuple[Operation, ...]] = {
    probes.Probes: probes.OPERATIONS,
    topics.TopicsApi: topics.OPERATIONS,
    messages.MessagesApi: messages.OPERATIONS,
    search.SearchApi: search.OPERATIONS,
    sending.SendingApi: sending.OPERATIONS,
    clock.ClockApi: clock.OPERATIONS,
    timers.TimersApi: timers.OPERATIONS,
    tasks.TasksApi: tuple(chain.from_iterable(map(tasks.operations_of, TASKS))),
    transactions.TransactionsApi: transactions.OPERATIONS,
    halves.HalvesApi: halves.OPERATIONS,
    schedules.SchedulesApi: schedules.OPERATIONS,
    explain.ExplainApi: explain.OPERATIONS,
    groups.GroupsApi: groups.OPERATIONS,
    receiving.ReceivingApi: receiving.OPERATIONS,
    dead_letters.DeadLettersApi: dead_letters.OPERATIONS,
    access.AccessApi: access.OPERATIONS,
    journal.JournalApi: journal.OPERATIONS,
    whoami.WhoamiApi: whoami.OPERATIONS,
    clients.ClientsApi: clients.OPERATIONS,
}
