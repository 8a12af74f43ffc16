"""Every plan carried out, and audited again: the case is gone, and nothing new appears.

All faults are in one shop (`faults`), with own tables. Every step is taken twice and in any order, as the
plan promises that it may be; commands are read by the command line's own parser.
"""

from __future__ import annotations

import json
import random
import shlex
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from pyspark.sql import SparkSession
from sqlalchemy import create_engine, text

from services.broker.spine.values import Resolution, TimerName
from services.cli.root import load
from services.shop.topics import (
    CARTS_GROUP,
    ORDER_CREATED,
    ORDER_TIMEOUTS,
    ORDERS_GROUP,
)
from spark_jobs.layout import RunFolders
from spark_jobs.main import Inputs, Sources, compare
from spark_jobs.options import AuditOptions
from spark_jobs.plan.plan import REPAIRS, write
from spark_jobs.plan.sources import PlanSources
from spark_jobs.runs import Run, run_of
from tests.spark.faults import (
    BALANCED,
    FAULTS,
    HOUR_MS,
    UNSAID_PUSH,
    clear,
    consume,
    id_of,
    make,
)
from tests.spark.own_shop import own_tables

Shop = Any
Step = dict[str, Any]
PUSH_CASE = "pushes-do-not-sum"


class Books:
    """The shop's books in own tables, and what is done to them."""

    def __init__(self, shop: Shop, spark: SparkSession, folder: Path) -> None:
        self.shop, self._spark, self._folder = shop, spark, folder
        self.url, self.mapping = own_tables(shop)
        self.engine = create_engine(self.url)

    def audit(self, run_id: str) -> Run:
        inputs = Inputs(self.url, self.shop.redis_url, self.shop.pushes_url, self.mapping)
        exported, run = self._folder / f"exported-{run_id}", RunFolders(self._folder / "out", run_id)
        exported.mkdir()
        run.folder.mkdir(parents=True)
        options = AuditOptions(run_id)
        books = Sources(self.shop.store, inputs).export(exported)
        compare(self._spark, books, self.shop.store, run, options, lambda _: None)
        return run_of(run.out, run_id)

    def plan(self, run: Run) -> dict[str, list[Step]]:
        """The steps of a run's plan by order, or what else they are about."""
        carts, pushes = self.shop.redis_url, self.shop.pushes_url
        write(run, PlanSources(self.mapping, self.url, self.shop.store, carts, pushes=pushes))
        steps: dict[str, list[Step]] = defaultdict(list)
        for line in run.folders.plan.read_text().splitlines():
            steps[json.loads(line)["subject_id"]].append(json.loads(line))
        return steps

    def take(self, step: Step) -> None:
        """Carry out a step."""
        does: dict[str, Callable[[Step], None]] = {
            "message": self._send,
            "statement": self._execute,
            "command": self._command,
            "look": lambda _: None,
        }
        does[step["kind"]](step)

    def _send(self, step: Step) -> None:
        sent = step["message"]
        assert sent["sent_as"] == "a half message, committed at once"
        due = {"delivery_ms": sent["delivery_ms"]} if "delivery_ms" in sent else {}
        half = self.shop.send_half(
            sent["topic"], sent["key"], sent["body"], properties=sent["properties"], **due
        )
        self.shop.end(half, Resolution.COMMIT)

    def _execute(self, step: Step) -> None:
        if "redis" in step:
            self.shop.redis.execute_command(*step["redis"])
            return
        engine = {"orders": self.engine, "pushes": self.shop.push_database}[step["store"]]
        with engine.begin() as connection:
            connection.execute(text(step["statement"].replace(":", r"\:")))

    def _command(self, step: Step) -> None:
        """Carry out a command as it is printed, by its own parser."""
        _, group, verb, *arguments = shlex.split(step["command"])
        commands: Any = load(group)
        given = commands.commands[verb].make_context(verb, arguments).params
        {"timer fire": self._fire, "txn resolve": self._resolve, "dlq redrive": self._redrive}[
            f"{group} {verb}"
        ](given)
        self.shop.flush()

    def _fire(self, given: dict[str, Any]) -> None:
        name = TimerName(given["topic"], given["id_"], given["timer_key"])
        self.shop.broker.timers.fire(name, self.shop.now_ms)

    def _resolve(self, given: dict[str, Any]) -> None:
        outcome = Resolution[given["resolution"].name]
        transactions = self.shop.broker.transactions
        transactions.resolve(given["transaction_id"], outcome, given["reason"], self.shop.now_ms)

    def _redrive(self, given: dict[str, Any]) -> None:
        assert given["yes"]
        dead = self.shop.broker.dead_letters
        for letter in dead.read_page(given["group"], None, 100).dead_letters:
            if given["key"] in letter.message.keys:
                dead.redrive(given["group"], letter.queue_offset, "", self.shop.now_ms)

    def settle(self) -> None:
        """Two hours pass, in which services do their work."""
        shop, end_ms = self.shop, self.shop.now_ms + 2 * HOUR_MS
        while shop.now_ms < end_ms:
            due_ms = shop.broker.next_due_ms()
            shop.advance(max(0, min(end_ms, due_ms or end_ms) - shop.now_ms))
            consume(shop, CARTS_GROUP, ORDER_CREATED, lambda of: clear(shop, of))
            consume(shop, ORDERS_GROUP, ORDER_TIMEOUTS, self._time_out)
        shop.send("pushes", "clock", {"push_id": "clock"})

    def _time_out(self, deadline: Any) -> bool:
        statement = (
            "UPDATE purchase SET state = 'lapsed', lapsed_at = :now WHERE number = :id AND state = 'open'"
        )
        with self.engine.begin() as connection:
            connection.execute(text(statement), {"now": self.shop.now_ms, "id": deadline["order_id"]})
        return True


def cases_of(run: Run) -> dict[str, str]:
    """The case of each order and push that is not sound."""
    return {row["subject_id"]: row["case"] for row in run.rows()}


def test_every_plan_makes_its_case_go_and_nothing_come(
    shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    make(shop)
    books = Books(shop, spark, tmp_path)
    first = books.audit("first")
    expected = {id_of(name): fault.case for name, fault in FAULTS.items() if fault.case != BALANCED}
    assert cases_of(first) == expected | {UNSAID_PUSH: PUSH_CASE}
    plan = books.plan(first)
    kinds = {one: tuple(step["kind"] for step in steps) for one, steps in plan.items()}
    steps = [step for steps in plan.values() for step in steps] * 2
    random.Random(44).shuffle(steps)
    for step in steps:
        books.take(step)
    books.settle()
    second = books.audit("second")
    left = {id_of(name): fault.after for name, fault in FAULTS.items() if fault.after not in (BALANCED, "")}
    wanted = {id_of(name): fault.kinds for name, fault in FAULTS.items() if fault.kinds}
    assert (cases_of(second), kinds) == (left, wanted | {UNSAID_PUSH: ("statement",)})
    assert second.summary["cases"]["in-flight"] == 0
    orders = ds.dataset(second.folders.orders, format="parquet").to_table(["currency"])
    assert set(orders["currency"].to_pylist()) >= {"EUR", "JPY"}
    assert "JPY" in second.folders.report.read_text(), "what the findings are worth"


def test_every_case_that_has_a_repair_is_in_the_shop_of_faults() -> None:
    repaired = {fault.case for fault in FAULTS.values() if set(fault.kinds) - {"look"}}
    assert repaired | {PUSH_CASE} == set(REPAIRS)
