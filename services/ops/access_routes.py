"""The requests about users, rules and refusals: a part of the table of `services.ops.routes`."""

from __future__ import annotations

from typing import Any

from services.ops.access import AccessApi
from services.ops.access_shapes import (
    GoneUserAnswer,
    NewRules,
    NewUser,
    RefusedAnswer,
    RefusedQuery,
    RulesAnswer,
    RulesQuery,
    RulesToRemove,
    SecretAnswer,
    UsersAnswer,
)
from services.ops.operation import Operation
from services.ops.queries import Nothing

USERS, RULES = "/api/auth/users", "/api/auth/rules"

ACCESS_OPERATIONS: dict[type[Any], tuple[Operation, ...]] = {
    AccessApi: (
        Operation("GET", USERS, AccessApi.users, {200: UsersAnswer}),
        Operation(
            "POST", USERS, AccessApi.add_user, {201: SecretAnswer}, Nothing, (NewUser,), (400, 404, 409, 503)
        ),
        Operation(
            "DELETE",
            f"{USERS}/{{name}}",
            AccessApi.remove_user,
            {200: GoneUserAnswer},
            refusals=(400, 404, 503),
        ),
        Operation("GET", RULES, AccessApi.rules, {200: RulesAnswer}, RulesQuery),
        Operation(
            "POST", RULES, AccessApi.set_rules, {200: RulesAnswer}, Nothing, (NewRules,), (400, 404, 503)
        ),
        Operation(
            "POST",
            f"{RULES}/remove",
            AccessApi.remove_rules,
            {200: RulesAnswer},
            Nothing,
            (RulesToRemove,),
            (400, 404, 503),
        ),
        Operation("GET", "/api/refused", AccessApi.refused, {200: RefusedAnswer}, RefusedQuery),
    ),
}
