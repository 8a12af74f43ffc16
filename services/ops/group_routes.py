"""The requests about consumer groups and their dead letters: a part of the table of `services.ops.routes`."""

from __future__ import annotations

from typing import Any

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
from services.ops.letter_shapes import (
    LetterDryRunAnswer,
    LetterEndAnswer,
    LetterGroupsAnswer,
    LettersAnswer,
    LettersQuery,
    LetterTaskAnswer,
    LetterTasksAnswer,
    NewLetterTask,
    NewRedrive,
    OneLetterAnswer,
)
from services.ops.operation import Operation
from services.ops.queries import Nothing

ASKED, STORED, DECIDED = (400, 404), (400, 404, 503), (400, 404, 409, 503)
"""The refusals of what only looks, of what stores, and of what may be forbidden by what has happened."""
GROUP, LETTERS, LETTER_TASKS = (
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
        Operation("GET", "/api/dead-letters", DeadLettersApi.groups, {200: LetterGroupsAnswer}),
        Operation("GET", LETTERS, DeadLettersApi.page, {200: LettersAnswer}, LettersQuery, refusals=ASKED),
        Operation("GET", LETTERS + "/{offset}", DeadLettersApi.one, {200: OneLetterAnswer}, refusals=ASKED),
        Operation(
            "DELETE", LETTERS + "/{offset}", DeadLettersApi.purge, {200: LetterEndAnswer}, refusals=STORED
        ),
        Operation(
            "POST",
            LETTERS + "/{offset}/redrive",
            DeadLettersApi.redrive,
            {200: LetterEndAnswer},
            bodies=(NewRedrive,),
            refusals=DECIDED,
        ),
        Operation("GET", LETTER_TASKS, DeadLettersApi.tasks, {200: LetterTasksAnswer}),
        Operation(
            "POST",
            LETTER_TASKS,
            DeadLettersApi.start_task,
            {202: LetterTaskAnswer, 200: LetterDryRunAnswer},
            bodies=(NewLetterTask,),
            refusals=STORED,
        ),
        Operation(
            "GET", LETTER_TASKS + "/{id}", DeadLettersApi.task, {200: LetterTaskAnswer}, refusals=ASKED
        ),
        Operation(
            "DELETE",
            LETTER_TASKS + "/{id}",
            DeadLettersApi.stop_task,
            {200: LetterTaskAnswer},
            refusals=ASKED,
        ),
    ),
}
