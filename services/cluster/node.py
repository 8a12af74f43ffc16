"""A node in an asyncio loop: it follows the shared log, stands when that is silent, leads, and steps down.

    OPENING   --the replica is open, at its newest checkpoint-->         FOLLOWING
    FOLLOWING --nothing was heard for long enough (`silence`)-->         STANDING
    STANDING  --its own EPOCH was read-->                                LEADING
              --another one's, or no answer-->                           FOLLOWING
    LEADING   --an append was not proven, the disk failed, or a move-->  OPENING
    any       --the log is trimmed above it, or its copy is damaged-->   COPYING
    COPYING   --another node's copy is here, whole-->                    OPENING
    any       --the shared log is not one history-->                     HALTED, until the process ends

Rules
1. Who leads is what the shared log says; a node asks no other node. `leader` tells what the newest EPOCH says
   of its writer: the addresses to which calls are forwarded.
2. While it follows, the node reads in a worker thread, some POLL_SECONDS after it has read all there was, and
   its core belongs to that thread. Once it leads the core belongs to the loop (`services.live.live_broker`).
3. A node that steps down throws its core away: that may hold what was never accepted. The node opens its
   replica again, which goes back to the newest checkpoint, and follows.
4. A leader that is told to stop writes out what it has, and a BEAT that says it leaves: the next one stands
   at once. One whose disk has failed says it, too.
5. What the engine does not answer is tried again for ever; what the log says against itself, never: `halted`
   has the sentence.
6. A node that cannot read on, or whose copy has lost something, gets the copy of another (`copying`), and
   holds the trim meanwhile. Where there is none, it reads the whole log if that is whole, and else waits.
7. A node whose clock is off or whose disk is full stands later than the others, and hands over (`fitness`).
8. Each node tells of its newest checkpoint, and the leader trims what all have (`copying`).
9. A leader's EPOCH tells its certificate, by which others know it (`peers`); a BEAT tells a renewed one.
10. A leader that reaches no client leaves to a node that clients reach and that does not reach it (`reach`).

Weak spot: a takeover takes over the core as it is, so all that `Broker.begin` derives is derived between the
EPOCH and the first answer.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, suppress
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import structlog

from commitlog.disk import Disk
from commitlog.errors import StoreDamaged, StoreError
from services.broker.broker import Broker
from services.broker.settings import BrokerSettings
from services.cluster import fitness, followers, peers
from services.cluster.clocks import Clocks
from services.cluster.copies import OwnCopy
from services.cluster.copying import Copying
from services.cluster.errors import CopyRefused, NameTaken, OrderRefused, OtherKey
from services.cluster.followers import Followers
from services.cluster.log_damage import LogDamage, State
from services.cluster.one_key import check_key
from services.cluster.one_name import OneName
from services.cluster.pace import Pace
from services.cluster.peers import Shown
from services.cluster.reach import Leaving, Reach
from services.cluster.refetching import ways_on
from services.cluster.replica import Replica
from services.cluster.silence import BEAT_MS, Silence
from services.live.durability import Answers, Proving
from services.live.errors import ResultUnknown
from services.process.event_loop import let_end
from sharedlog.engine import Engine, Head
from sharedlog.engines import Beginning
from sharedlog.errors import Halted, LogDamaged, NoCluster, NotAccepted, Refused, TooOld, Trimmed, Unknown
from sharedlog.fold import Fold, Outcome, Position, Step, told_anew
from sharedlog.holdings import Unreadable
from sharedlog.leading import Candidate
from sharedlog.reading import READ_BYTES, up_to_gap
from sharedlog.record import Kind, encode
from sharedlog.sink import SharedSink
from sharedlog.versions import OLDEST
from sharedlog.witness import Witness, crc_at

POLL_SECONDS: Final = 0.05
BEHIND_SECONDS: Final = 0.5
"""How long a node waits before it tries again what has failed."""
HOLDER_BYTES: Final = 16
COPY_AGAIN_SECONDS: Final = 5.0
"""How long a node waits that has got no copy, before it asks again."""
LOOK_SECONDS: Final = 1.0
"""How often a node looks after its copy, and a leader after the trim."""
CHECKPOINT_RECORDS: Final = 20_000
"""How many records of the shared log, BEATs too, lie behind a checkpoint before the next."""
TOLD_SECONDS: Final = 2.0
"""How long a follower waits until the leader has taken in how far it is."""
EPOCH_SECONDS: Final = 3.0
"""How long a candidate waits for its EPOCH to be read back."""

log = structlog.get_logger()
Result = TypeVar("Result")


class Role(StrEnum):
    """What a node does."""

    OPENING = "opening"
    COPYING = "copying"
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
    certificate: str = ""
    """By which others know it, as PEM; of none that they call in plaintext (`services.cluster.peers`)."""
    supports: int = OLDEST
    """Up to which version its program supports records (`sharedlog.versions`)."""

    def told(self) -> dict[str, Any]:
        """Return what people are told of a node; of its certificate only whether there is one."""
        return self._asdict() | {"certificate": bool(self.certificate)}


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


class Orders:
    """What an operator told the leader, until it is done."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.moving: asyncio.Future[str] = loop.create_future()
        """The node that is to lead, or none in particular."""
        self.told: list[tuple[dict[str, Any], asyncio.Future[None]]] = []
        """Facts for a BEAT to tell, and what is set once it has."""


class ClusterNode:
    """One node. `me` is what its EPOCHs say, with what `show` gives then; `clock` is wall time in ms."""

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
        show: Callable[[], Shown] = Shown,
    ) -> None:
        self.me, self._began, self._engine = me, began, engine
        self._disk, self._settings, self._clock, self._executor = disk, settings, clock, executor
        self._serve, self._show = serve, show
        self.shown = show()
        """By what others know this node, as of its last look."""
        self._loop = asyncio.get_running_loop()
        self.role = Role.OPENING
        self.leader: Member | None = None
        """Who leads, as far as this node has read; None if of nobody, or that the leader leaves."""
        self.epoch = 0
        self.halted = ""
        self._refusal = ""
        """What the shared log said last instead of an answer; empty while it answers."""
        self._refused_ms = 0
        self._stood_in_vain = ""
        """Why this node could not stand, though it can read; empty once anybody leads."""
        self._foreign_count = self._repeated_count = 0
        self._one_name = OneName(me.node)
        self.copying = ""
        """Why this node needs a copy, and why it has none yet."""
        self.own_copy = OwnCopy(me.node, me.http, began, disk, self._shown_over_http)
        self._copying = Copying(me.node, self.own_copy, began, engine, disk)
        self.takeovers = 0
        self.took_over: TookOver | None = None
        """The last time when this node began to lead."""
        self.pace = Pace(clock, monotonic_ms)
        self.clocks = Clocks(self.pace, monotonic_ms)
        self._told_off, self._has_room, self._handed_over_ms = False, True, -fitness.HAND_OVER_AGAIN_MS
        self.reach, self._leaves_for = Reach(), Leaving()
        self.reaches_clients: Callable[[], Awaitable[bool]] = _taken_for_granted
        """Tells whether any client answers this node."""
        self._names = {me.node}
        self._read_ms = 0
        self._end = self._next_offset = 0
        self._replica: Replica | None = None
        self._orders: Orders | None = None
        self._followers: Followers | None = None
        """What is known of them while this node leads."""
        self._looked_ms = 0
        self._looking: asyncio.Future[None] | None = None
        self._copied_ms = -int(COPY_AGAIN_SECONDS * 1000)
        self._has_read_all = False
        self._silence = Silence(monotonic_ms())
        self._witness, self._must_ask_witness = Witness(monotonic_ms), True
        self.log_damage = LogDamage(me.node)
        """Records that other nodes cannot read, while this node leads."""
        self._changed = asyncio.Event()
        self._leaving: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> None:
        """Follow and lead until the node leaves; raise what is a bug."""
        while not self._leaving.done():
            try:
                self._become(Role.OPENING)
                self._replica = replica = await self._work(self._open)
                self._end, self._next_offset = replica.fold.end, replica.fold.next_offset
                self.copying = ""
                self._know_leader(replica.fold.epoch, replica.fold.leads)
                try:
                    if await self._follow(replica):
                        await self._lead(replica)
                finally:
                    self._look_no_more()
                    self._witness.note(replica.fold)
            except (Trimmed, StoreDamaged) as error:
                await self._copy(str(error))
            except LogDamaged as error:
                fold = replica.fold
                record = fold.next_offset if error.record is None else error.record
                await self._copy(str(error), Unreadable(record, fold.end, error.detail))
            except (Halted, NoCluster, OtherKey, NameTaken) as error:
                await self._halt(error)
            except (OSError, StoreError) as error:
                log.error("the replica is opened again", reason=str(error))
                await self._pause(BEHIND_SECONDS)

    async def _halt(self, error: Exception) -> None:
        """Do nothing more, until the node leaves, but say why."""
        self.halted = f"{error} {ways_on(self._disk)}" if is_no_history(error) else str(error)
        log.error("halted", reason=self.halted)
        self._become(Role.HALTED)
        await self._leaving

    def leave(self) -> None:
        """Stop following, or leading, as soon as that can be."""
        if not self._leaving.done():
            self._leaving.set_result(None)

    async def led_by(self, seconds: float) -> tuple[int, Member]:
        """Return the epoch and who leads in it, once this node knows; raise TimeoutError if not in time."""
        async with asyncio.timeout(seconds):
            while (leader := self.known_leader) is None:
                await self._changed.wait()
        return self.epoch, leader

    @property
    def known_leader(self) -> Member | None:
        """Who leads; None too where this node is said to, and does not: it did, or a process before it."""
        is_me = self.leader is not None and self.leader.node == self.me.node
        return None if is_me and self.role is not Role.LEADING else self.leader

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
            "leader": None if self.known_leader is None else self.known_leader.told(),
            "end_offset": self._end,
            "next_record": self._next_offset,
            "read_ms_ago": monotonic_ms() - self._read_ms if self._read_ms else None,
            "takeovers": self.takeovers,
            "nodes": sorted(self._names),
            "beyond_checkpoint_bytes": None
            if self._replica is None
            else self._replica.beyond_checkpoint_bytes,
            "finalized_version": None if self._replica is None else self._replica.fold.finalized,
            "supported_version": self.me.supports,
            "took_over": None if self.took_over is None else self.took_over._asdict(),
            "copies": self._copies(),
            "followers": self._lags(),
            "trimmed_below": self._copying.trimmed_below,
            "copying": self.copying,
            "halted": self.halted,
            "unfit": self.unfit(),
            "foreign_lines": self._foreign_count,
            "repeated_records": self._repeated_count,
            "broken_records": self.log_damage.sentences(),
        } | self.pace.view(leads=self.role is Role.LEADING)

    def _copies(self) -> dict[str, dict[str, Any]]:
        """Return what each node holds, as far as this one has read; secrets left out."""
        if self._replica is None:
            return {}
        held = self._replica.fold.holdings.all()
        return {
            node: {
                "next_record": one.next_record,
                "end_offset": one.end,
                "http": one.http,
                "supports": one.supports,
            }
            for node, one in held.items()
        }

    def _lags(self) -> dict[str, dict[str, Any]]:
        """Return how far each follower is behind, as this node sees it while it leads."""
        if self._followers is None or self._replica is None:
            return {}
        self._followers.moved(self._replica.fold.end)
        return self._followers.view(self._replica.fold.holdings.all(), self.me.node)

    def follows_me(self, secret: str) -> bool:
        """Return whether who says this secret follows this node, which leads."""
        if self._followers is None or self._replica is None:
            return False
        return hmac.compare_digest(secret.encode(), followers.secret_of(self._replica.fold).encode())

    def position_told(self, node: str, end: int, unfit: str | None) -> None:
        """Take in what a follower tells of itself."""
        if self._followers is None or self._replica is None:
            return  # it has led until a moment ago
        fold = self._replica.fold
        self._followers.moved(fold.end)
        if fold.holdings.of(node) is not None:
            self._followers.told(node, end, unfit)

    def led(self) -> tuple[Orders, Fold]:
        """Return what this node is told while it leads, and what it has read; else raise `OrderRefused`."""
        if self._orders is None or self._replica is None:
            raise OrderRefused("This node does not lead. Tell the leader: tidewheel cluster status names it.")
        return self._orders, self._replica.fold

    @property
    def names(self) -> set[str]:
        """The names of the nodes that this one has read of, less those that were forgotten since."""
        held = set() if self._replica is None else self._replica.fold.holdings.all().keys()
        return self._names | held

    @property
    def needed_records(self) -> dict[str, int]:
        """From which record on each node reads that has told so."""
        held = {} if self._replica is None else self._replica.fold.holdings.all()
        return {node: one.next_record for node, one in held.items()}

    @property
    def reached_at(self) -> dict[str, str]:
        """The URL of each node's HTTP interface, this one's first, and what it shows there, as PEM."""
        held = {} if self._replica is None else self._replica.fold.holdings.all()
        others = [(one.http, one.certificate) for name, one in held.items() if name != self.me.node]
        leader = [(self.leader.http, self.leader.certificate)] if self.leader is not None else []
        found = [(self.me.http, self._shown_over_http()), *sorted({*others, *leader})]
        return {http: shown if http.startswith("https:") else "" for http, shown in found if http}

    def forgot(self, node: str) -> None:
        """Take in that a node is gone for good."""
        self._names.discard(node)

    # Following.

    def _open(self) -> Replica:
        self._has_read_all, self._must_ask_witness = False, True
        replica = Replica.open(self._disk, self._settings, self._clock(), self._began.cluster)
        self._witness.recall(replica.last_led)
        self._copying.opened(replica)
        return replica

    def _know_leader(self, epoch: int, facts: dict[str, Any]) -> None:
        """Take in who leads an epoch, unless a later one is known."""
        if facts and epoch >= self.epoch:
            known = {name: facts[name] for name in Member._fields if name in facts}
            self.epoch, self.leader = epoch, Member(**known)
            self._names.add(self.leader.node)
            self._tell()

    async def _follow(self, replica: Replica) -> bool:
        """Take in what the leader writes; return True once this node leads, False if it leaves.

        Raise `Halted`, `Trimmed`, `NoCluster` or `OtherKey`, and OSError where the replica is void.
        """
        self._become(Role.FOLLOWING)
        self._silence.away(monotonic_ms())
        self.pace.follows()
        telling = self._loop.create_task(self._tell_leader(replica))
        try:
            return await self._read_on(replica)
        finally:
            telling.cancel()
            await asyncio.wait({telling})

    async def _tell_leader(self, replica: Replica) -> None:
        """Tell the leader again and again how far this node is; whether it hears changes nothing here."""
        while True:
            await asyncio.sleep(followers.TELL_SECONDS)
            leader, fold = self.leader, replica.fold
            if leader is None or leader.node == self.me.node:
                continue
            facts = {"node": self.me.node, "end_offset": fold.end, "unfit": self.unfit()}
            facts["clock_skew_ms"] = self.pace.skew_ms
            where, secret = (leader.http, leader.certificate), followers.secret_of(fold)
            # By a thread of the node's own: clients' requests that wait for the leader may have all others.
            await self._work(partial(peers.told, *where, followers.PATH, secret, facts, TOLD_SECONDS))

    async def _read_on(self, replica: Replica) -> bool:
        """Read until this node leads or leaves; see `_follow`."""
        while not self._leaving.done():
            try:
                if self._must_ask_witness:
                    await self._work(lambda: self._witness.require_kept(self._engine, replica.fold))
                    self._must_ask_witness = False
                count = await self._work(lambda: self._take_some(replica))
            except Unknown as error:
                self._silence.away(monotonic_ms())
                self._note_unanswered(error.detail)
                await self._pause(BEHIND_SECONDS)
                continue
            self._note_unanswered("")
            self._look_at_foreign(replica)
            self._look_at_repeated(replica)
            self._one_name.check(self.leader.listen if self.leader else "")
            if replica.core.is_checkpoint_due or self._has_many_records(replica):
                await self._work(lambda: replica.checkpoint(self._clock()))
            self._look_beside(replica)
            await self._complain(replica)
            self._has_read_all |= not count
            if count:
                continue
            check_key(self.me.node, self.me.key, replica.fold.epoch, replica.fold.leads)
            self._tell_clock()
            stands_ms = self._silence.stands_ms(self._rank(), is_unfit=bool(self.unfit()))
            if monotonic_ms() >= stands_ms and await self._stand(replica):
                return True
            await self._pause(POLL_SECONDS)
        return False

    def _note_unanswered(self, reason: str) -> None:
        """Keep what the shared log says instead of an answer, and since when; log it where that changes."""
        if reason and not self._refusal:
            self._refused_ms = monotonic_ms()
        if reason and reason != self._refusal:
            log.warning("the shared log does not answer: it is asked again", reason=reason)
        if self._refusal and not reason:
            log.info("the shared log answers again", after_ms=monotonic_ms() - self._refused_ms)
        self._refusal = reason

    @property
    def refusal(self) -> str:
        """What the shared log says instead of an answer; empty while it answers, or says nothing."""
        is_at_work = self.role in (Role.FOLLOWING, Role.STANDING, Role.LEADING)
        return (self._refusal or self._stood_in_vain) if is_at_work else ""

    def _look_at_foreign(self, replica: Replica) -> None:
        """Warn of lines in the shared log that are no records of its cluster's."""
        count, self._foreign_count = self._foreign_count, replica.fold.foreign_count
        if self._foreign_count > count:
            log.warning(
                "somebody else writes into the shared log: its lines are stepped over. Let nobody "
                "but the nodes write there",
                lines=self._foreign_count,
            )

    def _look_at_repeated(self, replica: Replica) -> None:
        """Warn of records that the engine has doubled."""
        count, self._repeated_count = self._repeated_count, replica.fold.repeated_count
        if self._repeated_count > count:
            log.warning(
                "the shared log has records twice: the second is equal, and was stepped over. Look at it: "
                "tidewheel cluster doctor URL",
                records=self._repeated_count,
                next_record=replica.fold.next_offset,
            )

    def _take_some(self, replica: Replica) -> int:
        """Take what the log has now, up to some MiB, in a worker thread; return the number of records."""
        fold = replica.fold
        found = self._engine.read(fold.next_offset, READ_BYTES)
        self._read_ms = monotonic_ms()
        for one in up_to_gap(self._engine, fold, found):
            step = replica.take(one.offset, one.stored, self._clock())
            if step.outcome is Outcome.READ_AGAIN:
                break
            self.clocks.led(one, step.record)
            self._loop.call_soon_threadsafe(self._note, step, monotonic_ms())
        self._end, self._next_offset = fold.end, fold.next_offset
        self.pace.read(found, lambda: self._engine.bounds()[1])
        return len(found)

    def _note(self, step: Step, now_ms: int) -> None:
        """Take in what a record says of who leads."""
        record = step.record
        if record is None or step.outcome in (Outcome.DEAD, Outcome.ALREADY_HAD, Outcome.NOTED):
            return
        beat = record.facts if record.kind == Kind.BEAT and record.epoch == self.epoch else {}
        if record.kind == Kind.EPOCH:
            self._know_leader(record.epoch, record.facts)
            self._stood_in_vain = ""
            log.info("epoch", epoch=record.epoch, leader=record.facts["node"])
        elif beat.get("leaves"):
            self._note_leaving(now_ms, beat.get("to", ""))
            return
        if self._has_read_all and step.outcome in (Outcome.ALIVE, Outcome.ACCEPTED):
            self._one_name.heard(self.leader.node if self.leader else "", record.holder, now_ms)
        if self.leader is not None and (anew := told_anew({}, beat)):
            self.leader = self.leader._replace(**anew)
        self._silence.heard(now_ms)  # and nobody is told: each open call waits for another leader

    def _note_leaving(self, now_ms: int, to: str) -> None:
        """Take in that the leader leaves: to the node `to`, or to any but itself."""
        was_me = self.leader is not None and self.leader.node == self.me.node
        may_stand = to == self.me.node if to else not was_me
        self.leader = None
        self._silence.heard(now_ms, leaves=may_stand, is_named=may_stand and bool(to))
        self._tell()

    async def _complain(self, replica: Replica) -> None:
        """Say in the shared log that clients call, and the leader does not answer, if so."""
        # What the log says of this node may be of a copy that is gone, until all was read.
        known = replica.fold.holdings.of(self.me.node) if self._has_read_all else None
        if known is None or (number := self.reach.complains(self.epoch, monotonic_ms())) is None:
            return
        log.warning("the leader does not answer what clients ask", epoch=self.epoch)
        with suppress(Unknown, Refused):  # then it is said again
            await self._work(partial(self._engine.note, self.own_copy.complaint(known, self.epoch, number)))

    def _rank(self) -> int:
        return sorted(self._names).index(self.me.node)

    async def _stand(self, replica: Replica) -> bool:
        """Try to lead; return whether the shared log says so."""
        self._become(Role.STANDING)
        why = self._why()
        self._silence.stood(monotonic_ms())
        try:
            won = await self._work(lambda: self._stand_once(replica))
        except Unknown as error:
            log.warning("stood, and nobody knows what came of it", reason=error.detail)
            self._stood_in_vain = error.detail
            won = False
        except Refused as error:
            log.info("stood, and another was first", reason=str(error))
            self._silence.lost()
            self._must_ask_witness = True  # or the engine lacks what this node has read
            won = False
        if won:
            self._stood_in_vain = ""
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
        replica.require_may_stand()
        self.shown = self._show()
        me = self.me._replace(certificate=self.shown.certificate)
        candidate = Candidate(fold, secrets.token_bytes(HOLDER_BYTES), me._asdict())
        self._one_name.drew(candidate.epoch.holder)
        head = Head(fold.epoch, fold.holder, Position(fold.end, fold.chain))
        following = Head(candidate.epoch.epoch, candidate.epoch.holder, head.position)
        offset = self._engine.append_if(head, [encode(candidate.epoch)], following)
        if offset is None:
            return False
        until_ms = monotonic_ms() + EPOCH_SECONDS * 1000
        while fold.next_offset <= offset and monotonic_ms() < until_ms:
            self._take_some(replica)
        return fold.next_offset > offset and candidate.has_won(fold, self._crc_again(candidate))

    def _crc_again(self, candidate: Candidate) -> int | None:
        """Return the CRC-32 of what was read last before the node stood; None if it was trimmed."""
        return None if candidate.reads_again is None else crc_at(self._engine, candidate.reads_again)

    # Copies, as far as they are the node's: when to look after its own, and that it needs another's.

    def _has_many_records(self, replica: Replica) -> bool:
        """Return whether so many records lie behind the checkpoint that they should not be kept for it."""
        shared = replica.core.shared_in_checkpoint
        since = 0 if shared is None else int(shared["next_offset"])
        return replica.fold.next_offset - since >= CHECKPOINT_RECORDS

    def _look_beside(self, replica: Replica) -> None:
        """Look after the copy now and then while the node follows, which must not wait for that.

        Raise `StoreDamaged` once a look has found that.
        """
        if self._looking is not None and self._looking.done():
            looked, self._looking = self._looking, None
            looked.result()
        if self._looking is None and monotonic_ms() >= self._looked_ms + LOOK_SECONDS * 1000:
            look = partial(self._look_after_copy, replica)
            self._looking = self._loop.run_in_executor(self._executor, look)

    def _look_no_more(self) -> None:
        """Let a look that is under way end unheard: its replica is another one's, or void."""
        if self._looking is not None:
            let_end(self._looking)
            self._looking = None

    def _look_after_copy(self, replica: Replica) -> None:
        """Tell of a new checkpoint, once it is read back; raise `StoreDamaged`. In a worker thread."""
        self._looked_ms = monotonic_ms()
        self.shown = self._show()
        if self.role is Role.FOLLOWING:
            self._has_room = fitness.has_room(self._disk, replica.core.segment_bytes)
        replica.require_sound(has_read_all=self._has_read_all)
        replica.sync()
        self._copying.tell(replica, self._looked_ms)

    async def _copy(self, why: str, where: Unreadable | None = None) -> None:
        """Get the copy of another node, or begin anew with the whole log; else wait a while.

        `where` is the record of the shared log that this node cannot read, if that is why.
        """
        self._become(Role.COPYING)
        self._replica, self.copying = None, why
        log.warning("needs a copy", reason=why)
        try:
            if monotonic_ms() < self._copied_ms + COPY_AGAIN_SECONDS * 1000:
                raise CopyRefused("The copy before was no better.")
            found = await self._work(partial(self._copying.look, where))
            if found.epoch is not None:
                self._know_leader(found.epoch.epoch, found.epoch.facts)
            source = await self._work(partial(self._copying.get, found, where))
            self._copied_ms = monotonic_ms()
            log.info("copied", source=source)
        except (CopyRefused, Unknown, Refused, OSError) as error:
            self.copying = f"{why} {error}"
            log.error("no copy yet", reason=str(error))
            await self._pause(COPY_AGAIN_SECONDS)
        except Halted as error:
            await self._halt(error)

    def _shown_over_http(self) -> str:
        return self.shown.certificate if self.me.http.startswith("https:") else ""

    # Leading.

    async def _lead(self, replica: Replica) -> None:
        """Serve until an append is not proven, the disk fails, or the node leaves; raise the core's bug."""
        over: asyncio.Future[OSError] = self._loop.create_future()

        def stepped_down(error: OSError) -> None:
            if not over.done():
                over.set_result(error)

        replica.lead(self._engine, self._clock(), monotonic_ms, self.me.node)
        self.takeovers += 1
        wanted = asyncio.Event()
        async with self._serve(replica.core, stepped_down, Proving(monotonic_ms, wanted.set)) as leading:
            self._become(Role.LEADING)
            log.info("leads", epoch=self.epoch, node=self.me.node, why=self.took_over and self.took_over.why)
            self._orders = orders = Orders(self._loop)
            self._followers = Followers(replica.fold.end, monotonic_ms)
            beating = self._loop.create_task(self._beat(replica, leading, wanted))
            looking = self._loop.create_task(self._look(replica, leading, orders))
            ends: set[asyncio.Future[Any]] = {over, self._leaving, leading.broken, orders.moving}
            await asyncio.wait(ends | {beating, looking}, return_when=asyncio.FIRST_COMPLETED)
            beating.cancel()
            looking.cancel()  # both at once: a look must not go on without the followers
            self._orders = self._followers = None
            self.log_damage = LogDamage(self.me.node)
            for task in (beating, looking):
                with suppress(asyncio.CancelledError, OSError, StoreError):
                    await task
            self._become(Role.OPENING)
        if leading.broken.done():
            leading.broken.result()  # a bug is not survived, and the next leader hears the silence
        if over.done():
            log.warning("stepped down", reason=str(over.result()))
        if replica.sink is not None:
            await self._hand_over(replica.sink, orders)
        if not looking.cancelled() and (error := looking.exception()) is not None:
            raise error

    async def _hand_over(self, sink: SharedSink, orders: Orders) -> None:
        """Say that this node leaves, if it may still: the next one need not wait for silence.

        A leader whose own disk has failed has its right; one whose append was not proven has none.
        """
        with suppress(NotAccepted):
            await self._work(partial(sink.leave, orders.moving.result() if orders.moving.done() else ""))

    async def _look(self, replica: Replica, leading: Leading, orders: Orders) -> None:
        """Look after the leader's copy, trim, clock and log.

        Raise `StoreDamaged` where the copy is none, `Halted` where the log has lost what was written.
        """
        assert replica.sink is not None, "a leader has a sink"
        began_ms = replica.sink.proven_ms
        self.log_damage = LogDamage(self.me.node)
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._look_at_foreign(replica)
            self._look_at_repeated(replica)
            if self._has_many_records(replica):
                replica.core.want_checkpoint()
            await self._work(lambda: self._look_after_copy(replica))
            await self._work(partial(self._copying.trim, replica.fold))
            if replica.sink.proven_ms > began_ms:  # the EPOCH was appended before, nobody knows when
                await self._work(partial(self._compare_clock, replica))
            with suppress(Unknown):
                await self._work(partial(self._witness.look_behind, self._engine, replica.fold))
            await self._look_at_damage(replica, leading)
            self._look_for_fitter(replica, orders)
            await self._leave_if_unreached(replica, orders)

    async def _look_at_damage(self, replica: Replica, leading: Leading) -> None:
        """Hold all answers while other nodes cannot read on at a record that is broken (`log_damage`)."""
        assert replica.sink is not None, "a leader has a sink"
        assert self._followers is not None, "a leader hears its followers"
        damage, holdings = self.log_damage, replica.fold.holdings
        with suppress(Unknown, Refused):
            for word in damage.to_look_into(dict(holdings.unreadable)):
                fault = await self._work(partial(replica.sink.fault_at, word.where))
                damage.looked_into(word, fault, replica.fold.end)
                log.warning("a node cannot read on", node=word.node, why=word.where.why, fault=fault)
        before = damage.state
        state = damage.compare(dict(holdings.unreadable), holdings.all(), self._followers.ends())
        if state is not before:
            log.error("the shared log", state=state.value, faults=damage.sentences())
        if state is State.HELD:
            leading.answers.hold(ResultUnknown(" ".join(damage.sentences())))
            if damage.needs_checkpoint(holdings.of(self.me.node)):
                replica.core.want_checkpoint()
        elif leading.answers.held is not None:
            leading.answers.release(replica.core.durable_offset)

    def _look_for_fitter(self, replica: Replica, orders: Orders) -> None:
        """Hand over to a node that is fit, if this one is not."""
        self._has_room = not replica.core.housekeeping.is_full
        self._tell_clock()
        if not self.unfit() or monotonic_ms() < self._handed_over_ms + fitness.HAND_OVER_AGAIN_MS:
            return
        assert self._followers is not None, "a leader hears its followers"
        if (fitter := self._followers.fit()) and not orders.moving.done():
            self._handed_over_ms = monotonic_ms()
            log.warning("hands over to a node that is fit", to=fitter, why=self.unfit())
            orders.moving.set_result(fitter)

    def unfit(self) -> str:
        """Return why this node should lead only where no other can; empty if it may."""
        if self.pace.is_off:
            return fitness.CLOCK_OFF
        return "" if self._has_room else fitness.NO_ROOM

    def _compare_clock(self, replica: Replica) -> None:
        """Compare this node's clock with the engine's time of the newest record. In a worker thread."""
        assert replica.sink is not None, "a leader has a sink"
        began_ms = replica.sink.proven_ms
        with suppress(Unknown):  # the newest record is the proven append, or behind it
            found = self._engine.read(replica.fold.next_offset - 1, 1)[:1]
            if self.role is Role.LEADING:  # else the node has stepped down meanwhile, and that is of the past
                self.pace.appended(began_ms, found)

    def _tell_clock(self) -> None:
        """Log when this node's clock begins or ends to be off."""
        if self.pace.is_off is self._told_off:
            return
        self._told_off = not self._told_off
        if self._told_off:
            log.error("the clock is off the engine's: keep clocks together", skew_ms=self.pace.skew_ms)
        else:
            log.info("the clock is right again", skew_ms=self.pace.skew_ms)

    async def _leave_if_unreached(self, replica: Replica, orders: Orders) -> None:
        """Let a node lead that complains of this one, if no client answers here either."""
        for node, complaint in list(replica.fold.holdings.unreached.items()):
            if node == self.me.node or complaint[0] != self.epoch:
                continue
            if not self._leaves_for.heeds(node, complaint, monotonic_ms()) or await self.reaches_clients():
                continue
            if not orders.moving.done():
                log.warning("leaves: no client answers here, and another node is called", to=node)
                self._leaves_for.left(monotonic_ms())
                orders.moving.set_result(node)
            return

    async def _beat(self, replica: Replica, leading: Leading, wanted: asyncio.Event) -> None:
        """Write a BEAT whenever nothing was written for a while, or an answer wants a proof."""
        sink = replica.sink
        assert sink is not None, "a leader has a sink"
        began_ms = sink.proven_ms
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_MS / 1000 / 3):
                    await wanted.wait()
            self._end = replica.fold.end
            if self._followers is not None:
                self._followers.moved(self._end)
            if sink.proven_ms > began_ms:
                self._silence.led()
            news = self._news(replica.fold)
            is_said = not (wanted.is_set() or news or (self._orders and self._orders.told))
            if is_said and monotonic_ms() - sink.proven_ms < BEAT_MS:
                continue
            wanted.clear()
            try:
                await self._work(partial(sink.beat, {"clock_ms": self._clock()} | news))
                await self._write_told(sink)
            except NotAccepted as error:
                leading.fail(error)
                return
            leading.answers.proven(sink.proven_ms)

    def _news(self, fold: Fold) -> dict[str, Any]:
        """Return what a leader has to tell of itself that the log does not say yet."""
        certificate = self.shown.certificate
        return {} if fold.leads.get("certificate", "") == certificate else {"certificate": certificate}

    async def _write_told(self, sink: SharedSink) -> None:
        """Write what an operator told; raise `NotAccepted`."""
        while self._orders is not None and self._orders.told:
            facts, told = self._orders.told.pop(0)
            await self._work(partial(sink.beat, facts))
            if not told.done():
                told.set_result(None)

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


async def _taken_for_granted() -> bool:
    """Say that clients are reached, where nobody can tell."""
    return True


def monotonic_ms() -> int:
    """Return a clock of this machine that never goes back, in ms."""
    return time.monotonic_ns() // 1_000_000


def is_no_history(error: Exception) -> bool:
    """Return whether a node halts because the shared log is not one history, or is gone."""
    return isinstance(error, (Halted, NoCluster)) and not isinstance(error, TooOld)
