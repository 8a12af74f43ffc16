"""A library of another language behind the verbs of `official`: a process that is told what to do.

`libraries` has the programs; all of them read the same JSON lines, which `node/scenarios.js` describes. Push
consumers are not shut down one by one: libraries wait for their long polls, up to 20 s each. They end with
the process.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace
from itertools import count
from threading import Lock, Thread
from typing import Any

from tests.clients.libraries import Library
from tests.clients.official import Got, Plan, Refused, Seen, Sent

ANSWER_SECONDS = 60
STOP_SECONDS = 30


class ProcessClient:
    """A process with one producer, and the consumers that it was told to start."""

    def __init__(self, library: Library, listen: str, environment: dict[str, str]) -> None:
        self.name = library.name
        self._process = subprocess.Popen(
            [*library.command, listen],
            cwd=library.folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._numbers = count(1)
        self._telling = Lock()
        self._waiting: dict[int, Future[Any]] = {0: Future()}
        self._simple: list[int] = []
        started = self._waiting[0]
        Thread(target=self._listen, daemon=True).start()
        assert started.result(ANSWER_SECONDS) == "started"

    def send(self, topic: str, body: str, **attributes: Any) -> Sent:
        return Sent(**self.do("send", topic=topic, body=body, **attributes))

    def recall(self, topic: str, recall_handle: str) -> str:
        return str(self.do("recall", topic=topic, recall_handle=recall_handle))

    def send_half(self, topic: str, name: str) -> None:
        self.do("send_half", topic=topic, name=name)

    def end_half(self, name: str, how: str) -> None:
        self.do("end_half", name=name, how=how)

    def answer_checks(self, name: str, *how: str) -> None:
        self.do("answer_checks", name=name, how=list(how))

    def simple(
        self, topic: str, group: str, filter_: str = "*", *, is_sql: bool = False, await_seconds: int = 5
    ) -> Simple:
        wanted = {"topic": topic, "group": group, "filter": filter_, "is_sql": is_sql}
        number = self.do("simple", **wanted, await_seconds=await_seconds)
        self._simple.append(number)
        return Simple(self, number)

    def push(
        self, topic: str, group: str, plan: Plan | None = None, filter_: str = "*", *, is_sql: bool = False
    ) -> Push:
        wanted = {"topic": topic, "group": group, "filter": filter_, "is_sql": is_sql}
        return Push(self, self.do("push", **wanted, plan=asdict(plan or Plan())))

    def lite_simple(self, topic: str, group: str, *, await_seconds: int = 5) -> Any:
        raise NotImplementedError(f"the {self.name} client has no simple consumer of lite topics")

    def lite_push(self, topic: str, group: str, plan: Plan | None = None) -> LitePush:
        return LitePush(self, self.do("lite_push", topic=topic, group=group, plan=asdict(plan or Plan())))

    def close(self) -> None:
        while self._simple:
            self.do("close", consumer=self._simple.pop())

    def stop(self) -> None:
        """End the process as its user would."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(STOP_SECONDS) == 0

    def kill(self) -> None:
        """End the process as a crash would: its consumers say no goodbye."""
        self._process.kill()
        self._process.wait()

    def begin(self, verb: str, **arguments: Any) -> Future[Any]:
        """Tell it to do something; the answer comes when it is there."""
        number, answer = next(self._numbers), Future[Any]()
        self._waiting[number] = answer
        assert self._process.stdin is not None
        with self._telling:
            self._process.stdin.write(json.dumps({"id": number, "verb": verb, "arguments": arguments}) + "\n")
            self._process.stdin.flush()
        return answer

    def do(self, verb: str, **arguments: Any) -> Any:
        """Tell it to do something, and wait for the answer."""
        return self.begin(verb, **arguments).result(ANSWER_SECONDS)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            waiting = self._waiting.pop(answer["id"])
            if "refused" in answer:
                waiting.set_exception(Refused(answer["refused"]))
            else:
                waiting.set_result(answer["told"])
        for waiting in self._waiting.values():
            waiting.set_exception(RuntimeError(f"the {self.name} process has ended"))


class Simple:
    """A simple consumer of the process."""

    def __init__(self, client: ProcessClient, number: int) -> None:
        self._client, self.number = client, number

    def receive(self, count: int = 32, lease_seconds: int = 30) -> list[Got]:
        return self.receiving(count, lease_seconds).result(ANSWER_SECONDS)

    def receiving(self, count: int = 32, lease_seconds: int = 30) -> Future[list[Got]]:
        wanted = {"consumer": self.number, "count": count, "lease_seconds": lease_seconds}
        answer, received = self._client.begin("receive", **wanted), Future[list[Got]]()
        answer.add_done_callback(lambda done: hand_over(done, received))
        return received

    def ack(self, got: Got) -> None:
        self._client.do("ack", consumer=self.number, native=got.native, handle=got.handle)

    def change_invisible(self, got: Got, seconds: int) -> Got:
        wanted = {"consumer": self.number, "native": got.native, "handle": got.handle, "seconds": seconds}
        return replace(got, handle=self._client.do("change_invisible", **wanted))


class Push:
    """A push consumer of the process."""

    def __init__(self, client: ProcessClient, number: int) -> None:
        self._client, self._number = client, number

    def seen(self) -> Sequence[Seen]:
        return [Seen(**call) for call in self._client.do("seen", consumer=self._number)]


class LitePush(Push):
    """A push consumer of lite topics of the process."""

    def subscribe_lite(self, lite_topic: str) -> None:
        self._client.do("subscribe_lite", consumer=self._number, lite_topic=lite_topic)

    def unsubscribe_lite(self, lite_topic: str) -> None:
        self._client.do("unsubscribe_lite", consumer=self._number, lite_topic=lite_topic)


def hand_over(answer: Future[Any], received: Future[list[Got]]) -> None:
    """Turn the process's answer to a receive into messages."""
    try:
        received.set_result([Got(**{**one, "keys": tuple(one["keys"])}) for one in answer.result()])
    except Exception as failure:
        received.set_exception(failure)
