"""A cluster node, which runs the actions of its election state machine on an event loop.

    election --action--> worker thread, timer or `LeaderTerm` --result--> election
    worker thread --record from the shared log--> election
    operator, process, core --command, failure, proof request--> election

Rules
1. The election state machine (`services.cluster.election.machine`) makes all decisions and runs on the event
   loop. The method `handle_input` passes one input to the state machine.
2. Engine and disk actions run in worker threads (`services.cluster.node_actions`). On a follower, the worker
   threads own the core. On the leader, the event loop owns the core (`services.cluster.leading.leader_term`).
3. Health checks, complaints, BEAT appends, client probes, and reports to the leader run as concurrent tasks.
   When the node takes a role other than follower or candidate, it cancels these tasks, because their results
   would be outdated.
4. Action errors that the state machine does not handle and all other unexpected exceptions are internal
   errors. An internal error ends `run`, and the process then exits.
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

from commitlog.disk.disk import Disk
from services.broker.spine.settings import BrokerSettings
from services.cluster.copies.refetching import recovery_advice
from services.cluster.election import inputs
from services.cluster.election.health import Health
from services.cluster.election.inputs import Input
from services.cluster.election.lag_and_skew import LagAndSkew
from services.cluster.election.machine import FAILURES, Election
from services.cluster.election.table import CONCURRENT_ACTIONS, ActionType, LogLine, Output, Role
from services.cluster.identity import Member
from services.cluster.leading import followers
from services.cluster.leading.leader_term import LeaderCallbacks, LeaderTerm, ServeCore
from services.cluster.node_actions import ACTION_METHODS, Clocks, NodeActions
from services.cluster.peers import Identity
from services.cluster.tasks import Tasks
from sharedlog.engine import Engine
from sharedlog.engines import Beginning
from sharedlog.errors import Halted, NoCluster, VersionUnsupported
from sharedlog.holdings import Holding

HOLDER_BYTES: Final = 16

log = structlog.get_logger()
Result = TypeVar("Result")


class Takeover(NamedTuple):
    """A takeover by this node, with its reason and its time in milliseconds since the Unix epoch."""

    at_ms: int
    why: str


class ClusterNode:
    """A cluster node.

    The argument `me` describes the node in its EPOCH records. The function `read_identity` returns the node's
    current certificate, and `clock` returns the wall-clock time in milliseconds.
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
        serve: ServeCore,
        read_identity: Callable[[], Identity] = Identity,
    ) -> None:
        self.me, self._clock, self._executor, self._serve = me, clock, executor, serve
        self._disk = disk
        self._loop = asyncio.get_running_loop()
        self._finished: asyncio.Future[None] = self._loop.create_future()
        self.election = Election(me, monotonic_ms(), partial(secrets.token_bytes, HOLDER_BYTES))
        self.health = Health(LagAndSkew(clock, monotonic_ms))
        clocks = Clocks(clock, monotonic_ms)
        self.actions = NodeActions(
            me, began, engine, disk, settings, clocks, read_identity, self.health, self._pass_input
        )
        self.own_copy, self.clocks = self.actions.own_copy, self.actions.clock_comparison
        self.leader_term: LeaderTerm | None = None
        """The leadership of this node, from its confirmed EPOCH record until `LeaderTerm.end` returns."""
        self.last_takeover: Takeover | None = None
        """The last takeover by this node, or None if the node has never been the leader."""
        self.probe_clients: Callable[[], Awaitable[bool]] = _assume_reachable
        """Return whether any client responds to this node."""
        self.on_replica_replaced: Callable[[], None] = _noop
        """Called after the replica has been replaced, to schedule a garbage collection of the old core."""
        self._changed, self._tasks = asyncio.Event(), Tasks(self._loop, self._fail)
        self.read_ms = 0
        """Monotonic time of the last shared log read in milliseconds, or 0 before the first read."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_proof_asked = self._has_opened = False

    async def run(self) -> None:
        """Run the node until it has left the cluster. Raise any internal error."""
        try:
            for output in self.election.begin():
                self._perform_output(output)
            await self._finished
        finally:
            self._end_timer()
            await self._tasks.end()
            if self.leader_term is not None:
                with suppress(Exception):  # the internal error that ended the node is being raised
                    await self.leader_term.end()

    def leave(self) -> None:
        """Stop following or leading as soon as possible. The method `run` then returns."""
        self.handle_input(inputs.ShutdownRequested())

    # Inputs and outputs of the election.

    def handle_input(self, given: Input, now_ms: int | None = None) -> None:
        """Pass an input to the state machine, and run the resulting actions. An internal error ends `run`."""
        if self._finished.done():
            return
        try:
            self._process_input(given, monotonic_ms() if now_ms is None else now_ms)
        except Exception as bug:  # callers such as timers and worker threads handle no errors
            self._fail(bug)

    def _process_input(self, given: Input, now_ms: int) -> None:
        election, before = self.election, self._observed_state()
        outputs = election.handle_input(given, now_ms)
        if self._observed_state() != before:
            self._changed.set()
            self._changed = asyncio.Event()
        if election.role is not before[0] and election.role not in (Role.FOLLOWING, Role.STANDING):
            self._tasks.cancel_concurrent()
        for output in outputs:
            self._perform_output(output)

    def _observed_state(self) -> tuple[Role, int, str | None]:
        """Return the role, the epoch and the leader's name. Other tasks wait for changes of these values."""
        leadership = self.election.leadership
        return self.election.role, leadership.epoch, leadership.leader and leadership.leader.node

    def _perform_output(self, output: Output) -> None:
        action, argument = output
        if action is ActionType.WRITE_LOG_LINE:
            write_log_line(argument)
        elif action is ActionType.WAIT:
            self._end_timer()
            self._timer = self._loop.call_later(argument, self._tick)
        elif action is ActionType.HALT:
            log.error("halted", reason=argument)
        elif action is ActionType.END_PROCESS:
            self._finished.set_result(None)
        else:
            self.actions.prepare_action(action)
            self._tasks.start(
                self._perform_action(action, argument), is_concurrent=action in CONCURRENT_ACTIONS
            )

    def _begin(self, action: ActionType, argument: Any) -> Coroutine[Any, Any, Input | None]:
        """Return a coroutine that runs an action and returns its result as an input to the state machine."""
        if action in _LEADER_ACTIONS:
            return _LEADER_ACTIONS[action](self, argument)
        if action is ActionType.CHECK_HEALTH and self.election.role is Role.LEADING:
            return self._current_term.check_copy_and_log(argument)
        return self._run_in_worker(partial(ACTION_METHODS[action], self.actions, argument))

    async def _perform_action(self, action: ActionType, argument: Any) -> None:
        """Run an action, and pass its result to the state machine."""
        try:
            answer = await self._begin(action, argument)
        except FAILURES as error:
            if action in _FAILURES_ARE_BUGS:
                self._fail(error)
                return
            answer = inputs.ActionFailed(
                action,
                error,
                recovery_advice(self._disk) if is_history_lost(error) else "",
                self.actions.unreadable(error),
            )
        if answer is not None:
            self._apply_result(answer)
            self.handle_input(answer)

    def _apply_result(self, answer: Input) -> None:
        """Update the node from the result of an action before the state machine receives the result."""
        self.actions.apply_result(answer)
        if isinstance(answer, inputs.ReplicaOpened):
            if self._has_opened:
                self.on_replica_replaced()
            self._has_opened = True
            self.health.lag_and_skew.drop_append_bounds()
            self._tasks.start(self._report_to_leader(), is_concurrent=True)
        elif isinstance(answer, inputs.ReadCompleted):
            self.read_ms = monotonic_ms()
            if not answer.records:
                self.health.log_clock_change()
        elif isinstance(answer, inputs.LeadershipGained) and self._is_proof_asked:
            self._loop.call_soon(self._ask_for_proof)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        try:
            tick = (
                self.leader_term.tick()
                if self.election.role is Role.LEADING and self.leader_term
                else inputs.Tick()
            )
        except Exception as bug:
            self._fail(bug)
        else:
            self.handle_input(tick)

    def _pass_input(self, given: Input, now_ms: int) -> None:
        """Pass an input from a worker thread to the state machine."""
        self._loop.call_soon_threadsafe(self.handle_input, given, now_ms)

    def _fail(self, bug: BaseException) -> None:
        if not self._finished.done():
            self._finished.set_exception(bug)

    # Leading.

    @property
    def _current_term(self) -> LeaderTerm:
        assert self.leader_term is not None, "a leader's act without a lead"
        return self.leader_term

    async def _begin_term(self, why: str) -> inputs.LeadershipGained:
        self._tasks.cancel_concurrent()
        self._is_proof_asked = False
        self.last_takeover = Takeover(self._clock(), why)
        told = LeaderCallbacks(
            lambda error: self.handle_input(inputs.CoreReleased(error)),
            self._schedule_proof,
            self._fail_if_broken,
        )
        self.leader_term = LeaderTerm(self.actions, self.health, self._serve, self._run_in_worker, told)
        try:
            return await self.leader_term.begin()
        except FAILURES:
            self.leader_term = None
            raise

    async def _beat(self, order: inputs.BeatRequest) -> Input | None:
        answer = await self._current_term.beat(order)
        if answer is not None and order.written is not None and not order.written.done():
            order.written.set_result(None)
        return answer

    async def _probe_clients(self, node: str) -> inputs.ClientProbeCompleted:
        return inputs.ClientProbeCompleted(node, await self.probe_clients())

    async def _hand_over(self, to: str) -> inputs.LeadershipEnded:
        await self._tasks.wait_for_concurrent()
        lead = self._current_term
        try:
            answer = await lead.end()
        except FAILURES:  # a full disk prevents the last checkpoint but not the handover
            await self._resign(lead, to)
            raise
        await self._resign(lead, to)
        return answer

    async def _resign(self, lead: LeaderTerm, to: str) -> None:
        self.leader_term = None
        await lead.hand_over(to)

    def _fail_if_broken(self, broken: asyncio.Future[None]) -> None:
        if not broken.cancelled() and (bug := broken.exception()) is not None:
            self._fail(bug)

    def _schedule_proof(self) -> None:
        """Schedule a proof request unless a request is already pending."""
        if not self._is_proof_asked:
            self._is_proof_asked = True
            self._loop.call_soon(self._ask_for_proof)

    def _ask_for_proof(self) -> None:
        if (
            self.role is Role.LEADING
        ):  # otherwise, `_apply_result` requests the proof when the node begins to lead
            self._is_proof_asked = False
            self.handle_input(inputs.ProofRequested())

    # The state that this node exposes to other components.

    @property
    def role(self) -> Role:
        """The role of this node."""
        return self.election.role

    @property
    def epoch(self) -> int:
        """The newest epoch that this node has read from the shared log."""
        return self.election.leadership.epoch

    @property
    def known_leader(self) -> Member | None:
        """The leader of the cluster, or None if the leader is unknown.

        The leader is also None if this node is the leader according to the shared log but does not serve
        clients, for example after a restart.
        """
        return self.election.leadership.leader_unless_own(leads=self.role is Role.LEADING)

    @property
    def refusal(self) -> str:
        """The reason why the shared log refuses calls or does not respond, or "" if it responds normally."""
        answers = self.election.answers
        is_asked = self.role in (Role.FOLLOWING, Role.STANDING, Role.LEADING)
        return (answers.refusal or answers.unconfirmed_candidacy) if is_asked else ""

    @property
    def broken_records(self) -> list[str]:
        """One sentence for each damaged record that another node cannot read, or [] on a follower."""
        lead = self.leader_term if self.role is Role.LEADING else None
        return [] if lead is None else lead.log_damage.sentences()

    async def wait_for_leader(self, seconds: float) -> tuple[int, Member]:
        """Wait until the leader is known, and return the epoch and the leader.

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
        """The next shared log record that each node with an announced copy needs, by node name."""
        return {node: one.next_record for node, one in self._holdings().items()}

    @property
    def node_urls(self) -> dict[str, str]:
        """The PEM certificate of each node by HTTP URL, starting with this node.

        The certificate is "" if the URL does not use TLS.
        """
        held, leader = self._holdings(), self.election.leadership.leader
        others = [(one.http, one.certificate) for name, one in held.items() if name != self.me.node]
        leaders = [] if leader is None else [(leader.http, leader.certificate)]
        found = [(self.me.http, self.actions.http_certificate_pem()), *sorted({*others, *leaders})]
        return {http: identity if http.startswith("https:") else "" for http, identity in found if http}

    def _holdings(self) -> dict[str, Holding]:
        replica = self.actions.replica
        return {} if replica is None else replica.fold.holdings.all()

    def is_followed_by(self, secret: str) -> bool:
        """Return whether this node is the leader and its followers use the secret `secret`."""
        return self.leader_term is not None and self.leader_term.is_followed_by(secret)

    def record_position(self, node: str, end: int, unfit: str | None) -> None:
        """Record the report of a follower. Ignore the report if this node is not the leader."""
        if self.leader_term is not None:
            self.leader_term.record_position(node, end, unfit)

    async def _report_to_leader(self) -> None:
        """Report the position of this node to the leader every `followers.REPORT_SECONDS`.

        Failed reports are ignored. The node's worker threads send the reports, because forwarded requests may
        occupy all forwarding threads.
        """
        while True:
            await asyncio.sleep(followers.REPORT_SECONDS)
            leader, replica = self.election.leadership.leader, self.actions.replica
            if leader is not None and leader.node != self.me.node and replica is not None:
                told = partial(followers.report_position, leader, self.me.node, replica.fold, self.health)
                await self._run_in_worker(told)

    async def _run_in_worker(self, action: Callable[[], Result]) -> Result:
        return await self._loop.run_in_executor(self._executor, action)


_LEADER_ACTIONS: Final[dict[ActionType, Callable[[ClusterNode, Any], Coroutine[Any, Any, Input | None]]]] = {
    ActionType.SERVE_CLIENTS: ClusterNode._begin_term,
    ActionType.APPEND_BEAT: ClusterNode._beat,
    ActionType.PROBE_CLIENTS: ClusterNode._probe_clients,
    ActionType.HAND_OVER: ClusterNode._hand_over,
}
_FAILURES_ARE_BUGS: Final = frozenset(
    (ActionType.APPEND_COMPLAINT, ActionType.APPEND_BEAT, ActionType.PROBE_CLIENTS)
)


async def _assume_reachable() -> bool:
    """Return True. This default callback assumes that clients can reach this node."""
    return True


def _noop() -> None:
    """Do nothing. This function is a default callback."""


def is_history_lost(error: Exception) -> bool:
    """Return whether an error shows that the shared log is inconsistent or lost."""
    return isinstance(error, (Halted, NoCluster)) and not isinstance(error, VersionUnsupported)


def write_log_line(line: LogLine) -> None:
    """Write a line to the log of this process."""
    getattr(log, line.level)(line.event, **line.facts)


def monotonic_ms() -> int:
    """Return the monotonic time in milliseconds."""
    return time.monotonic_ns() // 1_000_000
