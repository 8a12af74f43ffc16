"""The OpenAPI 3.1 document of the HTTP interface, generated from the table of operations and their shapes.

Bodies and queries are pydantic models, and answers are typed dictionaries. pydantic generates the JSON schema
of both. The summary of an operation is the first sentence of the docstring of its handler.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.metadata import version
from itertools import chain
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from services.ops.gate import OPEN_PATHS
from services.ops.requests.bodies import bound_of
from services.ops.requests.operation import Operation
from services.ops.requests.statuses import ErrorAnswer
from services.ops.routes import OPERATIONS

Json = dict[str, Any]
Key = tuple[Any, JsonSchemaMode]

ABOUT = (
    "64-bit numbers (offsets, times) go out as strings. Times are milliseconds since 1970; moments may also"
    " come in as 2026-11-22T09:00+08:00, in 30m, or 30m ago. An error has a stable code."
)
STATUSES = {
    200: "Done.",
    201: "Stored, on disk.",
    202: "Begun.",
    400: "It can never be accepted.",
    401: "It bears no token, or a void one.",
    403: "Its user lacks a right, or it is for another host, or of a foreign web page.",
    404: "It is not here.",
    409: "What has already happened forbids it.",
    408: "Its body did not come to its end in time.",
    410: "It has ended.",
    413: "Its body is too large.",
    415: "Its body is not declared as what is taken here: JSON, or the types listed.",
    500: "A mistake of the broker, or its disk failed.",
    503: "Not now; try again later.",
}
PATH_PARAMETER = re.compile(r"\{(\w+)\}")


@lru_cache(maxsize=1)
def document() -> Json:
    """Return the description of the whole HTTP interface."""
    operations = [*chain.from_iterable(OPERATIONS.values())]
    schemas, definitions = all_schemas(operations)
    paths: dict[str, Json] = {}
    for one in operations:
        paths.setdefault(one.path, {})[one.method.lower()] = described(one, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tidewheel", "version": version("tidewheel"), "description": ABOUT},
        "paths": paths,
        "components": {
            "schemas": definitions,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def all_schemas(operations: list[Operation]) -> tuple[dict[Key, Json], Json]:
    """Return the schema of every body and answer, and the referenced definitions."""
    keys: dict[Key, None] = {(ErrorAnswer, "serialization"): None}
    for one in operations:
        keys |= {(body, "validation"): None for body in one.bodies}
        keys |= {(answer, "serialization"): None for answer in one.answers.values() if answer is not None}
    inputs = [(kind, mode, TypeAdapter[Any](kind)) for kind, mode in keys]
    schemas, rest = TypeAdapter.json_schemas(inputs, ref_template="#/components/schemas/{model}")
    return schemas, rest["$defs"]


def described(one: Operation, schemas: dict[Key, Json]) -> Json:
    """Return the description of an operation."""
    answers = {str(status): answered(status, kind, schemas) for status, kind in one.answers.items()}
    with_body = (408, 413, 415, 503) if one.bodies or one.media_types else ()
    refusals = (*one.refusals, *with_body, *(() if one.path in OPEN_PATHS else (401, 403)), 500)
    errors = {str(status): answered(status, ErrorAnswer, schemas) for status in refusals}
    operation: Json = {
        "operationId": one.handler.__name__ if one.path.count("/") == 1 else operation_id(one),
        "summary": (one.handler.__doc__ or "").strip().splitlines()[0],
        "tags": [one.path.split("/")[2] if one.path.startswith("/api/") else "broker"],
        "parameters": [*path_parameters(one.path), *query_parameters(one.query)],
        "responses": dict(sorted((errors | answers).items())),
    }
    if one.bodies or one.media_types:
        operation["requestBody"] = asked_for(one, schemas)
    return operation


def operation_id(one: Operation) -> str:
    """Return a unique name for an operation."""
    return f"{one.path.split('/')[2]}_{one.handler.__name__}"


def answered(status: int, kind: Any, schemas: dict[Key, Json]) -> Json:
    """Return the description of an answer."""
    content: Json = {"text/plain": {"schema": {"type": "string"}}}
    if kind is not None:
        content = {"application/json": {"schema": schemas[kind, "serialization"]}}
    return {"description": STATUSES[status], "content": content}


def asked_for(one: Operation, schemas: dict[Key, Json]) -> Json:
    """Return the description of the body of a request."""
    bound = bound_of(one.method, one.path)
    if one.media_types:
        contents: Json = {media_type: {"schema": {}} for media_type in one.media_types}
        told = f"At most {bound.bytes_max} bytes."
        return {"required": True, "description": told, "content": contents}
    bodies = [schemas[body, "validation"] for body in one.bodies]
    schema = bodies[0] if len(bodies) == 1 else {"anyOf": bodies}
    told = f"At most {bound.bytes_max} bytes and {bound.values_max} values."
    return {"required": True, "description": told, "content": {"application/json": {"schema": schema}}}


def path_parameters(path: str) -> list[Json]:
    """Return the parameters in a path."""
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in PATH_PARAMETER.findall(path)
    ]


def query_parameters(query: type[BaseModel]) -> list[Json]:
    """Return the parameters of a query."""
    schema = query.model_json_schema()
    required = schema.get("required", [])
    return (
        [
            {"name": name, "in": "query", "required": name in required, "schema": one}
            | ({"description": one["description"]} if "description" in one else {})
            for name, one in schema["properties"].items()
        ]
        if "properties" in schema
        else []
    )
