"""The faults of `test_cluster_kill`: what befalls nodes, engine's servers, disks, clocks, clients, networks.

    name -> (strike, how long it lasts, how often it is chosen, what must stand before)

`strike` does it and returns what mends it; both run in a worker thread. To add a fault is to add an entry to
`FAULTS`. What a fault draws by chance it draws from the run's seed, so a run can be played again; how the
machine orders what happens no seed tells.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from subprocess import TimeoutExpired
from threading import Event, Thread
from typing import Final, NamedTuple, Protocol

from tests.endurance.carrier import Carrier
from tests.endurance.cluster_node import Node
from tests.endurance.hosts import TESTER, Hosts
from tests.endurance.sick_disk import KINDS

Mend = Callable[[], None]
EXTRA: Final = "extra"
"""The name of the node that comes and goes."""
MOVES_SECONDS: Final = (0.5, 5.0)
FLAPPING_SECONDS: Final = (0.3, 3.0)
LOSSY_SECONDS: Final = (0.02, 0.3)
CAUGHT_UP_SECONDS: Final = 60.0
ALWAYS_PPM: Final = 1_000_000
PAUSE_SECONDS: Final = ((70, 0.1, 3.0), (25, 3.0, 10.0), (5, 10.0, 60.0))
"""How long pauses last: of a hundred so many between two lengths."""
STEPS_MS: Final = ((70, 500, 5_000), (20, 5_000, 60_000), (10, 60_000, 3_600_000))
"""How far clocks step, either way: of a hundred so many between two lengths."""


class Server(Protocol):
    """A server of the engine, as a process."""

    def kill(self) -> None:
        """End it as `kill -9` does."""

    def start(self) -> None:
        """Start it again."""

    def pause(self) -> None:
        """Let it stand still."""

    def go_on(self) -> None:
        """Let it go on after a pause."""


class Scene(NamedTuple):
    """Whom a fault can befall."""

    leader: Node
    other: Node
    nodes: Sequence[Node]
    servers: Sequence[Server]
    carriers: Sequence[Carrier]
    chance: random.Random
    says: Callable[[str], None]
    """Takes what the fault has drawn."""
    stepped: Callable[[str, int], None]
    """Takes by how many ms a node's clock is off from now on."""
    add: Callable[[], Node]
    """Makes a node, `EXTRA`, that has no store yet; it is not started."""
    hosts: Hosts | None = None
    """Where they run, if each has a host of its own."""

    @property
    def engine(self) -> Sequence[str]:
        """The hosts of the engine's servers."""
        assert self.hosts is not None, "a network is cut between hosts"
        nodes = {EXTRA, *(node.name for node in self.nodes)}
        return [name for name in self.hosts.names if name not in nodes]

    @property
    def others(self) -> Sequence[str]:
        """The names of all nodes but the leader."""
        return [node.name for node in self.nodes if node is not self.leader]

    def cut(self, some: Sequence[str], others: Sequence[str], ways: str) -> Mend:
        """Cut hosts off from others: both "to and from", or one way, "to" or "from" the others."""
        assert self.hosts is not None, "a network is cut between hosts"
        for one in some:
            for other in others:
                if ways in ("to", "to and from"):
                    self.hosts.cut(one, other)
                if ways in ("from", "to and from"):
                    self.hosts.cut(other, one)
        return self.hosts.heal

    def any_ways(self) -> str:
        """Return in which directions a link is cut: both ways or, as often, one."""
        ways = self.chance.choice(("to", "from", "to and from", "to and from"))
        self.says(ways)
        return ways

    def any_node(self) -> Node:
        """Return the leader or, now and then, the other one."""
        node = self.leader if self.chance.random() < 0.7 else self.other
        self.says("the leader" if node is self.leader else "the follower")
        return node


Strike = Callable[[Scene], Mend]


class Before(Enum):
    """What must stand before a fault."""

    LEADER = "a node leads"
    FOLLOWER = "the other one follows"
    COPIES = "the other one follows, and both have told of a copy"


def some_seconds(chance: random.Random) -> float:
    """Return how long most faults last."""
    return chance.uniform(0.1, 6.0)


def pause_seconds(chance: random.Random) -> float:
    """Return how long a pause lasts: mostly short, now and then long."""
    return drawn(chance, PAUSE_SECONDS)


def cut_seconds(chance: random.Random) -> float:
    """Return how long a network is cut."""
    return chance.uniform(0.5, 20.0)


def long_seconds(chance: random.Random) -> float:
    """Return how long a fault lasts that comes again and again meanwhile."""
    return chance.uniform(5.0, 30.0)


def drawn(chance: random.Random, table: Sequence[tuple[int, float, float]]) -> float:
    """Return a length of a table of shares and bounds."""
    _, low, high = chance.choices(table, [share for share, _, _ in table])[0]
    return chance.uniform(low, high)


class Fault(NamedTuple):
    """A fault, and when it may happen."""

    strike: Strike
    seconds: Callable[[random.Random], float] = some_seconds
    weight: int = 4
    before: Before = Before.LEADER
    waits: bool = False
    """Whether it is mended only once sends are acknowledged again: another node must lead meanwhile."""
    needs_hosts: bool = False


# Nodes.


def kill(nodes: Callable[[Scene], Sequence[Node]]) -> Strike:
    """Kill nodes as `kill -9` does, and start them again."""

    def strike(scene: Scene) -> Mend:
        struck = nodes(scene)
        for node in struck:
            node.kill()
        return partial(start_again, struck)

    return strike


def cut_power(nodes: Callable[[Scene], Sequence[Node]]) -> Strike:
    """Kill nodes, and drop what their disks have not synced."""

    def strike(scene: Scene) -> Mend:
        struck = nodes(scene)
        for node in struck:
            node.disk["die"] = 1
        return partial(start_again, struck)

    return strike


def start_again(nodes: Sequence[Node]) -> None:
    """Start nodes that have died."""
    for node in nodes:
        node.wait_for_death()
    for node in nodes:
        node.launch()
    for node in nodes:
        node.wait_until_up()


def leader(scene: Scene) -> Sequence[Node]:
    """Return the node that leads."""
    return [scene.leader]


def follower(scene: Scene) -> Sequence[Node]:
    """Return the node that follows."""
    return [scene.other]


def both(scene: Scene) -> Sequence[Node]:
    """Return both nodes."""
    return scene.nodes


def terminate(scene: Scene) -> Mend:
    """Tell the leader to stop."""
    scene.leader.terminate()
    return partial(start_again, [scene.leader])


def move(scene: Scene) -> Mend:
    """Let the other one lead."""
    scene.leader.move()
    return nothing


def promote(scene: Scene) -> Mend:
    """Let a node lead that is named."""
    scene.says(scene.other.name)
    scene.leader.move(scene.other.name)
    return nothing


def move_often(scene: Scene) -> Mend:
    """Let the lead move again and again, more often than leases and routes last."""
    nodes = scene.nodes

    def move_on() -> None:
        for node in [one for one in nodes if one.role() == "leading"]:
            node.move()

    return repeated(scene, move_on, nothing, MOVES_SECONDS)


def add_and_forget(scene: Scene) -> Mend:
    """Add a node, which gets a copy and now and then leads; then stop it for good, and forget it."""
    node = scene.add()
    node.start()
    await_so(lambda: is_caught_up(node), f"{node.name} does not follow")
    if scene.chance.random() < 0.5:
        scene.says("it leads")
        scene.leader.move(node.name)

    def forget() -> None:
        node.terminate()
        node.wait_for_death()
        node.lose_disk()
        await_so(
            lambda: any(not one.forget(node.name) for one in scene.nodes), f"{node.name} is not forgotten"
        )

    return forget


def is_caught_up(node: Node) -> bool:
    """Return whether a node follows, and has read all."""
    view = node.view()
    return view.get("role") == "following" and view["lag_records"] == 0


def await_so(is_so: Callable[[], bool], otherwise: str) -> None:
    """Wait until something is so, up to `CAUGHT_UP_SECONDS`."""
    ends = time.monotonic() + CAUGHT_UP_SECONDS
    while not is_so():
        assert time.monotonic() < ends, otherwise
        time.sleep(0.2)


def nothing() -> None:
    """Mend nothing: the fault has ended by itself."""


def pause(scene: Scene) -> Mend:
    """Let a node stand still."""
    node = scene.any_node()
    node.pause()
    return node.go_on


def kill_as_it_trims(scene: Scene) -> Mend:
    """Kill the leader when it has let go of a part of the log, and may be about to let go of more."""
    before, ends = scene.leader.view().get("trimmed_below"), time.monotonic() + DIE_SECONDS
    while scene.leader.view().get("trimmed_below") == before and time.monotonic() < ends:
        time.sleep(0.01)
    scene.leader.kill()
    return partial(start_again, [scene.leader])


def lose_disk(scene: Scene) -> Mend:
    """Kill the leader, and lose its disk."""
    scene.leader.kill()
    scene.leader.lose_disk()
    return partial(start_again, [scene.leader])


# Deaths between two calls on the disk.


def die_at(kind: str, calls_max: int) -> Strike:
    """Let a node die, with its power cut, before one of its next calls of a kind."""

    def strike(scene: Scene) -> Mend:
        node, calls = scene.any_node(), scene.chance.randint(1, calls_max)
        scene.says(f"at call {calls}")
        node.disk.die_after(calls, kind)
        die_by_itself(scene, node)
        return partial(start_again, [node])

    return strike


def die_at_start(*, calls_max: int, loses_disk: bool = False) -> Strike:
    """Let the leader die, and again while it opens its store, or gets the copy of another."""

    def strike(scene: Scene) -> Mend:
        node, calls = scene.leader, scene.chance.randint(1, calls_max)
        scene.says(f"at call {calls} of the start")
        node.kill()
        if loses_disk:
            node.lose_disk()
        node.disk.heal()
        node.disk.die_after(calls)
        node.launch()
        die_by_itself(scene, node)
        return partial(start_again, [node])

    return strike


DIE_SECONDS: Final = 5.0
"""How long a node has to come to the call before which it dies; then it dies anywhere."""


def die_by_itself(scene: Scene, node: Node) -> None:
    """Wait until a node has died at its call, or let it die."""
    assert node.process is not None
    try:
        node.process.wait(DIE_SECONDS)
    except TimeoutExpired:
        scene.says("which it did not come to")
        node.disk["die"] = 1


# Disks.


def disk(**numbers: int) -> Strike:
    """Make the disk of a node sick."""

    def strike(scene: Scene) -> Mend:
        node = scene.any_node()
        node.disk.set(**numbers, armed=1)
        return node.disk.heal

    return strike


def leaders_disk(**numbers: int) -> Strike:
    """Make the disk of the leader sick."""

    def strike(scene: Scene) -> Mend:
        scene.leader.disk.set(**numbers, armed=1)
        return scene.leader.disk.heal

    return strike


def fill_disk(nodes: Callable[[Scene], Sequence[Node]]) -> Strike:
    """Leave a node's disk some room, or none."""

    def strike(scene: Scene) -> Mend:
        [node], room = nodes(scene), scene.chance.choice((0, 100_000, 5 << 20))
        scene.says(f"{room} bytes are left")
        node.disk.set(full=1, room=room, armed=1)
        return node.disk.heal

    return strike


# Clocks.


def step_clock(scene: Scene) -> Mend:
    """Let the clock of a node step, and back."""
    node = scene.any_node()
    offset_ms = int(drawn(scene.chance, STEPS_MS)) * scene.chance.choice((-1, 1))
    scene.says(f"by {offset_ms} ms")

    def step_back() -> None:
        node.clock.be_off_by(0)
        scene.stepped(node.name, 0)

    scene.stepped(node.name, offset_ms)
    node.clock.be_off_by(offset_ms)
    return step_back


# The engine's servers, and clients.


def kill_server(scene: Scene) -> Mend:
    """Kill a server of the engine."""
    server = scene.chance.choice(scene.servers)
    scene.says(f"number {scene.servers.index(server)}")
    server.kill()
    return server.start


def pause_server(scene: Scene) -> Mend:
    """Let a server of the engine stand still."""
    server = scene.chance.choice(scene.servers)
    scene.says(f"number {scene.servers.index(server)}")
    server.pause()
    return server.go_on


def kill_clients(scene: Scene) -> Mend:
    """Kill the clients of one node."""
    carrier = scene.chance.choice(scene.carriers)
    carrier.kill()
    return carrier.start


def pause_clients(scene: Scene) -> Mend:
    """Let the clients of one node stand still."""
    carrier = scene.chance.choice(scene.carriers)
    carrier.pause()
    return carrier.go_on


def flap_clients(scene: Scene) -> Mend:
    """Reset the connections of one node's clients again and again."""
    carrier = scene.chance.choice(scene.carriers)
    return repeated(scene, carrier.kill, carrier.start, FLAPPING_SECONDS)


def lose_of_clients(scene: Scene) -> Mend:
    """Let what one node's clients and it send stand still for moments, as where packets are lost."""
    carrier = scene.chance.choice(scene.carriers)
    return repeated(scene, carrier.pause, carrier.go_on, LOSSY_SECONDS)


# Networks.


def repeated(scene: Scene, down: Mend, up: Mend, seconds: tuple[float, float]) -> Mend:
    """Let something be down and up in turn, each for a time between bounds; mended it is up."""
    is_over, chance, failed = Event(), random.Random(scene.chance.random()), list[Exception]()

    def go_on() -> None:
        try:
            while not is_over.is_set():
                down()
                is_over.wait(chance.uniform(*seconds))
                up()
                is_over.wait(chance.uniform(*seconds))
        except Exception as error:
            failed.append(error)

    thread = Thread(target=go_on)
    thread.start()

    def mend() -> None:
        is_over.set()
        thread.join()
        if failed:
            raise failed[0]

    return mend


def unsteady(seconds: tuple[float, float]) -> Strike:
    """Cut one link again and again: for moments a link that loses packets, for seconds one that flaps."""

    def strike(scene: Scene) -> Mend:
        node, far = scene.any_node(), scene.chance.choice(("engine", "nodes", "clients"))
        scene.says(far)
        ends = {"engine": scene.engine, "clients": [TESTER]}.get(
            far, [one.name for one in scene.nodes if one is not node]
        )
        ways = scene.any_ways()
        assert scene.hosts is not None, "a network is cut between hosts"
        return repeated(scene, lambda: scene.cut([node.name], ends, ways), scene.hosts.heal, seconds)

    return strike


def cut_from_engine(scene: Scene, ways: str) -> Mend:
    """Cut the leader off from the engine."""
    return scene.cut([scene.leader.name], scene.engine, ways)


def cut_follower_from_engine(scene: Scene) -> Mend:
    """Cut the follower off from the engine."""
    return scene.cut([scene.other.name], scene.engine, scene.any_ways())


def cut_both_from_engine(scene: Scene) -> Mend:
    """Cut both nodes off from the engine."""
    return scene.cut([node.name for node in scene.nodes], scene.engine, scene.any_ways())


def cut_from_each_other(scene: Scene) -> Mend:
    """Cut the nodes off from each other: the engine and clients reach both."""
    return scene.cut([scene.leader.name], scene.others, scene.any_ways())


def cut_from_clients(scene: Scene) -> Mend:
    """Cut a node off from its clients: the engine and the other node reach it."""
    return scene.cut([scene.any_node().name], [TESTER], scene.any_ways())


def cut_from_all_but_engine(scene: Scene) -> Mend:
    """Cut the leader off from the other nodes and from clients: it can write, and answer nobody."""
    return scene.cut([scene.leader.name], [*scene.others, TESTER], scene.any_ways())


def cut_server(scene: Scene) -> Mend:
    """Cut a server of the engine off from the others, or from the nodes as well."""
    server = scene.chance.choice(scene.engine)
    scene.says(server)
    others = [one for one in scene.engine if one != server]
    if scene.chance.random() < 0.5:
        others += [node.name for node in scene.nodes]
        scene.says("nodes too")
    return scene.cut([server], others, scene.any_ways())


LOST: Final = "kill -9, and the disk is lost"
"""What happens in every tenth round."""
FAULTS: Final[dict[str, Fault]] = {
    "kill -9": Fault(kill(leader), weight=8),
    "kill -9 of a follower": Fault(kill(follower)),
    "kill -9 of both": Fault(kill(both)),
    "power cut": Fault(cut_power(leader), weight=6),
    "power cut of both": Fault(cut_power(both)),
    "pause": Fault(pause, pause_seconds, weight=8),
    "SIGTERM": Fault(terminate),
    "move": Fault(move),
    "move to a named node": Fault(promote, before=Before.FOLLOWER),
    "moves, one after another": Fault(move_often, long_seconds, before=Before.FOLLOWER),
    "a node is added and forgotten": Fault(add_and_forget, before=Before.FOLLOWER),
    LOST: Fault(lose_disk, weight=0, before=Before.COPIES),
    "kill -9 as the log is trimmed": Fault(kill_as_it_trims),
    "power cut in a checkpoint": Fault(die_at("rename", 6)),
    "power cut while files are deleted": Fault(die_at("unlink", 6)),
    "power cut between two calls": Fault(die_at("", 500)),
    "power cut in a start": Fault(die_at_start(calls_max=120)),
    "power cut in the transfer": Fault(
        die_at_start(calls_max=250, loses_disk=True), weight=6, before=Before.COPIES
    ),
    "disk slow": Fault(disk(slow_ppm=300_000, slow_us_max=50_000)),
    "disk full": Fault(fill_disk(leader), before=Before.COPIES, waits=True),
    "disk full of a follower": Fault(fill_disk(follower)),
    "disk fails": Fault(disk(**dict.fromkeys(KINDS, 50_000))),
    "disk fails at every write": Fault(leaders_disk(write=ALWAYS_PPM), before=Before.FOLLOWER, waits=True),
    "disk fails at every sync": Fault(disk(sync=ALWAYS_PPM)),
    "disk fails at reads": Fault(disk(read=200_000, open=200_000)),
    "clock": Fault(step_clock, weight=8),
    "kill -9 of a server of the engine": Fault(kill_server, weight=6),
    "pause of a server of the engine": Fault(pause_server, pause_seconds, weight=6),
    "kill -9 of clients": Fault(kill_clients),
    "pause of clients": Fault(pause_clients, pause_seconds),
    "flapping link of clients": Fault(flap_clients, long_seconds),
    "lossy link of clients": Fault(lose_of_clients, long_seconds),
    **{
        f"cut: the leader {ways} the engine": Fault(
            partial(cut_from_engine, ways=ways),
            *(cut_seconds, 6, Before.FOLLOWER),
            waits=True,
            needs_hosts=True,
        )
        for ways in ("to", "from", "to and from")
    },
    "cut: the follower, the engine": Fault(cut_follower_from_engine, cut_seconds, needs_hosts=True),
    "cut: both nodes, the engine": Fault(cut_both_from_engine, cut_seconds, needs_hosts=True),
    "cut: the nodes": Fault(cut_from_each_other, cut_seconds, 6, needs_hosts=True),
    "cut: a node, clients": Fault(cut_from_clients, cut_seconds, 6, needs_hosts=True),
    "cut: the leader, all but the engine": Fault(cut_from_all_but_engine, cut_seconds, 6, needs_hosts=True),
    "cut: a server, the others": Fault(cut_server, cut_seconds, 6, needs_hosts=True),
    "cut: a flapping link": Fault(unsteady(FLAPPING_SECONDS), cut_seconds, 8, needs_hosts=True),
    "cut: a lossy link": Fault(unsteady(LOSSY_SECONDS), cut_seconds, 8, needs_hosts=True),
}


def chosen(chance: random.Random, *, has_hosts: bool = False, wanted: str = "") -> str:
    """Return the name of a fault, one that has `wanted` in it."""
    may_be = {
        name: one.weight
        for name, one in FAULTS.items()
        if wanted in name and (has_hosts or not one.needs_hosts)
    }
    assert any(may_be.values()), f"no fault has {wanted!r} in its name, or it needs --hosts"
    return chance.choices(list(may_be), list(may_be.values()))[0]
