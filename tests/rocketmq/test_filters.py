"""SQL filters beside Apache RocketMQ's own: the same truth, but where we differ on purpose."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from random import Random
from typing import Any

from commitlog.records import properties
from consumequeue.filters.errors import IllegalFilter
from consumequeue.filters.sql_filter import SqlFilter, parse_sql

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "sql_filters.json").read_text())
STORED = properties.encode(VECTORS["properties"])
ROWS = [row for rows in VECTORS["truths"].values() for row in rows] + VECTORS["refused"]
NAMES = {True: "TRUE", False: "FALSE", None: "UNKNOWN"}
SEED, JOINED_COUNT, DEPTH = 6, 3_000, 4


def genuine_says(genuine: Any, where: Path, expressions: list[str]) -> list[str]:
    lines = [STORED, *(expression.encode() for expression in expressions)]
    asked = where / "asked"
    asked.write_bytes(b"\n".join(map(b64encode, lines)))
    return [one["truth"] for one in genuine.run("JudgeFilters", asked)]


def we_say(expression: str) -> str:
    try:
        wanted = parse_sql(expression)
    except IllegalFilter:
        return "REFUSED"
    assert isinstance(wanted, SqlFilter)
    return NAMES[wanted.holds(VECTORS["properties"])]


def effect(truth: str) -> str:
    """What comes of it: not to be known, to be false and to fail are one, no message."""
    return truth if truth in ("TRUE", "REFUSED") else "left out"


def test_it_differs_only_where_it_says_so(genuine: Any, tmp_path: Path) -> None:
    expressions = [row[0] for row in ROWS]
    for row, genuine_truth in zip(ROWS, genuine_says(genuine, tmp_path, expressions), strict=True):
        ours = we_say(row[0])
        assert genuine_truth == row[2] if len(row) > 2 else effect(genuine_truth) == effect(ours), row
        assert len(row) == 2 or effect(row[2]) != effect(ours), row


def test_what_is_the_same_stays_the_same_however_it_is_joined(genuine: Any, tmp_path: Path) -> None:
    chance = Random(SEED)
    leaves = [row[0] for row in ROWS if "--" not in row[0]]
    said = genuine_says(genuine, tmp_path, leaves)
    agreed = [leaf for leaf, truth in zip(leaves, said, strict=True) if truth == we_say(leaf) != "REFUSED"]

    def joined(depth: int) -> str:
        if depth == 0 or chance.random() < 0.2:
            return f"({chance.choice(agreed)})"
        if chance.random() < 0.3:
            return f"(NOT {joined(depth - 1)})"
        return f"({joined(depth - 1)} {chance.choice(['AND', 'OR'])} {joined(depth - 1)})"

    expressions = [joined(DEPTH) for _ in range(JOINED_COUNT)]
    assert list(map(we_say, expressions)) == genuine_says(genuine, tmp_path, expressions)
