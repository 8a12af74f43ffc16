"""A cluster node. It runs the actions of its election on an event loop.

    election --action--> worker thread, timer or `Lead` --result--> election
    worker thread --record from the shared log--> election
    operator, process, core --command, failure, request for a proof--> election

Rules
1. The election (`services.cluster.election.machine`) makes all decisions and runs in the event loop.
   `handle_input` passes one input to the election.
2. Engine and disk actions run in worker threads (`services.cluster.acts`). Worker threads own the core on a
   follower, and the event loop owns it on the leader (`services.cluster.leading.lead`).
3. Checks, complaints, BEAT appends, client probes, and reports to the leader run as concurrent tasks. On a
   change to any role except follower or candidate, the node cancels them, because their results would be
   outdated.
4. Action errors that the election does not handle, and all other unexpected exceptions, are internal errors.
   An internal error ends `run`, and thus the process.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from commitlog.disk import Disk
from services.broker.spine.settings import BrokerSettings
from services.cluster.acts import CARRIED_OUT, Clocks, NodeActions
from services.cluster.copies.refetching import recovery_advice
from services.cluster.election import inputs
from services.cluster.election.health import Health
from services.cluster.election.inputs import Input
from services.cluster.election.machine import FAILURES, Election
from services.cluster.election.pace import LagAndSkew
from services.cluster.election.table import BESIDE, Act, Line, Output, Role
from services.cluster.identity import Member
from services.cluster.leading import followers
from services.cluster.leading.lead import Lead, LeadCallbacks, Serve
from services.cluster.peers import Identity
from services.cluster.tasks import Tasks
from sharedlog.engine import Engine
from sharedlog.engines import Beginning
from sharedlog.errors import Halted, NoCluster, TooOld
from sharedlog.holdings import Holding

HOLDER_BYTES: Final = 16

log = structlog.get_logger()
Result = TypeVar("Result")


class Takeover(NamedTuple):
    """When (in milliseconds since the Unix epoch) and why this node became the leader."""

    at_ms: int
    why: str


class ClusterNode:
    """A cluster node.

    `me` describes the node in its EPOCH records, `show` returns its current certificate, and `clock` returns
    the wall-clock time in milliseconds.
    """

    def __init__(
        self,
        me: Member,
        began: Beginning,
        engine: Engine,
        disk: Disk,
        settings: BrokerSettings,
        clock: Callable[[], int],
        executor: Executor,
        serve: Serve,
        show: Callable[[], Identity] = Identity,
    ) -> None:
        self.me, self._clock, self._executor, self._serve = me, clock, executor, serve
        self._disk = disk
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self.election = Election(me, monotonic_ms(), partial(secrets.token_bytes, HOLDER_BYTES))
        self.health = Health(LagAndSkew(clock, monotonic_ms))
        clocks = Clocks(clock, monotonic_ms)
        self.acts = NodeActions(me, began, engine, disk, settings, clocks, show, self.health, self._tell)
        self.own_copy, self.clocks = self.acts.own_copy, self.acts.compared
        self.lead: Lead | None = None
        """This node's leadership, from its confirmed EPOCH record until `Lead.end` returns."""
        self.took_over: Takeover | None = None
        """This node's last takeover, or None if it has never been the leader."""
        self.reaches_clients: Callable[[], Awaitable[bool]] = _assume_reached
        """Returns whether any client responds to this node."""
        self.on_replica_replaced: Callable[[], None] = _noop
        """Runs after a replica is replaced, to garbage-collect the old core."""
        self._changed, self._tasks = asyncio.Event(), Tasks(self._loop, self._end_with_bug)
        self.read_ms = 0
        """Time of the last shared log read in milliseconds, or 0 before the first read."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_proof_asked = self._has_opened = False

    async def run(self) -> None:
        """Run the node until `leave` is called. Raise any internal error."""
        try:
            for output in self.election.begin():
                self._carry_out(output)
            await self._over
        finally:
            self._end_timer()
            await self._tasks.end()
            if self.lead is not None:
                with suppress(Exception):  # the internal error that ended the node is already being raised
                    await self.lead.end()

    def leave(self) -> None:
        """Stop following or leading as soon as possible. `run` then returns."""
        self.handle_input(inputs.Leave())

    # Inputs and outputs of the election.

    def handle_input(self, given: Input, now_ms: int | None = None) -> None:
        """Pass an input to the election, and run the resulting actions. Internal errors end `run`."""
        if self._over.done():
            return
        try:
            self._take(given, monotonic_ms() if now_ms is None else now_ms)
        except Exception as bug:  # callers such as timers and worker threads do not handle errors
            self._end_with_bug(bug)

    def _take(self, given: Input, now_ms: int) -> None:
        election, before = self.election, self._observed_state()
        outputs = election.handle_input(given, now_ms)
        if self._observed_state() != before:
            self._changed.set()
            self._changed = asyncio.Event()
        if election.role is not before[0] and election.role not in (Role.FOLLOWING, Role.STANDING):
            self._tasks.cancel_concurrent()
        for output in outputs:
            self._carry_out(output)

    def _observed_state(self) -> tuple[Role, int, str | None]:
        """Return the values that other tasks watch: the role, the epoch and the leader's name."""
        leadership = self.election.leadership
        return self.election.role, leadership.epoch, leadership.leader and leadership.leader.node

    def _carry_out(self, output: Output) -> None:
        act, argument = output
        if act is Act.SAY:
            write_log_line(argument)
        elif act is Act.WAIT:
            self._end_timer()
            self._timer = self._loop.call_later(argument, self._tick)
        elif act is Act.HALT:
            log.error("halted", reason=argument)
        elif act is Act.END:
            self._over.set_result(None)
        else:
            self.acts.prepare_act(act)
            self._tasks.start(self._answer(act, argument), is_concurrent=act in BESIDE)

    def _begin(self, act: Act, argument: Any) -> Coroutine[Any, Any, Input | None]:
        """Return a coroutine that runs an action and returns the resulting election input."""
        if act in _LED_BY:
            return _LED_BY[act](self, argument)
        if act is Act.LOOK and self.election.role is Role.LEADING:
            return self._current_lead.check_copy_and_log(argument)
        return self._run_in_worker(partial(CARRIED_OUT[act], self.acts, argument))

    async def _answer(self, act: Act, argument: Any) -> None:
        """Run an action, and pass its result to the election."""
        try:
            answer = await self._begin(act, argument)
        except FAILURES as error:
            if act in _FAILURES_ARE_BUGS:
                self._end_with_bug(error)
                return
            answer = inputs.Failed(
                act,
                error,
                recovery_advice(self._disk) if is_history_lost(error) else "",
                self.acts.unreadable(error),
            )
        if answer is not None:
            self._prepare(answer)
            self.handle_input(answer)

    def _prepare(self, answer: Input) -> None:
        """Update the node from the result of an action before the election receives the result."""
        self.acts.apply_answer(answer)
        if isinstance(answer, inputs.Opened):
            if self._has_opened:
                self.on_replica_replaced()
            self._has_opened = True
            self.health.pace.drop_append_bounds()
            self._tasks.start(self._report_to_leader(), is_concurrent=True)
        elif isinstance(answer, inputs.ReadDone):
            self.read_ms = monotonic_ms()
            if not answer.records:
                self.health.log_clock_change()
        elif isinstance(answer, inputs.Begun) and self._is_proof_asked:
            self._loop.call_soon(self._ask_for_proof)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        try:
            tick = self.lead.tick() if self.election.role is Role.LEADING and self.lead else inputs.Tick()
        except Exception as bug:
            self._end_with_bug(bug)
        else:
            self.handle_input(tick)

    def _tell(self, given: Input, now_ms: int) -> None:
        """Pass an input to the election from a worker thread."""
        self._loop.call_soon_threadsafe(self.handle_input, given, now_ms)

    def _end_with_bug(self, bug: BaseException) -> None:
        if not self._over.done():
            self._over.set_exception(bug)

    # Leading.

    @property
    def _current_lead(self) -> Lead:
        assert self.lead is not None, "a leader's act without a lead"
        return self.lead

    async def _begin_lead(self, why: str) -> inputs.Begun:
        self._tasks.cancel_concurrent()
        self._is_proof_asked = False
        self.took_over = Takeover(self._clock(), why)
        told = LeadCallbacks(
            lambda error: self.handle_input(inputs.SteppedDown(error)),
            self._schedule_proof,
            self._end_if_broken,
        )
        self.lead = Lead(self.acts, self.health, self._serve, self._run_in_worker, told)
        try:
            return await self.lead.begin()
        except FAILURES:
            self.lead = None
            raise

    async def _beat(self, order: inputs.Order) -> Input | None:
        answer = await self._current_lead.beat(order)
        if answer is not None and order.written is not None and not order.written.done():
            order.written.set_result(None)
        return answer

    async def _ask_clients(self, node: str) -> inputs.ClientsAsked:
        return inputs.ClientsAsked(node, await self.reaches_clients())

    async def _hand_over(self, to: str) -> inputs.Ended:
        await self._tasks.wait_for_concurrent()
        lead = self._current_lead
        try:
            answer = await lead.end()
        except FAILURES:  # a full disk prevents the last checkpoint but not the handover
            await self._give_up_lead(lead, to)
            raise
        await self._give_up_lead(lead, to)
        return answer

    async def _give_up_lead(self, lead: Lead, to: str) -> None:
        self.lead = None
        await lead.hand_over(to)

    def _end_if_broken(self, broken: asyncio.Future[None]) -> None:
        if not broken.cancelled() and (bug := broken.exception()) is not None:
            self._end_with_bug(bug)

    def _schedule_proof(self) -> None:
        """Schedule at most one proof request per event loop iteration."""
        if not self._is_proof_asked:
            self._is_proof_asked = True
            self._loop.call_soon(self._ask_for_proof)

    def _ask_for_proof(self) -> None:
        if self.role is Role.LEADING:  # otherwise, `_prepare` requests the proof when the node begins to lead
            self._is_proof_asked = False
            self.handle_input(inputs.ProofWanted())

    # The state that this node exposes to other components.

    @property
    def role(self) -> Role:
        """The role of this node."""
        return self.election.role

    @property
    def epoch(self) -> int:
        """The newest epoch read from the shared log."""
        return self.election.leadership.epoch

    @property
    def known_leader(self) -> Member | None:
        """The leader of the cluster, or None if unknown.

        Also None if the shared log names this node but the node does not serve clients, for example after a
        restart.
        """
        return self.election.leadership.leader_unless_own(leads=self.role is Role.LEADING)

    @property
    def refusal(self) -> str:
        """Why the shared log refuses calls or does not respond, or "" if it responds normally."""
        answers = self.election.answers
        is_asked = self.role in (Role.FOLLOWING, Role.STANDING, Role.LEADING)
        return (answers.refusal or answers.stood_in_vain) if is_asked else ""

    @property
    def broken_records(self) -> list[str]:
        """One sentence per damaged record that another node cannot read. Empty on a follower."""
        lead = self.lead if self.role is Role.LEADING else None
        return [] if lead is None else lead.log_damage.sentences()

    async def wait_for_leader(self, seconds: float) -> tuple[int, Member]:
        """Wait until the leader is known. Return the epoch and the leader.

        Raise TimeoutError if the leader is still unknown after `seconds`.
        """
        async with asyncio.timeout(seconds):
            while (leader := self.known_leader) is None:
                await self._changed.wait()
        return self.epoch, leader

    async def wait_for_other_epoch(self, epoch: int) -> None:
        """Wait until this node has read an EPOCH record with an epoch other than `epoch`."""
        while self.epoch == epoch:
            await self._changed.wait()

    @property
    def needed_records(self) -> dict[str, int]:
        """The next shared log record that each announced node needs."""
        return {node: one.next_record for node, one in self._holdings().items()}

    @property
    def node_urls(self) -> dict[str, str]:
        """The HTTP URL of each node, mapped to its PEM certificate. This node comes first.

        The certificate is "" if the URL does not use TLS.
        """
        held, leader = self._holdings(), self.election.leadership.leader
        others = [(one.http, one.certificate) for name, one in held.items() if name != self.me.node]
        leaders = [] if leader is None else [(leader.http, leader.certificate)]
        found = [(self.me.http, self.acts.shown_over_http()), *sorted({*others, *leaders})]
        return {http: shown if http.startswith("https:") else "" for http, shown in found if http}

    def _holdings(self) -> dict[str, Holding]:
        replica = self.acts.replica
        return {} if replica is None else replica.fold.holdings.all()

    def is_followed_by(self, secret: str) -> bool:
        """Return whether this node leads and `secret` is that of a follower."""
        return self.lead is not None and self.lead.is_followed_by(secret)

    def record_position(self, node: str, end: int, unfit: str | None) -> None:
        """Record a follower's report. Ignore it if this node is not the leader."""
        if self.lead is not None:
            self.lead.record_position(node, end, unfit)

    async def _report_to_leader(self) -> None:
        """Report this node's position to the leader every `followers.TELL_SECONDS` seconds.

        Failed reports are ignored. Reports use the node's own worker threads, because forwarded requests may
        occupy all other threads.
        """
        while True:
            await asyncio.sleep(followers.TELL_SECONDS)
            leader, replica = self.election.leadership.leader, self.acts.replica
            if leader is not None and leader.node != self.me.node and replica is not None:
                told = partial(followers.report_position, leader, self.me.node, replica.fold, self.health)
                await self._run_in_worker(told)

    async def _run_in_worker(self, act: Callable[[], Result]) -> Result:
        return await self._loop.run_in_executor(self._executor, act)


_LED_BY: Final[dict[Act, Callable[[ClusterNode, Any], Coroutine[Any, Any, Input | None]]]] = {
    Act.SERVE: ClusterNode._begin_lead,
    Act.BEAT: ClusterNode._beat,
    Act.ASK_CLIENTS: ClusterNode._ask_clients,
    Act.HAND_OVER: ClusterNode._hand_over,
}
_FAILURES_ARE_BUGS: Final = frozenset((Act.COMPLAIN, Act.BEAT, Act.ASK_CLIENTS))


async def _assume_reached() -> bool:
    """Return True, assuming that clients can reach this node. The default callback."""
    return True


def _noop() -> None:
    """Do nothing. The default callback."""


def is_history_lost(error: Exception) -> bool:
    """Return whether an error shows that the shared log is inconsistent or lost."""
    return isinstance(error, (Halted, NoCluster)) and not isinstance(error, TooOld)


def write_log_line(line: Line) -> None:
    """Write a line to the log of this process."""
    getattr(log, line.level)(line.event, **line.facts)


def monotonic_ms() -> int:
    """Return the monotonic time in milliseconds."""
    return time.monotonic_ns() // 1_000_000
