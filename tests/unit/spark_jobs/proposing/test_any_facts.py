"""Whatever rows and messages say: a mapping that the audit reads and a file that says it, or a sentence."""

from __future__ import annotations

import tomllib
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from spark_jobs.errors import NothingProposed
from spark_jobs.inputs.mapping import as_mapping
from spark_jobs.proposing.facts import Column, Kind, LogFacts, Message, Row, Table, Topic
from spark_jobs.proposing.mapping_file import text
from spark_jobs.proposing.propose import propose
from spark_jobs.proposing.words import COLUMNS, STATUSES, TABLES

START_MS = 1_795_000_000_000
KEYS = [f"{number}" for number in range(6)] + ["order-1", "order-2", "", " ", "a'b", 'q"\\']
WORDS = sorted({word for words in (*COLUMNS.values(), *TABLES.values()) for word in words.split()})
NAMES = st.sampled_from(WORDS) | st.text(min_size=1, max_size=5) | st.just('\x7f\n"')
VALUES = st.none() | st.sampled_from(
    [*KEYS, *STATUSES["PAID"].split(), *STATUSES["PLACED"].split(), "EUR", "12.5"]
)
TIMES = st.integers(START_MS, START_MS + 7_200_000)


@st.composite
def columns(draw: st.DrawFn) -> Column:
    """One column; what it is said to hold need not be what its rows hold."""
    counts = draw(st.none() | st.dictionaries(VALUES, st.integers(0, 9), max_size=5))
    keys = draw(st.frozensets(st.sampled_from(KEYS), max_size=12))
    refers_to = draw(st.sampled_from(["", "", *WORDS[:40]]))
    return Column(draw(NAMES), draw(st.sampled_from(Kind)), draw(st.booleans()), refers_to, counts, keys)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """One table with rows that have some of its columns as times, too."""
    found = draw(st.lists(columns(), min_size=1, max_size=6, unique_by=lambda one: one.name))
    rows = []
    for _ in range(draw(st.integers(0, 5))):
        texts = {one.name: draw(VALUES) for one in found}
        times = {one.name: draw(TIMES) for one in found if texts[one.name] and draw(st.booleans())}
        rows.append(Row(texts, times))
    return Table(draw(NAMES), tuple(found), tuple(rows))


@st.composite
def orders(draw: st.DrawFn) -> Table:
    """One table that may be the orders: its key is that of the messages, and it has a status."""
    table = draw(tables())
    key = Column("the key", Kind.TEXT, True, keys=frozenset(KEYS))
    counts = draw(st.dictionaries(VALUES, st.integers(0, 9), max_size=4)) | {"paid": 1}
    status = Column("the status", Kind.TEXT, counts=counts)
    there = draw(st.lists(st.sampled_from(KEYS), max_size=6, unique=True))
    rows = []
    for number, one in enumerate(there):
        before = table.rows[number % len(table.rows)] if table.rows else Row({})
        said = draw(st.sampled_from(list(counts)))
        rows.append(Row({**before.texts, "the key": one, "the status": said}, before.times))
    columns = [one for one in table.columns if not one.name.startswith("the ")]
    return Table(table.name, (*columns, key, status), tuple(rows))


@st.composite
def topics(draw: st.DrawFn) -> Topic:
    """One topic with messages of different keys."""
    keys = draw(st.lists(st.sampled_from(KEYS), max_size=6, unique=True))
    fields: Any = st.dictionaries(
        NAMES, VALUES | st.integers(0, 7) | st.just([{"sku": "x", "n": 1}]), max_size=3
    )
    messages = tuple(
        Message(key, draw(fields), draw(TIMES), draw(st.none() | TIMES)) for key in keys if key.strip()
    )
    counts = [draw(st.integers(0, 9)) for _ in range(5)]
    groups = draw(st.dictionaries(NAMES, st.integers(1, 9), max_size=2))
    cancels = draw(st.dictionaries(NAMES, st.integers(1, 9), max_size=2))
    return Topic(draw(NAMES), *counts, messages, groups, cancels)


SALES = Topic("the sales", 3, messages=(Message("1", {}, START_MS), Message("2", {"who": 1}, START_MS)))


@given(
    orders(),
    st.lists(tables(), max_size=3, unique_by=lambda one: one.name),
    st.lists(topics(), max_size=4, unique_by=lambda one: one.name),
)
@settings(deadline=None, max_examples=150)
def test_a_proposal_is_a_mapping_and_its_file_says_it(
    table: Table, others: list[Table], log: list[Topic]
) -> None:
    found = [table, *(one for one in others if one.name != table.name)]
    try:
        proposal = propose(found, LogFacts((SALES, *log), 10, START_MS + 3_600_000))
    except NothingProposed:  # another table is more like orders, but has no status
        event("nothing is proposed")
        return
    event("proposed")
    document = proposal.document()
    mapping = as_mapping(document, "proposal")
    assert mapping.orders.name in {one.name for one in found}
    assert tomllib.loads(text(proposal, "any\nwhere")) == document
    assert [one.said for one in proposal.doubts if not one.said.endswith((".", ")"))] == []
