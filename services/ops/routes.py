"""The HTTP interface as one table: what is served, and what `/openapi.json` says of it.

A new request is one line here and one handler. The handlers of a class are given together, so that whoever
builds the application only hands in an object of each class.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from services.ops.access_routes import ACCESS_OPERATIONS
from services.ops.answers import (
    ArrivalsAnswer,
    ClockAnswer,
    CountAnswer,
    DamageAnswer,
    DryRunAnswer,
    FoundMessagesAnswer,
    HistogramAnswer,
    MessagesAnswer,
    OneTimerAnswer,
    OneTopicAnswer,
    ReceiptAnswer,
    SetTimersAnswer,
    SummaryAnswer,
    TaskAnswer,
    TasksAnswer,
    TimerReceiptAnswer,
    TimersAnswer,
    TopicAnswer,
    TopicsAnswer,
    VerdictAnswer,
)
from services.ops.api import Api
from services.ops.client_routes import CLIENT_OPERATIONS
from services.ops.explain import ExplainApi, ExplainQuery, ExplanationAnswer
from services.ops.group_routes import GROUP_OPERATIONS
from services.ops.operation import Handler, Operation
from services.ops.probes import Probes
from services.ops.queries import (
    ArrivalsQuery,
    DamagedQuery,
    FilterQuery,
    FindQuery,
    HistogramQuery,
    MessagesQuery,
    OneTopicQuery,
    TimerQuery,
    TimersQuery,
)
from services.ops.schedule_shapes import (
    ComingQuery,
    NewSchedule,
    Preview,
    PreviewAnswer,
    ScheduleAnswer,
    SchedulesAnswer,
    SchedulesQuery,
)
from services.ops.schedules import SchedulesApi
from services.ops.shapes import NewMessage, NewTopic, TimeToPass
from services.ops.timer_shapes import MovedTimer, NamedTimer, NewTask, NewTimer, NewTimers
from services.ops.timers import TimersApi
from services.ops.transaction_shapes import (
    CheckBackAnswer,
    EndAnswer,
    HalvesAnswer,
    HalvesQuery,
    NewCheckBack,
    NewResolution,
    OneHalfAnswer,
    ProducersAnswer,
    ProducersQuery,
    QuestionAnswer,
    QuestionsAnswer,
    QuestionsQuery,
    TransactionsSummaryAnswer,
)
from services.ops.transactions import TransactionsApi


def verb(path: str, handler: Handler, body: type[BaseModel]) -> Operation:
    """Return a verb on one timer: all of its answers are verdicts."""
    answers = {200: VerdictAnswer, 404: VerdictAnswer, 409: VerdictAnswer}
    return Operation("POST", path, handler, answers, bodies=(body,), refusals=(400, 503))


OPERATIONS: dict[type[Any], tuple[Operation, ...]] = {
    Probes: (
        Operation("GET", "/livez", Probes.alive, {200: None}, refusals=()),
        Operation("GET", "/readyz", Probes.ready, {200: None, 503: None}, refusals=()),
        Operation("GET", "/metrics", Probes.scrape, {200: None}, refusals=()),
        Operation("GET", "/openapi.json", Probes.describe, {200: dict[str, Any]}, refusals=()),
    ),
    Api: (
        Operation("GET", "/api/topics", Api.topics, {200: TopicsAnswer}),
        Operation(
            "POST",
            "/api/topics",
            Api.create_topic,
            {201: TopicAnswer},
            bodies=(NewTopic,),
            refusals=(400, 409, 503),
        ),
        Operation(
            "GET", "/api/topics/{topic}", Api.topic, {200: OneTopicAnswer}, OneTopicQuery, refusals=(400, 404)
        ),
        Operation(
            "GET",
            "/api/topics/{topic}/messages",
            Api.messages,
            {200: MessagesAnswer},
            MessagesQuery,
            refusals=(400, 404),
        ),
        Operation(
            "GET",
            "/api/topics/{topic}/arrivals",
            Api.arrivals,
            {200: ArrivalsAnswer},
            ArrivalsQuery,
            refusals=(400, 404),
        ),
        Operation(
            "GET", "/api/messages", Api.find, {200: FoundMessagesAnswer}, FindQuery, refusals=(400, 404)
        ),
        Operation(
            "POST",
            "/api/messages",
            Api.send,
            {201: ReceiptAnswer},
            bodies=(NewMessage,),
            refusals=(400, 404, 409, 503),
        ),
        Operation("GET", "/api/clock", Api.clock, {200: ClockAnswer}),
        Operation(
            "POST",
            "/api/clock/advance",
            Api.advance,
            {200: ClockAnswer},
            bodies=(TimeToPass,),
            refusals=(400, 409, 503),
        ),
    ),
    TimersApi: (
        Operation("GET", "/api/timers", TimersApi.page, {200: TimersAnswer}, TimersQuery),
        Operation(
            "POST",
            "/api/timers",
            TimersApi.set,
            {201: TimerReceiptAnswer, 200: SetTimersAnswer},
            bodies=(NewTimer, NewTimers),
            refusals=(400, 404, 409, 503),
        ),
        Operation("GET", "/api/timers/count", TimersApi.count, {200: CountAnswer}, FilterQuery),
        Operation(
            "GET", "/api/timers/histogram", TimersApi.histogram, {200: HistogramAnswer}, HistogramQuery
        ),
        Operation("GET", "/api/timers/summary", TimersApi.summary, {200: SummaryAnswer}),
        Operation("GET", "/api/timers/damaged", TimersApi.damaged, {200: DamageAnswer}, DamagedQuery),
        Operation(
            "GET",
            "/api/timers/one",
            TimersApi.one,
            {200: OneTimerAnswer, 404: VerdictAnswer, 410: VerdictAnswer},
            TimerQuery,
        ),
        verb("/api/timers/cancel", TimersApi.cancel, NamedTimer),
        verb("/api/timers/move", TimersApi.move, MovedTimer),
        verb("/api/timers/fire", TimersApi.fire, NamedTimer),
        Operation("GET", "/api/timers/tasks", TimersApi.tasks, {200: TasksAnswer}),
        Operation(
            "POST",
            "/api/timers/tasks",
            TimersApi.start_task,
            {202: TaskAnswer, 200: DryRunAnswer},
            bodies=(NewTask,),
            refusals=(400, 503),
        ),
        Operation(
            "GET", "/api/timers/tasks/{id}", TimersApi.task, {200: TaskAnswer}, refusals=(400, 404)
        ),
        Operation(
            "DELETE", "/api/timers/tasks/{id}", TimersApi.stop_task, {200: TaskAnswer}, refusals=(400, 404)
        ),
    ),
    TransactionsApi: (
        Operation("GET", "/api/transactions", TransactionsApi.page, {200: HalvesAnswer}, HalvesQuery),
        Operation(
            "GET", "/api/transactions/summary", TransactionsApi.summary, {200: TransactionsSummaryAnswer}
        ),
        Operation(
            "GET", "/api/transactions/log", TransactionsApi.questions, {200: QuestionsAnswer}, QuestionsQuery
        ),
        Operation(
            "GET",
            "/api/transactions/producers",
            TransactionsApi.producers,
            {200: ProducersAnswer},
            ProducersQuery,
        ),
        Operation("GET", "/api/transactions/{id}", TransactionsApi.one, {200: OneHalfAnswer}),
        Operation(
            "POST",
            "/api/transactions/{id}/check",
            TransactionsApi.check,
            {200: QuestionAnswer},
            refusals=(400, 409),
        ),
        Operation(
            "POST",
            "/api/transactions/{id}/resolve",
            TransactionsApi.resolve,
            {200: EndAnswer},
            bodies=(NewResolution,),
            refusals=(400, 409, 503),
        ),
        Operation(
            "PUT",
            "/api/topics/{topic}/check-back",
            TransactionsApi.set_check_back,
            {200: CheckBackAnswer},
            bodies=(NewCheckBack,),
            refusals=(400, 404, 503),
        ),
    ),
    SchedulesApi: (
        Operation("GET", "/api/schedules", SchedulesApi.page, {200: SchedulesAnswer}, SchedulesQuery),
        Operation(
            "POST", "/api/schedules/preview", SchedulesApi.preview, {200: PreviewAnswer}, bodies=(Preview,)
        ),
        Operation(
            "GET",
            "/api/schedules/{name}",
            SchedulesApi.get,
            {200: ScheduleAnswer},
            ComingQuery,
            refusals=(400, 404),
        ),
        Operation(
            "PUT",
            "/api/schedules/{name}",
            SchedulesApi.set,
            {201: ScheduleAnswer, 200: ScheduleAnswer},
            bodies=(NewSchedule,),
            refusals=(400, 404, 503),
        ),
        Operation(
            "DELETE",
            "/api/schedules/{name}",
            SchedulesApi.delete,
            {200: ScheduleAnswer},
            refusals=(400, 404),
        ),
        Operation(
            "POST",
            "/api/schedules/{name}/pause",
            SchedulesApi.pause,
            {200: ScheduleAnswer},
            refusals=(400, 404),
        ),
        Operation(
            "POST",
            "/api/schedules/{name}/resume",
            SchedulesApi.resume,
            {200: ScheduleAnswer},
            refusals=(400, 404),
        ),
    ),
    ExplainApi: (
        Operation(
            "GET",
            "/api/explain",
            ExplainApi.explain,
            {200: ExplanationAnswer},
            ExplainQuery,
            refusals=(400, 404, 503),
        ),
    ),
    **GROUP_OPERATIONS,
    **ACCESS_OPERATIONS,
    **CLIENT_OPERATIONS,
}  # fmt: skip
