"""The requests about consumer groups and their dead letters: a part of the table of `services.ops.routes`."""

from __future__ import annotations

from typing import Any

from services.ops.dead_letter_shapes import (
    DeadLetterDryRunAnswer,
    DeadLetterEndAnswer,
    DeadLetterGroupsAnswer,
    DeadLettersAnswer,
    DeadLettersQuery,
    DeadLetterTaskAnswer,
    DeadLetterTasksAnswer,
    NewDeadLetterTask,
    NewRedrive,
    OneDeadLetterAnswer,
)
from services.ops.dead_letters import DeadLettersApi
from services.ops.group_shapes import (
    ConsumersAnswer,
    DeletedGroupAnswer,
    GroupAnswer,
    GroupsAnswer,
    GroupsQuery,
    NewGroup,
    NewPolicy,
    NewReset,
    OneTopicOfGroup,
    ResetAnswer,
)
from services.ops.groups import GroupsApi
from services.ops.operation import Operation
from services.ops.queries import Nothing

ASKED, STORED, DECIDED = (400, 404), (400, 404, 503), (400, 404, 409, 503)
"""The refusals of what only looks, of what stores, and of what may be forbidden by what has happened."""
GROUP, DEAD_LETTERS, DEAD_LETTER_TASKS = (
    "/api/groups/{group}",
    "/api/dead-letters/groups/{group}",
    "/api/dead-letters/tasks",
)

GROUP_OPERATIONS: dict[type[Any], tuple[Operation, ...]] = {
    GroupsApi: (
        Operation("GET", "/api/groups", GroupsApi.all, {200: GroupsAnswer}, GroupsQuery),
        Operation(
            "POST",
            "/api/groups",
            GroupsApi.create,
            {201: GroupAnswer, 200: GroupAnswer},
            Nothing,
            (NewGroup,),
            DECIDED,
        ),
        Operation("GET", GROUP, GroupsApi.one, {200: GroupAnswer}, refusals=ASKED),
        Operation("PUT", GROUP, GroupsApi.set, {200: GroupAnswer}, Nothing, (NewPolicy,), STORED),
        Operation(
            "DELETE", GROUP, GroupsApi.delete, {200: DeletedGroupAnswer}, OneTopicOfGroup, refusals=DECIDED
        ),
        Operation("POST", f"{GROUP}/pause", GroupsApi.pause, {200: GroupAnswer}, refusals=STORED),
        Operation("POST", f"{GROUP}/resume", GroupsApi.resume, {200: GroupAnswer}, refusals=STORED),
        Operation(
            "POST", f"{GROUP}/reset", GroupsApi.reset, {200: ResetAnswer}, Nothing, (NewReset,), STORED
        ),
        Operation("GET", f"{GROUP}/clients", GroupsApi.clients, {200: ConsumersAnswer}, refusals=ASKED),
    ),
    DeadLettersApi: (
        Operation("GET", "/api/dead-letters", DeadLettersApi.groups, {200: DeadLetterGroupsAnswer}),
        Operation(
            "GET",
            DEAD_LETTERS,
            DeadLettersApi.page,
            {200: DeadLettersAnswer},
            DeadLettersQuery,
            refusals=ASKED,
        ),
        Operation(
            "GET", DEAD_LETTERS + "/{offset}", DeadLettersApi.one, {200: OneDeadLetterAnswer}, refusals=ASKED
        ),
        Operation(
            "DELETE",
            DEAD_LETTERS + "/{offset}",
            DeadLettersApi.purge,
            {200: DeadLetterEndAnswer},
            refusals=STORED,
        ),
        Operation(
            "POST",
            DEAD_LETTERS + "/{offset}/redrive",
            DeadLettersApi.redrive,
            {200: DeadLetterEndAnswer},
            bodies=(NewRedrive,),
            refusals=DECIDED,
        ),
        Operation("GET", DEAD_LETTER_TASKS, DeadLettersApi.tasks, {200: DeadLetterTasksAnswer}),
        Operation(
            "POST",
            DEAD_LETTER_TASKS,
            DeadLettersApi.start_task,
            {202: DeadLetterTaskAnswer, 200: DeadLetterDryRunAnswer},
            bodies=(NewDeadLetterTask,),
            refusals=STORED,
        ),
        Operation(
            "GET",
            DEAD_LETTER_TASKS + "/{id}",
            DeadLettersApi.task,
            {200: DeadLetterTaskAnswer},
            refusals=ASKED,
        ),
        Operation(
            "DELETE",
            DEAD_LETTER_TASKS + "/{id}",
            DeadLettersApi.stop_task,
            {200: DeadLetterTaskAnswer},
            refusals=ASKED,
        ),
    ),
}
