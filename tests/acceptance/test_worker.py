"""`tidewheel.Worker`, as applications use it: what its functions get, and what becomes of each message."""

from __future__ import annotations

import asyncio
import logging
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from tests.acceptance.conftest import Serving
from tidewheel import Backoff, Client, Message, NewMessage, Reject, Retry, Tidewheel, Worker
from tidewheel.command import COMMAND
from tidewheel.errors import ClientMistake, ConfigurationError, RefusedByState

SECONDS = 30
TOPICS = 600
SECONDS_OF_MANY = 300


class Order(BaseModel):
    """An order of the shop."""

    id: int


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One broker for all tests here, each on topics of its own."""
    broker = Serving(tmp_path_factory.mktemp("broker"))
    yield broker
    broker.process.kill()
    broker.process.wait()


@pytest.fixture
def client(serving: Serving) -> Iterator[Client]:
    with Client(serving.http) as one:
        yield one


def work_until(worker: Worker, is_done: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Run a worker until a condition holds, and what it has begun is finished."""

    async def scenario() -> None:
        stop = asyncio.Event()
        running = asyncio.ensure_future(worker.run_until(stop))
        async with asyncio.timeout(seconds):
            while not is_done() and not running.done():
                await asyncio.sleep(0.01)
        stop.set()
        async with asyncio.timeout(seconds):
            await running

    asyncio.run(scenario())


def left(client: Client, topic: str, group: str = "shop") -> list[str]:
    return [one.text for one in client.receive(topic, group, wait="0s")]


def test_functions_in_threads_and_in_the_loop_get_each_message_once(client: Client) -> None:
    client.send_many(NewMessage(topic, {"id": n}) for n in range(50) for topic in ("w1-threads", "w1-loop"))
    worker, got, places = Worker(client), list[tuple[str, int]](), set[str]()

    @worker.consume("w1-threads", group="shop", model=Order)
    def in_a_thread(order: Order) -> None:
        places.add(threading.current_thread().name.partition("_")[0])
        got.append(("threads", order.id))

    @worker.consume("w1-loop", group="shop", model=Order)
    async def in_the_loop(order: Order, message: Message[Any]) -> None:
        assert message.topic == "w1-loop"
        places.add(threading.current_thread().name)
        got.append(("loop", order.id))

    work_until(worker, lambda: len(got) >= 100)
    assert sorted(got) == sorted((place, n) for n in range(50) for place in ("threads", "loop"))
    assert places == {"tidewheel", "MainThread"}
    assert left(client, "w1-threads") == left(client, "w1-loop") == []


def test_a_function_that_raises_gets_its_message_again_after_the_pause(client: Client) -> None:
    client.send("w2", "x")
    worker, attempts = Worker(client), list[int]()

    @worker.consume("w2", group="shop", retry=Backoff("10ms", factor=1))
    def fail_twice(message: Message[Any]) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            raise ValueError("the first attempt fails")
        if message.attempt == 2:
            raise Retry("10ms")

    work_until(worker, lambda: len(attempts) == 3)
    assert attempts == [1, 2, 3]
    assert left(client, "w2") == []


class Wordless(Exception):
    """An exception whose text cannot be made."""

    def __str__(self) -> str:
        raise ValueError("it has no text")


class Base(BaseException):
    """No Exception."""


@pytest.mark.parametrize("is_async", [False, True], ids=["thread", "loop"])
@pytest.mark.parametrize(
    "error",
    [
        StopIteration("next"), SystemExit(3), Base("b"), Wordless(), KeyboardInterrupt(),
        asyncio.CancelledError(), ExceptionGroup("some", [ValueError("one")]),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_whatever_a_function_raises_is_a_failed_attempt(
    client: Client, error: BaseException, is_async: bool
) -> None:
    if is_async and isinstance(error, KeyboardInterrupt):
        pytest.skip("in the main thread that is Ctrl-C, which ends the process")
    topic = f"w2-{type(error).__name__}-{is_async}"
    client.send(topic, "x")
    worker, attempts = Worker(client), list[int]()

    def fail_once(message: Message[Any]) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            raise error

    async def fail_once_in_the_loop(message: Message[Any]) -> None:
        fail_once(message)

    consume = worker.consume(topic, group="shop", retry=Backoff("10ms", attempts=5))
    consume(fail_once_in_the_loop if is_async else fail_once)
    work_until(worker, lambda: len(attempts) == 2)
    assert attempts == [1, 2]
    assert left(client, topic) == []


def test_listed_exceptions_unfit_bodies_and_the_last_attempt_make_dead_letters(
    client: Client, serving: Serving
) -> None:
    client.send_many(NewMessage("w3", body) for body in ("listed", "rejected", "always"))
    client.send("w3-orders", "no order")
    worker, got = Worker(client), Counter[str]()

    @worker.consume("w3", group="w3-shop", retry=Backoff("10ms", attempts=3), dead_on=[LookupError])
    async def handle(message: Message[Any]) -> None:
        got[message.text] += 1
        if message.text == "listed":
            raise KeyError("a LookupError")
        if message.text == "rejected":
            raise Reject("no such order")
        raise ValueError("as always")

    @worker.consume("w3-orders", group="w3-shop", model=Order)
    async def never(order: Order) -> None:
        got["unfit"] += 1

    work_until(worker, lambda: got.total() >= 5 and dead_count(serving, "w3-shop") == 4)
    assert got == {"listed": 1, "rejected": 1, "always": 3}
    letters = serving.json("dlq", "ls", "w3-shop")["dead_letters"]
    reasons = sorted(one["reason"].removeprefix("its consumer gave it up: ") for one in letters)
    unfit = "The message's body is no Order: the body: Invalid JSON: expected ident at line 1 column 2."
    last = "attempt 3 of 3: ValueError: as always"
    assert reasons == ["KeyError: 'a LookupError'", unfit, last, "no such order"]
    assert left(client, "w3", "w3-shop") == []


def dead_count(serving: Serving, group: str) -> int:
    return len(serving.json("dlq", "ls", group)["dead_letters"])


class Delicate(BaseModel):
    """An order whose model asks a service that fails at first."""

    id: int

    @field_validator("id")
    @classmethod
    def _known(cls, given: int) -> int:
        asked.append(given)
        if len(asked) == 1:
            raise ConnectionError("the service is not there")
        return given


asked: list[int] = []


def test_a_model_that_fails_by_itself_is_tried_again(client: Client) -> None:
    client.send("w15", {"id": 7})
    worker, got = Worker(client), list[int]()

    @worker.consume("w15", group="shop", model=Delicate, retry=Backoff("10ms"))
    def handle(order: Delicate) -> None:
        got.append(order.id)

    work_until(worker, lambda: got == [7])
    assert asked == [7, 7]
    assert left(client, "w15") == []


def test_what_is_no_exception_and_a_pause_too_long_are_refused_at_once(client: Client) -> None:
    worker = Worker(client)
    with pytest.raises(ConfigurationError, match="dead_on has 3"):
        worker.consume("w15", group="shop", dead_on=[3])  # type: ignore[list-item]  # a mistake
    with pytest.raises(ConfigurationError, match="longest is 2d: a pause has 12h at most"):
        Backoff("1s", longest="2d")
    with pytest.raises(ClientMistake, match="after is 13h: a pause has 12h at most"):
        Retry("13h")


def test_a_function_longer_than_its_lease_keeps_the_message(client: Client) -> None:
    client.send_many([NewMessage("w4", "thread"), NewMessage("w4-loop", "loop")])
    worker, got, done = Worker(client), list[str](), list[str]()

    @worker.consume("w4", group="shop", lease="400ms")
    def slow(message: Message[Any]) -> None:
        got.append(message.text)
        time.sleep(1.5)  # the work
        done.append(message.text)

    @worker.consume("w4-loop", group="shop", lease="400ms")
    async def slow_in_the_loop(message: Message[Any]) -> None:
        got.append(message.text)
        await asyncio.sleep(1.5)
        done.append(message.text)

    work_until(worker, lambda: len(done) == 2)
    assert sorted(got) == ["loop", "thread"], "no other attempt was begun"
    assert left(client, "w4") == left(client, "w4-loop") == []


def test_a_coroutine_that_hangs_is_cancelled_and_its_message_comes_again(client: Client) -> None:
    client.send("w5", "x")
    worker, attempts = Worker(client), list[int]()

    @worker.consume("w5", group="shop", lease="400ms", longest="500ms", retry=Backoff("0s"))
    async def hang(message: Message[Any]) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            await asyncio.Event().wait()

    work_until(worker, lambda: len(attempts) == 2)
    assert left(client, "w5") == []


def test_each_end_that_the_broker_has_confirmed_is_a_line_of_the_log(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tidewheel.worker")
    client.send_many(
        NewMessage("w16", body, idempotency_key=f"w16-{body}") for body in ("good", "bad", "late")
    )
    worker = Worker(client)

    @worker.consume("w16", group="shop", retry=Backoff("10ms"))
    async def handle(message: Message[Any]) -> None:
        if message.text == "bad":
            raise Reject("no such order")
        if message.text == "late" and message.attempt == 1:
            raise Retry("10ms")

    def ends() -> list[str]:
        said = [one.getMessage() for one in list(caplog.records) if one.levelno == logging.DEBUG]
        return sorted(one.partition("message ")[2] for one in said if one.startswith("w16 of group shop: "))

    work_until(worker, lambda: len(ends()) == 4)
    assert ends() == [
        "w16-bad has ended at attempt 1: it is a dead letter",
        "w16-good has ended at attempt 1: it is acknowledged",
        "w16-late has ended at attempt 1: it comes again after 10 ms",
        "w16-late has ended at attempt 2: it is acknowledged",
    ]


def test_the_order_within_a_message_group_is_kept_over_failures(client: Client, serving: Serving) -> None:
    serving.run("group", "create", "w6-shop", "--fifo-run", "8")
    client.send_many(NewMessage("w6", f"{group}{n}", group=group) for n in range(12) for group in "ab")
    worker, got = Worker(client), list[str]()

    @worker.consume("w6", group="w6-shop", retry=Backoff("10ms", factor=1))
    def fail_once(message: Message[Any]) -> None:
        if message.text == "a3" and message.attempt == 1:
            raise ValueError("the first attempt fails")
        got.append(message.text)

    work_until(worker, lambda: len(got) == 24)
    for group in "ab":
        assert [one for one in got if one[0] == group] == [f"{group}{n}" for n in range(12)]


def test_a_message_is_not_ended_within_its_function(client: Client) -> None:
    client.send("w7", "x")
    worker, refused = Worker(client), list[RefusedByState]()

    @worker.consume("w7", group="shop")
    def end_it(message: Message[Any]) -> None:
        try:
            message.ack()
        except RefusedByState as error:
            refused.append(error)

    work_until(worker, lambda: len(refused) == 1)
    assert left(client, "w7") == []


def test_what_can_never_work_stops_the_worker_with_one_error(client: Client) -> None:
    with pytest.raises(ConfigurationError, match="has no consumer"):
        Worker(client).run()
    worker = Worker(client)
    worker.consume("w8", group="no group!")(print)
    with pytest.raises(ClientMistake, match="no group!"):
        work_until(worker, lambda: False)
    with pytest.raises(ConfigurationError, match="concurrency is 0"):
        worker.consume("w8", group="shop", concurrency=0)
    with pytest.raises(ClientMistake, match="without a unit"):
        worker.consume("w8", group="shop", lease="30")


def test_a_worker_over_many_topics_gets_all_messages_and_stops(client: Client) -> None:
    topics = [f"w20-{number}" for number in range(TOPICS)]
    client.send_many(NewMessage(topic, topic) for topic in topics)
    worker, got = Worker(client), Counter[str]()

    async def handle(message: Message[Any]) -> None:
        got[message.text] += 1

    for topic in topics:
        worker.consume(topic, group="shop")(handle)
    work_until(worker, lambda: len(got) == TOPICS, SECONDS_OF_MANY)
    assert got == Counter(topics)
    assert left(client, topics[0]) == left(client, topics[-1]) == []


def test_consumers_without_a_poll_of_their_own_take_turns_beside_busy_ones(client: Client) -> None:
    worker, got = Worker(client, polls_max=2), list[str]()

    async def send_another(message: Message[Any]) -> None:
        got.append(message.topic)
        await asyncio.to_thread(client.send, message.topic, "again")

    async def handle(message: Message[Any]) -> None:
        got.append(message.topic)

    for topic in ("w21-busy1", "w21-busy2"):
        client.send_many(NewMessage(topic, str(number)) for number in range(20))
        worker.consume(topic, group="shop")(send_another)
    for topic in ("w21-silent", "w21-rare"):
        worker.consume(topic, group="shop")(handle)
    client.send("w21-rare", "x")
    work_until(worker, lambda: "w21-rare" in got)
    assert {"w21-busy1", "w21-busy2"} < set(got)


@pytest.mark.parametrize("polls_max", [0, 1_001])
def test_polls_out_of_range_are_refused(client: Client, polls_max: int) -> None:
    with pytest.raises(ConfigurationError, match=f"polls_max is {polls_max}: give 1 to 1000"):
        Worker(client, polls_max=polls_max)


class Called:
    """A callable whose call is a coroutine, which it does not say."""

    def __init__(self) -> None:
        self.got: list[str] = []

    def __call__(self, message: Message[Any]) -> Any:
        return self._work(message)

    async def _work(self, message: Message[Any]) -> None:
        self.got.append(message.text)


def test_no_message_is_acknowledged_whose_function_has_not_run(client: Client) -> None:
    client.send("w12", "x")
    worker, called = Worker(client), Called()
    worker.consume("w12", group="shop")(called)
    work_until(worker, lambda: called.got == ["x"])

    def generate(message: Message[Any]) -> Iterator[str]:
        yield message.text

    with pytest.raises(ConfigurationError, match="generate is a generator"):
        worker.consume("w12", group="shop")(generate)


def test_little_memory_is_enough_for_any_backlog(client: Client) -> None:
    client.send_many(NewMessage("w9", "x" * 100_000) for _ in range(20))
    worker, got = Worker(client, bytes_max=1), list[int]()
    at_once = list[int]()

    @worker.consume("w9", group="shop", concurrency=1)
    async def handle(message: Message[Any]) -> None:
        at_once.append(1)
        await asyncio.sleep(0)
        got.append(len(at_once))
        at_once.clear()

    work_until(worker, lambda: len(got) == 20)
    assert set(got) == {1}


PROGRAM = """
import sys, time
from pathlib import Path
from tidewheel import Client, Worker

folder, worker = Path(sys.argv[1]), Worker(Client(sys.argv[2]))

@worker.consume(sys.argv[3], group="shop", concurrency=2, lease="60s")
def handle(message):
    (folder / f"begun-{message.text}").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    (folder / f"done-{message.text}").touch()

worker.run()
"""


def started(folder: Path, serving: Serving, topic: str) -> subprocess.Popen[bytes]:
    (folder / "app.py").write_text(PROGRAM)
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, folder / "app.py", folder, serving.http, topic], stdout=log, stderr=log
        )


def until(condition: Callable[[], object]) -> None:
    ends = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.01)


def test_a_worker_that_is_terminated_finishes_what_it_began(
    client: Client, serving: Serving, tmp_path: Path
) -> None:
    client.send_many(NewMessage("w10", str(n)) for n in range(5))
    process = started(tmp_path, serving, "w10")
    until(lambda: len(list(tmp_path.glob("begun-*"))) == 2)
    process.send_signal(signal.SIGTERM)
    (tmp_path / "go").touch()
    assert process.wait(SECONDS) == 0, (tmp_path / "log").read_text()
    done = {one.name.removeprefix("done-") for one in tmp_path.glob("done-*")}
    assert len(done) == 2
    rest = {one.text for one in client.receive("w10", "shop", count=10, wait="5s")}
    assert rest == {str(n) for n in range(5)} - done, "each of the others is free at once"


def work(folder: Path, serving: Serving, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "work", *arguments], cwd=folder, env=os.environ | {"TIDEWHEEL_HTTP": serving.http},
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip


APPLICATION = """
import os, signal
from tidewheel import Worker

worker = Worker()
nothing = 3

@worker.consume("w13", group="shop")
def handle(message):
    print("got", message.text, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
"""


def test_the_command_runs_the_worker_of_a_module(client: Client, serving: Serving, tmp_path: Path) -> None:
    (tmp_path / "services").mkdir()
    (tmp_path / "services" / "messages.py").write_text(APPLICATION)
    client.send("w13", "x")
    ran = work(tmp_path, serving, "services.messages:worker", "--concurrency", "3")
    assert (ran.returncode, ran.stdout) == (0, "got x\n"), ran.stderr
    assert "w13 of group shop: handle, 3 at once" in ran.stderr
    assert "HTTP Request" not in ran.stderr
    assert left(client, "w13") == []


FAILING = """
import os, signal
from tidewheel import Worker

worker = Worker()

@worker.consume("w15", group="shop", dead_on=[ValueError])
def handle(message):
    os.kill(os.getpid(), signal.SIGTERM)
    raise ValueError(f"no order {message.text}")
"""


def test_an_error_that_quotes_a_body_neither_moves_the_cursor_nor_forges_a_line(
    client: Client, serving: Serving, tmp_path: Path
) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    client.send(
        "w15", "\x1b]0;owned\x07\x1b[2J\r2026-11-28 all is well\n2026-11-28 INFO forged\x9b31m\u202egnp.exe"
    )
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "work", "failing:worker"], cwd=tmp_path, stderr=theirs,
        env=os.environ | {"TIDEWHEEL_HTTP": serving.http},
    ) as process:  # fmt: skip
        assert process.wait(SECONDS) == 0
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # at the end of what a terminal got
        while more := os.read(ours, 65_536):
            shown += more
    os.close(ours)
    lines = shown.decode().replace("\r\n", "\n").removesuffix("\n").split("\n")
    assert all(line.isprintable() for line in lines), lines
    assert [line for line in lines if "forged" in line and not line.startswith("  ")] == []
    assert any(r"no order \x1b]0;owned" in line for line in lines)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("messages", "write MODULE:NAME"),
        ("messages:worker", "There is no module 'messages'"),
        ("application:missing", "'missing' of module application is not there"),
        ("application:nothing", "'nothing' of module application is of type int"),
        ("..application:worker", "There is no module '..application'"),
    ],
)
def test_the_command_says_what_is_no_worker(serving: Serving, tmp_path: Path, target: str, said: str) -> None:
    (tmp_path / "application.py").write_text(APPLICATION)
    ran = work(tmp_path, serving, target)
    assert ran.returncode == 2
    assert ran.stderr.startswith("TW-120 ")
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("how", ["def", "async def"])
def test_a_second_signal_ends_a_worker_whose_function_hangs(
    client: Client, serving: Serving, tmp_path: Path, first: int, second: int, how: str
) -> None:
    topic = f"w14-{int(first)}-{int(second)}-{how[:3]}"
    wait = "await asyncio.Event().wait()" if how == "async def" else "threading.Event().wait()"
    (tmp_path / "hangs.py").write_text(
        "import asyncio, threading\nfrom tidewheel import Worker\nworker = Worker()\n"
        f"@worker.consume({topic!r}, group='shop')\n{how} hang(message):\n"
        f"    print('hangs', flush=True)\n    {wait}\n"
    )
    client.send(topic, "x")
    with subprocess.Popen(
        [*COMMAND, "work", "hangs:worker"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"TIDEWHEEL_HTTP": serving.http}, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline() == "hangs\n"
            process.send_signal(first)
            while "A second signal ends it at once" not in process.stderr.readline():
                assert process.poll() is None
            process.send_signal(second)
            assert process.wait(SECONDS) == -second
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        ("def deep():\n    raise RuntimeError('no database')\ndeep()", "RuntimeError: no database"),
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("def deep(:", "SyntaxError: "),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_by_its_own_lines(
    serving: Serving, tmp_path: Path, code: str, raised: str
) -> None:
    (tmp_path / "broken.py").write_text(code)
    ran = work(tmp_path, serving, "broken:worker")
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1].startswith(
        f"TW-120 A setting cannot be used. Module 'broken' cannot be imported: {raised}"
    )
    assert str(tmp_path / "broken.py") in ran.stderr, "where it broke"
    for foreign in ("importlib", "runpy", "tidewheel/client"):
        assert foreign not in ran.stderr, "no line of others"


def test_a_worker_that_is_killed_loses_nothing(serving: Serving, client: Client, tmp_path: Path) -> None:
    client.send("w11", "x")
    process = started(tmp_path, serving, "w11")
    until(lambda: list(tmp_path.glob("begun-*")))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    serving.run("group", "reset", "shop", "--topic", "w11", "--to", "earliest", "--yes")
    assert left(client, "w11") == ["x"]


WRITER = """
import sys
from tidewheel import Client, Worker

worker = Worker(Client(sys.argv[2]))

@worker.consume("w14", group="shop", concurrency=8, lease="1s")
def handle(message):
    with open(sys.argv[1], "a") as lines:
        lines.write(message.group + " " + message.text + "\\n")

worker.run()
"""


def test_workers_that_are_killed_lose_nothing_and_keep_the_order(
    client: Client, serving: Serving, tmp_path: Path
) -> None:
    groups, count, kills = [f"g{n}" for n in range(10)], 60, 5
    client.send_many(NewMessage("w14", str(n), group=group) for n in range(count) for group in groups)
    lines, program = tmp_path / "lines", tmp_path / "app.py"
    lines.touch()
    program.write_text(WRITER)
    command = [sys.executable, program, lines, serving.http]
    for kill in range(1, kills + 1):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        until(lambda wanted=kill * 80: len(lines.read_text().splitlines()) >= wanted)
        process.kill()
        process.wait()
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    everything = {f"{group} {n}" for n in range(count) for group in groups}
    until(lambda: everything <= set(lines.read_text().splitlines()))
    process.terminate()
    assert process.wait(SECONDS) == 0
    got = lines.read_text().splitlines()
    for group in groups:
        numbers = [int(one.split()[1]) for one in got if one.startswith(f"{group} ")]
        assert numbers == sorted(numbers), "what was acknowledged came again, or later ones came first"
    assert len(got) - len(everything) <= kills * 8, "more came again than was in hand"


def test_a_function_that_runs_over_a_restart_of_the_broker_is_run_once(
    tidewheel: Tidewheel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidewheel.worker")
    client = tidewheel.client
    client.send("orders", "x")
    worker, got, done = Worker(client), list[str](), list[str]()

    @worker.consume("orders", group="shop")
    def handle(message: Message[Any]) -> None:
        got.append(message.text)
        tidewheel.crash()
        tidewheel.restart()
        until(lambda: any("has a new lease" in one.getMessage() for one in list(caplog.records)))
        done.append(message.text)

    work_until(worker, lambda: bool(done))
    assert got == ["x"], "the message that came again was in hand"
    assert left(client, "orders") == []


def test_a_worker_outlives_its_broker(tidewheel: Tidewheel) -> None:
    client = tidewheel.client
    client.send_many(NewMessage("orders", str(n)) for n in range(3))
    worker, got = Worker(client), list[str]()

    @worker.consume("orders", group="shop", concurrency=1)
    def handle(message: Message[Any]) -> None:
        got.append(message.text)
        if len(got) == 1:
            tidewheel.crash()
            tidewheel.restart()

    work_until(worker, lambda: set(got) == {"0", "1", "2"})
    assert left(client, "orders") == []
