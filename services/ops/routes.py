"""The table of all operations of the HTTP interface, from which `/openapi.json` is generated.

Each noun is one file, which contains its paths, the shapes of its queries and bodies (pydantic models), the
shapes of its answers (typed dictionaries, which mypy checks), its handlers, and its table of operations, in
this order. A new operation requires a handler, a row in this table, and a row in `needs` with the required
right. A new noun requires a file, a row in the table of this file, and an object in `make_app`
(`services.ops.app`). Code that the nouns share is in `request` (queries and bodies), `messages` (contents of
messages), `errors` (errors of the HTTP port) and `operation` (a row).

64-bit numbers (offsets, times) are returned as strings, because JavaScript numbers cannot represent them.
Times are real times, which differ from the broker's time on a virtual clock
(`services.ops.administration.clock`).

The operations are grouped by the class of their handlers, so `services.ops.app` passes a single object for
each class. The OpenAPI document lists nouns in the order of this table.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from services.ops import probes, whoami
from services.ops.administration import access, clients, clock, groups, journal, topics
from services.ops.bulk import dead_letters, moves, tasks, timer_tasks
from services.ops.messages import explain, messages, receiving, search, sending
from services.ops.requests.operation import Operation
from services.ops.timers import schedules, timers
from services.ops.transactions import halves, transactions

TASKS = (timer_tasks.TIMERS, dead_letters.DEAD_LETTERS, moves.MOVES)
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
