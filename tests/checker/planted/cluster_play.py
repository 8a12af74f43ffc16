"""A cluster of the simulation (`cluster_world`) that records the history of its clients and its raw log.

The core's verbs are wrapped where clients call them: a call is recorded, and its end when it is answered. A
call without an answer before another node leads stays open, as for a real client; a send that is repeated
under the next leader is one call. Some messages belong to message groups. Times are true times, and the
errors of the nodes' clocks are recorded. The engine loses nothing, because the checker verifies against the
records that it accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from commitlog.records.message import Message
from services.broker.broker import Broker
from services.broker.spine.values import Resolution, Verdict
from services.live.durability import Answers
from sharedlog.errors import Halted
from tests.history_file import HistoryFile, content_hash, write_log
from tests.simulation.cluster_world import ClusterWorld, NobodyLeft, Node, Zombie
from tests.simulation.test_broker import GROUP, TOPIC
from tidewheel.errors import TidewheelError, TransactionEnded

LINES: Final = ("line-a", "line-b")
STEPS: Final = 300
LAST_FLUSHES: Final = 5
WRONG: Final = (AssertionError, OSError, ValueError, LookupError, TidewheelError, Halted, NobodyLeft)
"""The errors that end a schedule in which a rule is omitted."""


class WatchedCluster(ClusterWorld):
    """A cluster that records the history of its clients."""

    may_be_troubled = False
    tells_refusal = False
    """Whether unknown results are answered with "fail": the mutant `timeout_is_a_refusal`."""
    refuses_at_once = False
    """Whether a refusal is answered before its record is accepted: the mutant `refused_without_proof`."""

    def __init__(self, seed: int) -> None:
        self.history = HistoryFile()
        self._sends: dict[str, int] = {}
        self._expected, self._outcome = 0, "ok"
        self._told: dict[str, Any] = {}
        self._open: set[int] = set()
        self._clocks: dict[str, tuple[int, int]] = {}
        """By node: the error of its clock in ms, and the time since which it has it."""
        self.stopped = ""
        """The error that the world itself has found, which ended the schedule; empty for none."""
        super().__init__(seed)
        self.engine.clock = self._written_ms
        self.is_truncating = False  # the checker assumes an engine that keeps its promise

    # Calls of clients.

    def elect(self) -> Broker:
        """Elect a leader; wrap its core's verbs."""
        core = super().elect()
        self._watch(core.sending, "send", self._watch_send)
        self._watch(core.transactions, "end", self._watch_end)
        self._watch(core.timers, "recall", self._watch_recall)
        self._watch(core.receiving, "receive", self._watch_receive)
        self._watch(core.receiving, "ack", self._watch_ack)
        return core

    def _watch(self, part: Any, verb: str, watched: Callable[..., Any]) -> None:
        kept = getattr(part, verb)
        setattr(part, verb, lambda *given: watched(kept, *given))

    def _watch_send(self, send: Callable[..., Any], message: Message, now_ms: int) -> Any:
        call = self._sends.get(message.message_id) or self._invoke("send", **_sent(message))
        self._sends[message.message_id] = call
        receipt = send(message, now_ms)
        self._expect(call, offset=receipt.physical_offset, queue_offset=receipt.queue_offset)
        return receipt

    def _watch_end(
        self,
        end: Callable[..., Any],
        topic: str,
        transaction: str,
        message_id: str,
        how: Resolution,
        *rest: Any,
    ) -> Any:
        call = self._invoke("end", id=message_id, topic=topic, resolution=how.value.lower())
        self._expect(call)
        try:
            return end(topic, transaction, message_id, how, *rest)
        except TransactionEnded:
            other = Resolution.ROLLBACK if how is Resolution.COMMIT else Resolution.COMMIT
            self._outcome, self._told = "fail", {"ended": other.value.lower()}
            if self.refuses_at_once:
                self._tell_now(call, self._outcome, **self._told)
            raise

    def _watch_recall(self, recall: Callable[..., Any], topic: str, handle: str, now_ms: int) -> Any:
        verdict = recall(topic, handle, now_ms)
        call = self._invoke("recall", id=verdict.message_id, topic=topic)
        self._expect(call)
        if verdict.verdict not in (Verdict.CANCELLED, Verdict.ALREADY):
            self._tell_now(call, "fail")
        return verdict

    def _watch_receive(self, receive: Callable[..., Any], group: str, topic: str, *given: Any) -> Any:
        call = self._invoke("receive", topic=topic, group=group)
        got = receive(group, topic, *given)
        seen = [
            (one.message.message_id, one.queue_id, one.queue_offset, one.attempt) for one in got.deliveries
        ]
        self._expect(0)
        self._tell(got.durable_at, lambda: self._see(call, seen))
        return got

    def _watch_ack(self, ack: Callable[..., Any], group: str, topic: str, handle: str, now_ms: int) -> Any:
        queue, offset = map(int, handle.split(" ")[6:8])
        message_id = self._id_at.get((queue, offset), "")
        call = self._invoke("ack", id=message_id, topic=topic, group=group, queue=queue, offset=offset)
        self._expect(call)
        try:
            return ack(group, topic, handle, now_ms)
        except TidewheelError:
            self._tell_now(call, "fail")
            raise

    @property
    def _id_at(self) -> dict[tuple[int, int], str]:
        return {place: name for name, places in self.places.items() for place in places}

    def _see(self, call: int, seen: list[tuple[str, int, int, int]]) -> None:
        for message_id, queue, offset, attempt in seen:
            self.history.saw(call, self.client_ms, message_id, queue, offset, attempt)
        self._tell_now(call, "ok")

    def _invoke(self, verb: str, **fields: Any) -> int:
        call = self.history.invoke("client", self.client_ms, verb, **fields)
        self._open.add(call)
        return call

    def _expect(self, call: int, **told: Any) -> None:
        """Record the next answer as that of this call."""
        self._expected, self._outcome, self._told = call, "ok", told

    def _give(self, answers: Answers, durable_at: int, news: Callable[[], object]) -> None:
        call, end, told, self._expected = self._expected, self._outcome, self._told, 0

        def hear() -> None:
            if call:
                self._tell_now(call, end, **told)
            news()

        super()._give(answers, durable_at, hear)

    def _tell_now(self, call: int, end: str, **told: Any) -> None:
        self._open.discard(call)
        self.history.end(call, end, self.client_ms, **told)

    # Events of the world.

    def _message(self) -> Message:
        message = super()._message()
        message.body = message.message_id.encode() + message.body
        return message

    def send(self) -> None:
        """Send a message; 30 % of them belong to a message group."""
        message = self._message()
        if self.chance.random() < 0.3:
            message.message_group = self.chance.choice(LINES)
        self._send_first(message)

    def _reopen(self, acknowledged_offset: int | None) -> None:
        self._refuse()
        super()._reopen(acknowledged_offset)

    def _refuse(self) -> None:
        if self.tells_refusal:
            for call in sorted(self._open):
                self._tell_now(call, "fail")

    def _wake(self, zombie: Zombie) -> None:
        """Wake a zombie; if its append was accepted, answer its callers."""
        try:
            super()._wake(zombie)
        except AssertionError:
            zombie.answers.advance(1 << 62)
            raise

    def _set_clock(self, node: Node) -> None:
        super()._set_clock(node)
        self._note_clocks(self.client_ms)

    def _note_clocks(self, true_ms: int) -> None:
        """Record the periods of clock errors that end now, and the start of new ones."""
        for node in self.nodes:
            before_ms, since_ms = self._clocks.get(node.name, (0, true_ms))
            if node.ahead_ms != before_ms:
                self._note_clock(node.name, before_ms, since_ms, true_ms)
                self._clocks[node.name] = node.ahead_ms, true_ms

    def _note_clock(self, node: str, offset_ms: int, from_ms: int, until_ms: int) -> None:
        if offset_ms:
            self.history.note("clock", node=node, offset_ms=offset_ms, from_ms=from_ms, until_ms=until_ms)

    def _written_ms(self) -> int:
        """Set the engine's clock to the true time; return the leader's, by which the record is written."""
        self.engine.now_ms = self.client_ms
        return self.now_ms

    def settle(self) -> None:
        """Settle the world, and record that the group has received all messages."""
        true_ms = self.client_ms
        super().settle()
        self._note_clocks(true_ms)
        self.history.note("settled", group=GROUP, topics=[TOPIC])

    def tell_the_rest(self) -> None:
        """Answer the calls that were decided when the world stopped, as would have happened later."""
        self.engine.is_well = True
        self.leader.disk.well()
        for _ in range(LAST_FLUSHES):
            super().flush()
        self._beat()
        self._hear()

    def dump(self, folder: Path) -> tuple[Path, Path]:
        """Write the history and the whole raw log, including trimmed records; return their paths."""
        history, log = folder / "history.jsonl", folder / "log.bin"
        for node, (offset_ms, since_ms) in self._clocks.items():
            self._note_clock(node, offset_ms, since_ms, self.client_ms)
        self._clocks.clear()
        self.history.write(history)
        engine = self.engine
        write_log(log, 0, zip(range(engine.end_offset), engine._taken_ms, engine.records, strict=True))
        return history, log


def play(seed: int, world: type[WatchedCluster] = WatchedCluster, steps: int = STEPS) -> WatchedCluster:
    """Run a schedule to its end, or until a check of the world fails (`stopped`)."""
    played = world(seed)
    try:
        for _ in range(steps):
            played.step()
            played.around()
        played.compare()
        played.settle()
    except WRONG as error:
        played.stopped = f"{type(error).__name__}: {error}"
        with suppress(*WRONG):
            played.tell_the_rest()
    return played


def _sent(message: Message) -> dict[str, Any]:
    kind = "plain"
    if message.transactional:
        kind = "half"
    elif message.delivery_ms is not None:
        kind = "delayed"
    elif message.message_group:
        kind = "fifo"
    fields = {"kind": kind, "id": message.message_id, "topic": message.topic}
    fields |= {"hash": content_hash(message.body), "line": message.message_group}
    return fields | {"due_ms": message.delivery_ms or 0}
