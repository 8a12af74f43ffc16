"""Own tables sabotaged by hand, one thing at a time and all at once: each is named with its cause, nothing
innocent is, and when the plan is carried out the books balance.

    TIDEWHEEL_LONG=1 .venv/bin/python -m pytest tests/endurance/test_sabotages.py -s

The service (`ferry`) is a user's own, with unlike names in SQLite, PostgreSQL and MariaDB, on a broker
process with a virtual clock; what is done to it is in `sabotages`. The first audit and that of all at once
are the command; those in between share one Spark. The audit after a plan is the one that finds the next
sabotage, so one audit says both. `--sabotage deadline,entry` takes those with a word in their names.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import text

from spark_jobs.cases.names import BALANCED, IN_FLIGHT, NOT_COVERED, SEALED_WINDOW_CHANGED
from spark_jobs.errors import DatabaseUnreadable
from spark_jobs.inputs.mapping import as_mapping
from spark_jobs.inputs.stores import Inputs
from spark_jobs.layout import RunFolders
from spark_jobs.main import Sources, compare
from spark_jobs.options import AuditOptions
from spark_jobs.plan.plan import write
from spark_jobs.plan.sources import PlanSources
from spark_jobs.runs import Run, run_of
from spark_jobs.session import spark_session
from tests.endurance.ferry import KINDS, MAPPING, TIMEOUT, Ferry
from tests.endurance.sabotages import LATER, REFUSED, SABOTAGES, Sabotage, Scene, tidewheel
from tests.mariadb import running_mariadb
from tests.postgresql import running_postgresql
from tidewheel import NewMessage
from tidewheel.testing.process import BrokerProcess

pytestmark = pytest.mark.skipif("TIDEWHEEL_LONG" not in os.environ, reason="a hundred audits: make endurance")
MOMENT = timedelta(seconds=10)
SECONDS = 3_600
CHANGED = 1
"""The exit code where sealed windows have changed."""
Step = dict[str, Any]


@pytest.fixture
def sabotages(request: pytest.FixtureRequest) -> list[Sabotage]:
    """Return the sabotages of --sabotage, or all."""
    words = request.config.getoption("--sabotage").split(",")
    return [one for one in SABOTAGES if any(word in one.name for word in words)]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark for all audits that are not the command."""
    folder = tmp_path_factory.mktemp("spark")
    with spark_session(folder, folder / "spark.log", quick=True, master="local[1]") as session:
        yield session


@pytest.fixture(params=KINDS)
def ferry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ferry]:
    """The service that has just opened, on a broker and a database of its own."""
    with ExitStack() as servers:
        if request.param == "postgresql":
            url = servers.enter_context(running_postgresql())
        elif request.param == "mariadb":
            url = servers.enter_context(running_mariadb()).url
        else:
            url = f"sqlite:///{tmp_path / 'ferry.db'}"
        broker = BrokerProcess(tmp_path)
        broker.start()
        servers.callback(broker.stop)
        opened = Ferry(broker, url, KINDS[request.param])
        servers.callback(opened.close)
        yield opened


@dataclass
class Books:
    """The ferry's books: audited, and repaired as a plan says."""

    ferry: Ferry
    spark: SparkSession
    folder: Path
    rest: dict[str, str] = field(default_factory=dict)
    """What is known to be left, by booking."""
    runs: int = 0

    def __post_init__(self) -> None:
        self._mapping_file = self.folder / "ferry.toml"
        self._mapping_file.write_text(MAPPING)
        self._mapping = as_mapping(tomllib.loads(MAPPING), "ferry.toml")

    def audit(self) -> Run:
        """Audit the books in the Spark that is there, and plan the repairs."""
        self.ferry.pulse()
        self.runs += 1
        run_id = f"run-{self.runs:03}"
        inputs = Inputs(self.ferry.url, self.ferry.url, mapping=self._mapping)
        exported, run = self.folder / f"exported-{run_id}", RunFolders(self.out, run_id)
        exported.mkdir()
        run.folder.mkdir(parents=True)
        books = Sources(self._store, inputs).export(exported)
        compare(self.spark, books, self._store, run, AuditOptions(run_id), lambda _: None)
        done = run_of(run.out, run_id)
        sources = PlanSources(self._mapping, self.ferry.url, self._store, self.ferry.url)
        write(done, sources)
        return done

    def command(self, code: int) -> Run:
        """Audit the books by the command, with a plan."""
        self.ferry.pulse()
        out = self.folder / "out-of-commands"
        words = ["audit", "run", "--store", str(self._store), "--orders", self.ferry.url]
        words += [
            "--carts",
            self.ferry.url,
            "--mapping",
            str(self._mapping_file),
            "--out",
            str(out),
            "--plan",
        ]
        ran = subprocess.run(
            [sys.executable, "-m", "services.cli.main", *words],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        print(ran.stdout)
        assert ran.returncode == code, ran.stdout + ran.stderr
        return run_of(out)

    @property
    def out(self) -> Path:
        """Where the audits of the Spark that is there write."""
        return self.folder / "out"

    @property
    def _store(self) -> Path:
        return self.folder / "store"

    def play(self, scenes: Sequence[tuple[Scene, Sabotage]]) -> None:
        """Let sabotages happen, up to just before the audit."""
        stories = [sabotage.story(scene) for scene, sabotage in scenes]
        for span in (timedelta(), TIMEOUT + MOMENT, LATER, timedelta()):
            with self.ferry.answering():
                for story in stories:
                    next(story, None)
            if span:
                self.ferry.advance(span)
            self.ferry.consume()

    def take(self, step: Step, *, is_again: bool = False) -> None:
        """Carry out a step of a plan, as it is printed; again, a command may be refused."""
        if step["kind"] == "message":
            self._send(step["message"])
        elif step["kind"] == "statement":
            with self.ferry.engine.begin() as database:
                database.execute(text(step["statement"].replace(":", r"\:")))
        elif step["kind"] == "command":
            program, *words = shlex.split(step["command"])
            assert program == "tidewheel"
            tidewheel(self.ferry, *words, codes=(0, REFUSED) if is_again else (0,))

    def _send(self, sent: Step) -> None:
        assert sent["sent_as"] == "a half message, committed at once"
        properties = dict(sent["properties"])
        cancelled = properties.pop("TW_TIMER_CANCEL", None)
        topic = properties.pop("TW_TIMER_TOPIC", "")
        key = properties.pop("TW_TIMER_KEY", "")
        due_ms = sent.get("delivery_ms")
        message = NewMessage(
            sent["topic"],
            sent["body"],
            keys=sent.get("keys", [sent["key"]]),
            tag=sent.get("tag", ""),
            key=key,
            delay=None if due_ms is None else timedelta(milliseconds=due_ms - self.ferry.now_ms),
            cancel=self.ferry.client.timer(topic, cancelled) if cancelled else None,
            properties=properties,
        )
        with self.ferry.answering(), self.ferry.transaction(message):
            pass

    def leave(self, scenes: Sequence[tuple[Scene, Sabotage]]) -> None:
        """Note what plans leave of sabotages once they are carried out."""
        self.rest |= {scene.booking: its.rest for scene, its in scenes if its.rest != BALANCED}

    def settle(self, span: timedelta = MOMENT) -> None:
        """Let the service do what came of a repair."""
        self.ferry.consume()
        self.ferry.advance(span)
        self.ferry.consume()


def steps_of(run: Run) -> dict[str, list[Step]]:
    """Return the steps of a run's plan, by what they are about."""
    steps: dict[str, list[Step]] = defaultdict(list)
    for line in run.folders.plan.read_text().splitlines():
        steps[json.loads(line)["subject_id"]].append(json.loads(line))
    return steps


def findings_of(run: Run) -> dict[str, str]:
    """Return the case of each subject that is a finding."""
    cases = run.summary["cases"]
    assert (cases[IN_FLIGHT], cases.get(NOT_COVERED, 0)) == (0, 0), run.summary
    return {row["subject_id"]: row["case"] for row in run.rows()}


def why_of(run: Run, booking: str) -> str:
    return str(next(row["why"] for row in run.rows(subject_id=booking)))


def said_of(step: Step) -> str:
    """Return what a step of a plan does, on a line."""
    shown = {"message": lambda: f"{step['message']['topic']} {json.dumps(step['message']['body'])}"}
    told = shown.get(step["kind"], lambda: step.get(step["kind"], step["what"]))()
    return f"    {step['kind']}: {told}"


def trade(ferry: Ferry) -> None:
    """A day without any fault: bookings are paid, cancelled and lapse; two are of one traveller and alike,
    two are paid in the second of their deadline, of which the one's has come and waits to be read.
    """
    ids = [ferry.new_id() for _ in range(6)]
    paid, cancelled, in_its_second, just_after, *_ = [booking for booking, _ in ids]
    alike, _ = ferry.new_id()
    with ferry.answering():
        for booking, traveller in ids:
            ferry.book(booking, traveller, {"adulto": 2, "coche": 1})
        ferry.book(alike, ids[0][1], {"adulto": 2, "coche": 1})
        ferry.consume()
        for booking in (paid, alike):
            ferry.pay(booking)
        ferry.cancel(cancelled)
        ferry.advance(ferry.due_in(in_its_second) - timedelta(milliseconds=500))
        ferry.pay(in_its_second)
        ferry.advance(ferry.due_in(just_after) + timedelta(milliseconds=1))
        ferry.pay(just_after)
    ferry.advance(MOMENT)
    ferry.consume()


def test_what_is_sabotaged_by_hand_is_found_and_repaired(
    ferry: Ferry, spark: SparkSession, sabotages: list[Sabotage], tmp_path: Path
) -> None:
    trade(ferry)
    books = Books(ferry, spark, tmp_path)
    assert findings_of(books.command(0)) == {}
    one_at_a_time(books, sabotages)
    all_at_once(books, sabotages)
    unknown_status(books)
    closed_books(books)


def one_at_a_time(books: Books, sabotages: list[Sabotage]) -> None:
    """Each sabotage with an audit of its own, which also says what became of those before."""
    before: list[tuple[Scene, Sabotage]] = []
    told: list[str] = []
    for sabotage in sabotages:
        scene = Scene(books.ferry, sabotage.name)
        books.play([(scene, sabotage)])
        run = books.audit()
        assert findings_of(run) == books.rest | {scene.booking: sabotage.case}, sabotage.name
        print(*told, sep="\n", flush=True)
        decide(books, before)
        steps = steps_of(run)[scene.booking]
        assert tuple(step["kind"] for step in steps) == sabotage.kinds, steps
        for step in steps:
            books.take(step)
        books.settle()
        told = [f"{sabotage.name}: {sabotage.case}", f"    {why_of(run, scene.booking)}"]
        told += [*map(said_of, steps), f"    after: {sabotage.rest}"]
        before = [(scene, sabotage)]
        books.leave(before)
    assert findings_of(books.audit()) == books.rest
    print(*told, sep="\n", flush=True)
    decide(books, before)
    books.settle()


def all_at_once(books: Books, sabotages: list[Sabotage]) -> None:
    """All sabotages, found by one command; the steps of its plan are taken twice, in any order."""
    scenes = [(Scene(books.ferry, sabotage.name), sabotage) for sabotage in sabotages]
    books.play(scenes)
    run = books.command(1)
    assert findings_of(run) == books.rest | {scene.booking: its.case for scene, its in scenes}
    steps = steps_of(run)
    kinds = {scene.name: tuple(step["kind"] for step in steps[scene.booking]) for scene, _ in scenes}
    assert kinds == {its.name: its.kinds for its in sabotages}
    shuffled = [step for its in steps.values() for step in its]
    for is_again in (False, True):
        random.Random(44 + is_again).shuffle(shuffled)
        for step in shuffled:
            books.take(step, is_again=is_again)
    books.settle(LATER)
    books.leave(scenes)
    assert findings_of(books.audit()) == books.rest
    decide(books, scenes)
    books.settle(LATER)
    assert findings_of(books.audit()) == books.rest
    print(f"all {len(scenes)} at once: found, repaired; {len(books.rest)} were late, and stay so")


def decide(books: Books, scenes: Sequence[tuple[Scene, Sabotage]]) -> None:
    """Do what a person decides where a plan says that a person has to."""
    for scene, sabotage in scenes:
        if sabotage.by_hand:
            sabotage.by_hand(scene)
            del books.rest[scene.booking]


def unknown_status(books: Books) -> None:
    """A status that nobody has mapped stops the audit, which names it; an enum cannot hold one."""
    if books.ferry.kind.types["status"] != "TEXT":
        return
    change = "UPDATE reserva SET estado = :new WHERE estado = :old"
    books.ferry.run(change, old="anulada", new="en duda")
    with pytest.raises(DatabaseUnreadable, match="en duda") as refused:
        books.audit()
    print(f"status unknown: {refused.value}")
    books.ferry.run(change, old="en duda", new="anulada")


def closed_books(books: Books) -> None:
    """Totals that are changed when the books are closed: no message has them, only the seal."""
    ferry, worth = books.ferry, "UPDATE reserva SET importe = importe + :more WHERE localizador = :id"
    asked = "SELECT localizador FROM reserva WHERE estado = 'abonada' AND divisa = :currency ORDER BY creada"
    ids = [ferry.run(asked, currency=currency)[0][0] for currency in ("EUR", "JPY")]
    tidewheel(ferry, "audit", "seal", "--out", str(books.out))
    for booking in ids:
        ferry.run(worth, id=booking, more=500)
    run = books.audit()
    changed = {row["subject_id"]: row["why"] for row in run.rows() if row["case"] == SEALED_WINDOW_CHANGED}
    assert findings_of(run) == books.rest | dict.fromkeys(changed, SEALED_WINDOW_CHANGED)
    told = tidewheel(ferry, "audit", "verify-seals", "--out", str(books.out), codes=(CHANGED,))
    print(f"totals changed after the seal: {SEALED_WINDOW_CHANGED}", *changed.values(), told, sep="\n    ")
    assert "In sum 5.00 EUR and 500 JPY more than was sealed." in told
    assert all(str(booking) in told for booking in ids)
    for booking in ids:
        ferry.run(worth, id=booking, more=-500)
    assert findings_of(books.audit()) == books.rest
