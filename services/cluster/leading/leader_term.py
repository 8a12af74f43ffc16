"""The leadership of a node during one epoch. The core serves clients, and followers send reports.

    begin                 starts to serve clients with the core, which writes to the shared log
    beat                  appends a BEAT record, and releases the core if the append is not confirmed
                          (`SharedSink`)
    check_copy_and_log    checks the copy, the clock and the log in worker threads, trims the log, and returns
                          the results
    end                   stops serving clients; `hand_over` then announces the resignation in the shared log

The election state machine determines when each method is called (`services.cluster.election.machine`). While
a node is the leader, the event loop owns the core. Only disk and engine calls run in other threads.

Limitation: a new leader keeps the core that the node used as a follower. The method `Broker.begin` must
therefore derive the additional state of a leader before the first call is answered.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

import structlog

from services.broker.broker import Broker
from services.cluster.election.health import Health
from services.cluster.election.inputs import (
    BeatRequest,
    HealthCheckCompleted,
    HeartbeatAppended,
    LeadershipEnded,
    LeadershipGained,
    Tick,
    read_progress_of,
)
from services.cluster.leading import followers
from services.cluster.leading.followers import Followers
from services.cluster.leading.log_damage import LogDamage, LogState
from services.cluster.node_actions import NodeActions
from services.cluster.peers import Identity
from services.live.durability import Answers, LeadershipProofs
from services.live.errors import ResultUnknown
from sharedlog.errors import EngineRefused, EngineUnavailable, LogDamaged, NotAccepted
from sharedlog.fold import Fold
from sharedlog.sink import SharedSink

log = structlog.get_logger()


class LeaderService(Protocol):
    """A broker that serves clients from the leader's core."""

    @property
    def broken(self) -> asyncio.Future[None]:
        """A future that fails when an unexpected error occurs in the core."""

    @property
    def answers(self) -> Answers:
        """The answers that are sent to clients when their records are durable."""

    def fail(self, error: OSError) -> None:
        """Release the core after an append that was not confirmed."""


ServeCore = Callable[
    [Broker, Callable[[OSError], None], LeadershipProofs], AbstractAsyncContextManager[LeaderService]
]
"""Serve a core for the duration of a block, and call the second argument if the core is released."""
RunInWorker = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Run a function in a worker thread."""


class LeaderCallbacks(NamedTuple):
    """Callbacks for the release of the core, a request for a proof of leadership, and a core failure."""

    core_released: Callable[[OSError], None]
    proof_requested: Callable[[], None]
    broken: Callable[[asyncio.Future[None]], None]


class LeaderTerm:
    """The leadership of a node during one epoch, with the open replica of `actions`."""

    def __init__(
        self,
        actions: NodeActions,
        own_health: Health,
        serve: ServeCore,
        work: RunInWorker,
        told: LeaderCallbacks,
    ) -> None:
        self._actions, self._health, self._serve, self._work, self._told = (
            actions,
            own_health,
            serve,
            work,
            told,
        )
        self._replica = replica = actions.open_replica
        replica.start_leading(
            actions.engine, actions.clocks.wall(), actions.clocks.monotonic, actions.me.node
        )
        assert replica.sink is not None, "a leader has a sink"
        self._sink: SharedSink = replica.sink
        self._began_ms = replica.sink.proven_ms
        self._stack = AsyncExitStack()
        self._served: LeaderService | None = None
        self._is_over = False
        self._followers = Followers(replica.fold.end, actions.clocks.monotonic)
        self.log_damage = LogDamage(actions.me.node)
        """The damaged records of the shared log that other nodes cannot read."""

    @property
    def fold(self) -> Fold:
        """The `Fold` of this node, which includes the records that this node has appended."""
        return self._replica.fold

    async def begin(self) -> LeadershipGained:
        """Start serving clients. Raise OSError if the disk fails."""
        proving = LeadershipProofs(self._actions.clocks.monotonic, self._told.proof_requested)
        serving = self._serve(self._replica.core, self._told.core_released, proving)
        self._served = served = await self._stack.enter_async_context(serving)
        served.broken.add_done_callback(self._told.broken)
        return LeadershipGained(self._began_ms)

    def tick(self) -> Tick:
        """Return the input for a periodic tick of the election state machine."""
        self._followers.record_end(self.fold.end)
        return Tick(self._sink.proven_ms, self._changed_facts())

    def _changed_facts(self) -> dict[str, Any]:
        """Return the leader's certificate as a field, or {} if it has already been announced."""
        certificate = self._actions.identity.certificate
        return {} if self.fold.leads.get("certificate", "") == certificate else {"certificate": certificate}

    async def beat(self, order: BeatRequest) -> HeartbeatAppended | None:
        """Append a BEAT record. If the append is not confirmed, release the core and return None."""
        assert self._served is not None, "the term has begun before its first BEAT"
        clock = {"clock_ms": self._actions.clocks.wall()} if order.written is None else {}
        try:
            await self._work(partial(self._sink.beat, clock | dict(order.facts)))
        except NotAccepted as error:
            self._served.fail(error)
            return None
        self._served.answers.confirm_leadership(self._sink.proven_ms)
        return HeartbeatAppended(self._sink.proven_ms, self._changed_facts())

    async def check_copy_and_log(self, has_read_all: bool) -> HealthCheckCompleted:
        """Check the leader's store, its clock and the shared log, and trim the shared log.

        Raise `StoreDamaged` if the store has lost data, or `Halted` if the shared log has lost records.
        """
        core = self._replica.core
        if self._actions.has_multiple_records(self._replica) or self._replica.claim_due_checkpoint():
            core.request_checkpoint()
        identity: Identity = await self._work(partial(self._check_disk_and_log, has_read_all))
        await self._check_damage()
        self._health.has_room = not core.housekeeping.is_full
        self._health.log_clock_change()
        return HealthCheckCompleted(
            read_progress_of(self.fold),
            self._health.has_room,
            identity,
            self._health.unfit_reason(),
            self._followers.fittest_follower(),
            tuple(self.fold.holdings.unreached.items()),
        )

    def _check_disk_and_log(self, has_read_all: bool) -> Identity:
        actions = self._actions
        identity = actions.announce_copy(self._replica, has_read_all)
        with suppress(LogDamaged):  # the scrub task and other nodes report the damage
            actions.copying.trim_log(self.fold)
        if self._sink.proven_ms > self._began_ms:  # the append time of the EPOCH record is unknown
            self.compare_clock()
        with suppress(EngineUnavailable):
            actions.witness.verify_last_record(actions.engine, self.fold)
        return identity

    async def _check_damage(self) -> None:
        """Withhold all answers if no other node has the records after a damaged record (`log_damage`)."""
        assert self._served is not None, "the term has begun before its first health check"
        damage, holdings, core = self.log_damage, self.fold.holdings, self._replica.core
        with suppress(EngineUnavailable, EngineRefused):
            for word in damage.unchecked_reports(dict(holdings.unreadable)):
                fault = await self._work(partial(self._sink.fault_at, word.where.record))
                damage.record_check(word, fault, self.fold.end)
                say = log.error if fault else log.warning
                say("a node cannot read on", node=word.node, why=word.where.why, fault=fault)
        before = damage.state
        state = damage.update_state(
            dict(holdings.unreadable), holdings.all(), self._followers.reported_ends()
        )
        if state is not before:
            log.error("the shared log", state=state.value, faults=damage.sentences())
        answers = self._served.answers
        if state is LogState.HELD:
            answers.hold(ResultUnknown(" ".join(damage.sentences())))
            if damage.needs_checkpoint(holdings.of(self._actions.me.node)):
                core.request_checkpoint()
        elif answers.held is not None:
            answers.release(core.durable_offset)

    def compare_clock(self) -> None:
        """Compare this node's clock with the engine's timestamp of the newest record."""
        began_ms = self._sink.proven_ms
        with suppress(
            EngineUnavailable, LogDamaged
        ):  # the newest record is the confirmed record or a later one
            found = self._actions.engine.read(self.fold.next_offset - 1, 1)[:1]
            if not self._is_over:  # the result is outdated once the leader has stepped down
                self._health.lag_and_skew.record_own_append(began_ms, found)

    async def end(self) -> LeadershipEnded:
        """Stop serving clients.

        If the core has failed with an unexpected error, raise that error. Raise OSError if the disk fails.
        """
        self._is_over = True
        try:
            await self._stack.aclose()
        finally:
            if self._served is not None and self._served.broken.done():
                self._served.broken.result()  # the error ends the process, and another node takes over
        return LeadershipEnded()

    async def hand_over(self, to: str) -> None:
        """Announce the resignation of this node in the shared log. A successor then takes over immediately.

        Do nothing if an unconfirmed append has already ended the leadership. A disk failure does not prevent
        the announcement.
        """
        with suppress(NotAccepted):
            await self._work(partial(self._sink.leave, to))

    # Followers.

    def lags(self) -> dict[str, dict[str, Any]]:
        """Return the lag of each follower as a JSON-serializable dictionary, by node name."""
        self._followers.record_end(self.fold.end)
        return self._followers.view(self.fold.holdings.all(), self._actions.me.node)

    def is_followed_by(self, secret: str) -> bool:
        """Return whether `secret` is the secret of this leader's followers."""
        return hmac.compare_digest(secret.encode(), followers.secret_of(self.fold).encode())

    def record_position(self, node: str, end: int, unfit: str | None) -> None:
        """Record the report of a follower. Ignore nodes that have no `Holding` in the shared log."""
        self._followers.record_end(self.fold.end)
        if self.fold.holdings.of(node) is not None:
            self._followers.record_report(node, end, unfit)
