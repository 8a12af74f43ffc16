"""A node in an asyncio loop: it follows the shared log, stands when that is silent, leads, and steps down.

    OPENING   --the replica is open, at its newest checkpoint-->         FOLLOWING
    FOLLOWING --nothing was heard for long enough (`silence`)-->         STANDING
    STANDING  --its own EPOCH was read-->                                LEADING
              --another one's, or no answer-->                           FOLLOWING
    LEADING   --an append was not proven, or the disk failed-->          OPENING
    any       --the shared log is not one history-->                     HALTED, until the process ends

Rules
1. Who leads is what the shared log says; a node asks no other node. `leader` tells what the newest EPOCH says
   of its writer: the addresses to which calls are forwarded.
2. While it follows, the node reads in a worker thread, some POLL_SECONDS after it has read all there was, and
   its core belongs to that thread. Once it leads the core belongs to the loop (`services.live.live_broker`).
3. A node that steps down throws its core away: that may hold what was never accepted. The node opens its
   replica again, which goes back to the newest checkpoint, and follows.
4. A leader that is told to stop writes out what it has, and a BEAT that says it leaves: the next one stands
   at once.
5. What the engine does not answer is tried again for ever; what the log says against itself, never: `halted`
   has the sentence.

Weak spot: a takeover takes over the core as it is, so all that `Broker.begin` derives is derived between the
EPOCH and the first answer.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import zlib
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, suppress
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import structlog

from commitlog.disk import Disk
from commitlog.errors import StoreError
from services.broker.broker import Broker
from services.broker.settings import BrokerSettings
from services.cluster.errors import OtherKey
from services.cluster.one_key import OneKey
from services.cluster.pace import Pace
from services.cluster.replica import Replica
from services.cluster.silence import BEAT_MS, Silence
from services.live.durability import Answers, Proving
from sharedlog.engine import Engine, Head
from sharedlog.errors import Halted, NoCluster, NotAccepted, Refused, Trimmed, Unknown
from sharedlog.fold import Fold, Outcome, Position, Step
from sharedlog.leading import Candidate
from sharedlog.reading import READ_BYTES
from sharedlog.record import Kind, encode

POLL_SECONDS: Final = 0.05
BEHIND_SECONDS: Final = 0.5
"""How long a node waits before it tries again what has failed."""
HOLDER_BYTES: Final = 16
EPOCH_SECONDS: Final = 3.0
"""How long a candidate waits for its EPOCH to be read back."""

log = structlog.get_logger()
Result = TypeVar("Result")


class Role(StrEnum):
    """What a node does."""

    OPENING = "opening"
    FOLLOWING = "following"
    STANDING = "standing"
    LEADING = "leading"
    HALTED = "halted"


class Member(NamedTuple):
    """A node as its EPOCH tells of it: its name, where it serves clients (`HOST:PORT`), its HTTP's URL."""

    node: str
    listen: str
    http: str
    version: str = ""
    key: str = ""
    """The id of its key of users' secrets (`services.cluster.one_key`)."""


class TookOver(NamedTuple):
    """A takeover: when, in ms since 1970, and why."""

    at_ms: int
    why: str


class Leading(Protocol):
    """A broker that serves the core of a leader."""

    @property
    def broken(self) -> asyncio.Future[None]:
        """Set when the core has met a bug."""

    @property
    def answers(self) -> Answers:
        """The answers that wait."""

    def fail(self, error: OSError) -> None:
        """Let the core go: an append was not accepted."""


Serve = Callable[[Broker, Callable[[OSError], None], Proving], AbstractAsyncContextManager[Leading]]
"""Serve a core while the block lasts; the second argument is called once when the core was let go."""


class ClusterNode:
    """One node. `me` is what its EPOCHs say; `clock` is wall time in ms."""

    def __init__(
        self,
        me: Member,
        cluster: bytes,
        engine: Engine,
        disk: Disk,
        settings: BrokerSettings,
        clock: Callable[[], int],
        executor: Executor,
        serve: Serve,
    ) -> None:
        self.me, self._cluster, self._engine = me, cluster, engine
        self._disk, self._settings, self._clock, self._executor = disk, settings, clock, executor
        self._serve = serve
        self._loop = asyncio.get_running_loop()
        self.role = Role.OPENING
        self.leader: Member | None = None
        """Who leads, as far as this node has read; None if of nobody, or that the leader leaves."""
        self.epoch = 0
        self.halted = ""
        self.takeovers = 0
        self.took_over: TookOver | None = None
        """The last time when this node began to lead."""
        self.pace = Pace(clock, monotonic_ms)
        self._names, self._one_key = {me.node}, OneKey(me.node, me.key)
        self._read_ms = 0
        self._end = self._next_offset = 0
        self._silence = Silence(monotonic_ms())
        self._changed = asyncio.Event()
        self._leaving: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> None:
        """Follow and lead until the node leaves; raise what is a bug."""
        while not self._leaving.done():
            try:
                self._become(Role.OPENING)
                replica = await self._work(self._open)
                if await self._follow(replica):
                    await self._lead(replica)
            except (Halted, Trimmed, NoCluster, OtherKey) as error:
                self.halted = str(error)
                log.error("halted", reason=self.halted)
                self._become(Role.HALTED)
                await self._leaving
            except (OSError, StoreError) as error:
                log.error("the replica is opened again", reason=str(error))
                await self._pause(BEHIND_SECONDS)

    def leave(self) -> None:
        """Stop following, or leading, as soon as that can be."""
        if not self._leaving.done():
            self._leaving.set_result(None)

    async def led_by(self, seconds: float) -> tuple[int, Member]:
        """Return the epoch and who leads in it, once this node knows; raise TimeoutError if not in time."""
        async with asyncio.timeout(seconds):
            while self.leader is None or (self.leader == self.me and self.role is not Role.LEADING):
                await self._changed.wait()
        return self.epoch, self.leader

    async def moved_from(self, epoch: int) -> None:
        """Return when this node has read of another epoch."""
        while self.epoch == epoch:
            await self._changed.wait()

    def view(self) -> dict[str, Any]:
        """Return what the node knows of itself and the leader, as JSON can hold it."""
        return {
            "node": self.me.node,
            "role": self.role.value,
            "epoch": self.epoch,
            "leader": None if self.leader is None else self.leader._asdict(),
            "end_offset": self._end,
            "next_record": self._next_offset,
            "read_ms_ago": monotonic_ms() - self._read_ms if self._read_ms else None,
            "takeovers": self.takeovers,
            "nodes": sorted(self._names),
            "took_over": None if self.took_over is None else self.took_over._asdict(),
            "halted": self.halted,
        } | self.pace.view(leads=self.role is Role.LEADING)

    # Following.

    def _open(self) -> Replica:
        return Replica.open(self._disk, self._settings, self._clock(), self._cluster)

    async def _follow(self, replica: Replica) -> bool:
        """Take in what the leader writes; return True once this node leads, False if it leaves.

        Raise `Halted`, `Trimmed`, `NoCluster` or `OtherKey`, and OSError where the replica is void.
        """
        self._become(Role.FOLLOWING)
        self._silence.away(monotonic_ms())
        while not self._leaving.done():
            try:
                count = await self._work(lambda: self._take_some(replica))
            except Unknown as error:
                self._silence.away(monotonic_ms())
                log.warning("the shared log does not answer", reason=str(error))
                await self._pause(BEHIND_SECONDS)
                continue
            if replica.core.is_checkpoint_due:
                await self._work(lambda: replica.checkpoint(self._clock()))
            if count:
                continue
            self._one_key.check()
            if monotonic_ms() >= self._silence.stands_ms(self._rank()) and await self._stand(replica):
                return True
            await self._pause(POLL_SECONDS)
        return False

    def _take_some(self, replica: Replica) -> int:
        """Take what the log has now, up to some MiB, in a worker thread; return the number of records."""
        fold = replica.fold
        found = self._engine.read(fold.next_offset, READ_BYTES)
        self._read_ms = monotonic_ms()
        if found and found[0].offset > fold.next_offset:
            first, _ = self._engine.bounds()
            if first > fold.next_offset:
                raise Trimmed(f"The shared log begins at record {first}; this node has {fold.next_offset}.")
        for one in found:
            step = replica.take(one.offset, one.stored, self._clock())
            if step.outcome is Outcome.READ_AGAIN:
                break
            self._loop.call_soon_threadsafe(self._note, step, monotonic_ms())
        self._end, self._next_offset = fold.end, fold.next_offset
        self.pace.read(found, lambda: self._engine.bounds()[1])
        return len(found)

    def _note(self, step: Step, now_ms: int) -> None:
        """Take in what a record says of who leads."""
        record = step.record
        if record is None or step.outcome in (Outcome.DEAD, Outcome.ALREADY_HAD, Outcome.NOTED):
            return
        leaves = False
        self._one_key.note(record)
        if record.kind == Kind.EPOCH:
            self.epoch = record.epoch
            self.leader = Member(**record.facts)
            self._names.add(self.leader.node)
            log.info("epoch", epoch=self.epoch, leader=self.leader.node)
        elif record.kind == Kind.BEAT and record.facts.get("leaves"):
            leaves, self.leader = True, None
        self._silence.heard(now_ms, leaves=leaves)
        self._tell()

    def _rank(self) -> int:
        return sorted(self._names).index(self.me.node)

    async def _stand(self, replica: Replica) -> bool:
        """Try to lead; return whether the shared log says so."""
        self._become(Role.STANDING)
        why = self._why()
        self._silence.stood(monotonic_ms())
        try:
            won = await self._work(lambda: self._stand_once(replica))
        except (Unknown, Refused) as error:
            log.info("stood and does not lead", reason=str(error))
            won = False
        if won:
            self.took_over = TookOver(self._clock(), why)
        else:
            self._become(Role.FOLLOWING)
        return won

    def _why(self) -> str:
        """Return why this node stands."""
        if self.leader is not None:
            return f"silence of node {self.leader.node}"
        return "the leader left" if self.epoch else "nobody led"

    def _stand_once(self, replica: Replica) -> bool:
        """Append an EPOCH, read up to it, and see whose it is. In a worker thread."""
        fold = replica.fold
        while self._take_some(replica):
            pass
        if not fold.is_founded:
            return False
        candidate = Candidate(fold, secrets.token_bytes(HOLDER_BYTES), self.me._asdict())
        head = Head(fold.epoch, fold.holder, Position(fold.end, fold.chain))
        following = Head(candidate.epoch.epoch, candidate.epoch.holder, head.position)
        offset = self._engine.append_if(head, [encode(candidate.epoch)], following)
        if offset is None:
            return False
        until_ms = monotonic_ms() + EPOCH_SECONDS * 1000
        while fold.next_offset <= offset and monotonic_ms() < until_ms:
            self._take_some(replica)
        return fold.next_offset > offset and candidate.has_won(fold, self._crc_again(candidate, fold))

    def _crc_again(self, candidate: Candidate, fold: Fold) -> int | None:
        """Read again what was read last before the node stood; return its CRC-32, None if it was trimmed."""
        offset = candidate.reads_again
        if offset is None:
            return None
        found = self._engine.read(offset, 1)
        if found and found[0].offset == offset:
            return zlib.crc32(found[0].stored)
        first, _ = self._engine.bounds()
        return None if first > offset else 0

    # Leading.

    async def _lead(self, replica: Replica) -> None:
        """Serve until an append is not proven, the disk fails, or the node leaves."""
        over: asyncio.Future[OSError] = self._loop.create_future()

        def stepped_down(error: OSError) -> None:
            if not over.done():
                over.set_result(error)

        replica.lead(self._engine, self._clock(), monotonic_ms)
        self.takeovers += 1
        wanted = asyncio.Event()
        async with self._serve(replica.core, stepped_down, Proving(monotonic_ms, wanted.set)) as leading:
            self._become(Role.LEADING)
            log.info("leads", epoch=self.epoch, node=self.me.node, why=self.took_over and self.took_over.why)
            beating = self._loop.create_task(self._beat(replica, leading, wanted))
            ends: set[asyncio.Future[Any]] = {over, self._leaving, leading.broken}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            beating.cancel()
            with suppress(asyncio.CancelledError):
                await beating
            self._become(Role.OPENING)
        if over.done():
            log.warning("stepped down", reason=str(over.result()))
        elif self._leaving.done() and replica.sink is not None:
            with suppress(NotAccepted):
                await self._work(partial(replica.sink.beat, {"leaves": True}))

    async def _beat(self, replica: Replica, leading: Leading, wanted: asyncio.Event) -> None:
        """Write a BEAT whenever nothing was written for a while, or an answer wants a proof."""
        sink = replica.sink
        assert sink is not None, "a leader has a sink"
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_MS / 1000 / 3):
                    await wanted.wait()
            self._end = replica.fold.end
            if not wanted.is_set() and monotonic_ms() - sink.proven_ms < BEAT_MS:
                continue
            wanted.clear()
            try:
                await self._work(lambda: sink.beat({"clock_ms": self._clock()} | self._one_key.facts))
            except NotAccepted as error:
                leading.fail(error)
                return
            self._silence.led()
            leading.answers.proven(sink.proven_ms)

    # The loop.

    def _become(self, role: Role) -> None:
        if self.role is not role:
            self.role = role
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _work(self, act: Callable[[], Result]) -> Result:
        return await self._loop.run_in_executor(self._executor, act)

    async def _pause(self, seconds: float) -> None:
        await asyncio.wait({self._leaving}, timeout=seconds)


def monotonic_ms() -> int:
    """Return a clock of this machine that never goes back, in ms."""
    return time.monotonic_ns() // 1_000_000
