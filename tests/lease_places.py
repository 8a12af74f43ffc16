"""The invariant of leases: the four places that keep their state, and what is derived of these, agree."""

from __future__ import annotations

from collections import Counter, defaultdict

from services.broker.broker import Broker
from services.broker.spine.scheduler import Purpose


def check_leases(broker: Broker) -> None:
    """Raise AssertionError where `Leases`, its timers, `InFlight` and `GroupOffsets` do not agree."""
    groups, leases = broker.groups, broker.groups.leases
    standing = {generation: (key, lease.queue_offset) for generation, (key, lease) in leases._leases.items()}
    flights = {key: list(flight.leases()) for key, flight in groups._in_flight.items()}
    found = {one.generation: (key, one.queue_offset) for key, many in flights.items() for one in many}
    assert found == standing, "InFlight has other leases than Leases"
    assert all(leases._leases[one.generation][1] is one for many in flights.values() for one in many)
    recorded = {
        entry.generation: (key, offset)
        for key, offsets in groups._offsets.items()
        for offset, entry in offsets.leases.items()
    }
    named = {one: standing[one] for one, (_, lease) in leases._leases.items() if lease.message_group}
    assert recorded == named, "GroupOffsets has other leases than those of message groups"
    _check_timers(broker)
    of_clients = defaultdict[str, set[int]](set)
    for generation, (_, lease) in leases._leases.items():
        if lease.client_id:
            of_clients[lease.client_id].add(generation)
    assert leases._generations_of == of_clients, "a client has other leases"
    for key, flight in groups._in_flight.items():
        names = Counter(one.message_group for one in flights[key] if one.message_group)
        counted = {name: one.in_flight for name, one in flight.message_groups._groups.items()}
        assert names == Counter(counted), "a message group has other leases"


def _check_timers(broker: Broker) -> None:
    """Each lease has a timer for its end, but those that have run out and wait for their burial."""
    leases, scheduler = broker.groups.leases, broker._scheduler
    without, wheel = set[int](broker._exhausted_messages._last_leases), scheduler._leases
    timed = set[int]()
    for generation, (_, lease) in leases._leases.items():
        try:
            due_ms = scheduler.due_ms(Purpose.LEASE, generation)
        except KeyError:
            assert generation in without, f"a lease without a timer: {lease}"
            continue
        timed.add(generation)
        is_past = lease.visible_ms < due_ms <= wheel.now_ms
        assert due_ms == lease.visible_ms or is_past, f"due at {due_ms}: {lease}"
    assert len(wheel) == len(timed), "a timer of a lease that is over"
