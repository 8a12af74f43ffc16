"""What somebody does by hand to the ferry's tables, baskets and messages (`ferry`), each with what an audit
has to say of it.

A sabotage is a generator over one booking of its own. It goes on when

    1  both consumers have done what there was
    2  the booking's time is over, and they have done what there was then
    3  two hours have passed, and the audit is about to be run
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, NamedTuple

from click.testing import CliRunner

from services.cli.root import load
from spark_jobs.cases import names
from tests.endurance.ferry import BOOKED, DEADLINES, Ferry, Half, Lines, wanted
from tidewheel import NewMessage

Story = Iterator[None]
LATER: Final = timedelta(hours=2)
REFUSED: Final = 4
"""The exit code of a command that is refused by the state of what it is about."""
LINES: Final[Lines] = {"adulto": 2, "coche": 1}


def tidewheel(ferry: Ferry, *words: str, codes: tuple[int, ...] = (0,)) -> str:
    """Run a command of the broker's as an operator does; return what it prints."""
    group, *rest = words
    done = CliRunner().invoke(load(group), rest, env={"TIDEWHEEL_HTTP": ferry.broker.http})
    assert done.exit_code in codes, f"{words}: {done.output}{done.exception!r}"
    return done.output


@dataclass
class Scene:
    """A sabotage's own booking."""

    ferry: Ferry
    name: str
    booking: str = ""
    traveller: int = 0
    kept: dict[str, list[Any]] = field(default_factory=dict)
    """Rows that were deleted, by table."""

    def __post_init__(self) -> None:
        self.booking, self.traveller = self.ferry.new_id()

    def book(self) -> None:
        self.ferry.book(self.booking, self.traveller, LINES)

    def pay(self) -> None:
        self.ferry.pay(self.booking)

    def set(self, **values: Any) -> None:
        """Change the booking's row; values named `*_en` are milliseconds since 1970."""
        named = {f"{name}_ms" if name.endswith("_en") else name: value for name, value in values.items()}
        changes = ", ".join(f"{name} = :{key}" for name, key in zip(values, named, strict=True))
        self.ferry.run(f"UPDATE reserva SET {changes} WHERE localizador = :id", id=self.booking, **named)

    def write_rows(self) -> None:
        """Write the booking's rows, and nothing else."""
        with self.ferry.engine.begin() as database:
            self.ferry.write_rows(database, self.booking, self.traveller, LINES)

    def fill_basket(self) -> None:
        self.ferry.fill_basket(self.traveller, wanted(LINES))

    def begin(self, *messages: NewMessage) -> list[Half]:
        return [self.ferry.begin(one) for one in messages]

    def booked(self) -> NewMessage:
        return self.ferry.booked(self.booking, self.traveller, LINES)

    def deadline(self, **options: Any) -> NewMessage:
        return self.ferry.deadline(self.booking, **options)

    def payment(self) -> NewMessage:
        return self.ferry.payment(self.booking)

    def commit(self, *halves: Half) -> None:
        for half in halves:
            self.ferry.commit(half)

    def roll_back(self, *halves: Half) -> None:
        for half in halves:
            tidewheel(self.ferry, "txn", "resolve", half.transaction_id, "rollback", "--reason", "by mistake")

    def forget_entries(self) -> None:
        self.ferry.run("DELETE FROM movimiento WHERE origen = :booking", booking=self.booking)

    def change_basket(self, difference: int, **lines: int) -> None:
        for fare, places in (lines or LINES).items():
            self.ferry.change_basket(self.traveller, fare, difference * places)


def booking_deleted(scene: Scene) -> Story:
    scene.book()
    yield
    scene.pay()
    for table, column in (("pasaje", "reserva"), ("reserva", "localizador")):
        where = f"FROM {table} WHERE {column} = :id"
        scene.kept[table] = scene.ferry.run(f"SELECT * {where}", id=scene.booking)
        scene.ferry.run(f"DELETE {where}", id=scene.booking)


def restore_booking(scene: Scene) -> None:
    for table, rows in scene.kept.items():
        for row in rows:
            values = {f"v{number}": value for number, value in enumerate(row)}
            named = ", ".join(f":{name}" for name in values)
            scene.ferry.run(f"INSERT INTO {table} VALUES ({named})", **values)


def written_by_hand_and_paid(scene: Scene) -> Story:
    scene.fill_basket()
    scene.write_rows()
    scene.set(estado="abonada", abonada_en=scene.ferry.now_ms)
    yield


def written_by_hand_and_unpaid(scene: Scene) -> Story:
    scene.fill_basket()
    scene.write_rows()
    yield


def set_paid_that_was_not(scene: Scene) -> Story:
    scene.book()
    yield
    scene.set(estado="abonada")


def lapsed_and_set_paid(scene: Scene) -> Story:
    scene.book()
    yield
    yield
    scene.set(estado="abonada")


def payment_forgotten(scene: Scene) -> Story:
    scene.book()
    yield
    scene.pay()
    scene.set(estado="pendiente", abonada_en=None)


def payment_rolled_back(scene: Scene) -> Story:
    scene.book()
    yield
    scene.roll_back(*scene.begin(scene.payment()))
    scene.set(estado="abonada", abonada_en=scene.ferry.now_ms)


def booking_rolled_back(scene: Scene) -> Story:
    scene.fill_basket()
    halves = scene.begin(scene.booked(), scene.deadline())
    scene.write_rows()
    scene.roll_back(*halves)
    yield


def booking_left_open(scene: Scene) -> Story:
    scene.fill_basket()
    scene.begin(scene.booked(), scene.deadline())
    scene.write_rows()
    yield


def payment_left_open(scene: Scene) -> Story:
    scene.book()
    yield
    scene.begin(scene.payment())
    scene.set(estado="abonada", abonada_en=scene.ferry.now_ms)


def payment_left_open_and_unpaid(scene: Scene) -> Story:
    scene.book()
    yield
    scene.begin(scene.payment())


def deadline_cancelled(scene: Scene) -> Story:
    scene.book()
    yield
    named = "--topic", DEADLINES, "--timer-key", f"plazo/{scene.booking}"
    tidewheel(scene.ferry, "timer", "cancel", *named, "--reason", "by mistake")


def deadline_never_set(scene: Scene) -> Story:
    scene.fill_basket()
    halves = scene.begin(scene.booked())
    scene.write_rows()
    scene.commit(*halves)
    yield


def deadline_set_for_later(scene: Scene) -> Story:
    scene.fill_basket()
    halves = scene.begin(scene.booked(), scene.deadline(after=timedelta(days=9)))
    scene.write_rows()
    scene.commit(*halves)
    yield


def basket_emptied_twice(scene: Scene) -> Story:
    scene.book()
    yield
    scene.pay()
    scene.change_basket(-1, adulto=1)


def entry_deleted(scene: Scene) -> Story:
    scene.book()
    yield
    scene.pay()
    scene.forget_entries()


def entry_deleted_beside_one_alike(scene: Scene) -> Story:
    """The traveller has a second booking of the same fares, a newer one."""
    scene.book()
    alike, _ = scene.ferry.new_id()
    scene.ferry.book(alike, scene.traveller, LINES)
    yield
    scene.pay()
    scene.ferry.pay(alike)
    scene.forget_entries()


def basket_not_emptied(scene: Scene) -> Story:
    scene.book()
    yield
    scene.pay()
    scene.forget_entries()
    scene.change_basket(+1)


def basket_filled_by_hand(scene: Scene) -> Story:
    scene.book()
    yield
    scene.pay()
    scene.change_basket(+1, coche=1)


def booking_given_up(scene: Scene) -> Story:
    scene.ferry.dead.add((BOOKED, scene.booking))
    scene.book()
    yield
    scene.pay()
    scene.ferry.dead.discard((BOOKED, scene.booking))


def deadline_given_up(scene: Scene) -> Story:
    scene.ferry.dead.add((DEADLINES, scene.booking))
    scene.book()
    yield
    yield
    scene.ferry.dead.discard((DEADLINES, scene.booking))


def set_cancelled_that_was_not(scene: Scene) -> Story:
    scene.book()
    yield
    scene.set(estado="anulada", anulada_en=scene.ferry.now_ms)


def cancellation_told_of_a_paid_booking(scene: Scene) -> Story:
    scene.book()
    yield
    scene.pay()
    scene.commit(*scene.begin(scene.ferry.cancellation(scene.booking)))


def paid_and_lapsed(scene: Scene) -> Story:
    scene.book()
    yield
    scene.pay()
    scene.set(vencida_en=scene.ferry.now_ms)


def not_lapsed(scene: Scene) -> None:
    scene.set(vencida_en=None)


def entry_of_two_travellers(scene: Scene) -> Story:
    scene.book()
    yield
    scene.pay()
    other = "INSERT INTO movimiento VALUES (:other, 'sale', :booking, NULL, NULL, :at_ms)"
    scene.ferry.run(other, other=1, booking=scene.booking, at_ms=scene.ferry.now_ms)


def forget_the_other_entry(scene: Scene) -> None:
    scene.ferry.run("DELETE FROM movimiento WHERE origen = :id AND viajero = 1", id=scene.booking)


def booking_never_read(scene: Scene) -> Story:
    scene.ferry.slow.add((BOOKED, scene.booking))
    scene.book()
    yield
    scene.pay()


def read_booking(scene: Scene) -> None:
    scene.ferry.slow.discard((BOOKED, scene.booking))


def deadline_set_late(scene: Scene) -> Story:
    scene.fill_basket()
    booked, deadline = scene.begin(scene.booked(), scene.deadline())
    scene.write_rows()
    scene.commit(booked)
    yield
    yield
    yield
    scene.commit(deadline)


def deadline_read_late(scene: Scene) -> Story:
    scene.ferry.slow.add((DEADLINES, scene.booking))
    scene.book()
    yield
    yield
    scene.ferry.slow.discard((DEADLINES, scene.booking))


class Sabotage(NamedTuple):
    """What is done, the case that it is, the kinds of its plan's steps, and the case that is left when they
    are taken; `by_hand` is what a person decides then, after which nothing is left.
    """

    story: Callable[[Scene], Story]
    case: str
    kinds: tuple[str, ...]
    rest: str = names.BALANCED
    by_hand: Callable[[Scene], None] | None = None

    @property
    def name(self) -> str:
        return self.story.__name__.replace("_", " ")


MESSAGE, STATEMENT, COMMAND, LOOK = ("message",), ("statement",), ("command",), ("look",)

SABOTAGES: Final = (
    # Either the booking is restored, or what its message did is undone: here somebody has the row.
    Sabotage(
        booking_deleted,
        names.MESSAGE_WITHOUT_ORDER,
        LOOK,
        names.MESSAGE_WITHOUT_ORDER,
        restore_booking,
    ),
    Sabotage(written_by_hand_and_paid, names.ORDER_WITHOUT_MESSAGE, MESSAGE * 2),
    Sabotage(written_by_hand_and_unpaid, names.ORDER_WITHOUT_MESSAGE, MESSAGE * 2),
    Sabotage(set_paid_that_was_not, names.OUTCOME_CONTRADICTS_DATABASE, MESSAGE),
    # The payment is told, as the row says; that the row has lapsed as well, a person has to decide.
    Sabotage(
        lapsed_and_set_paid,
        names.OUTCOME_CONTRADICTS_DATABASE,
        MESSAGE,
        names.PAID_BUT_TIMED_OUT,
        not_lapsed,
    ),
    Sabotage(payment_forgotten, names.OUTCOME_CONTRADICTS_DATABASE, STATEMENT),
    Sabotage(payment_rolled_back, names.OUTCOME_CONTRADICTS_DATABASE, MESSAGE),
    Sabotage(booking_rolled_back, names.OUTCOME_CONTRADICTS_DATABASE, MESSAGE * 2),
    Sabotage(booking_left_open, names.HALF_UNRESOLVED, COMMAND * 2 + MESSAGE),
    Sabotage(payment_left_open, names.HALF_UNRESOLVED, COMMAND),
    Sabotage(payment_left_open_and_unpaid, names.HALF_UNRESOLVED, COMMAND),
    Sabotage(deadline_cancelled, names.TIMEOUT_NOT_FIRED, MESSAGE),
    Sabotage(deadline_never_set, names.TIMEOUT_NOT_FIRED, MESSAGE),
    Sabotage(deadline_set_for_later, names.TIMEOUT_NOT_FIRED, COMMAND),
    Sabotage(basket_emptied_twice, names.EFFECT_TWICE, STATEMENT),
    Sabotage(entry_deleted, names.LEDGER_ENTRY_MISSING, STATEMENT * 2),
    Sabotage(entry_deleted_beside_one_alike, names.LEDGER_ENTRY_MISSING, STATEMENT * 2),
    Sabotage(basket_not_emptied, names.CART_NOT_CLEARED, MESSAGE),
    Sabotage(basket_filled_by_hand, names.CART_NOT_CLEARED, STATEMENT),
    Sabotage(booking_given_up, names.DEAD_LETTERED, COMMAND),
    Sabotage(deadline_given_up, names.DEAD_LETTERED, COMMAND),
    Sabotage(set_cancelled_that_was_not, names.OUTCOME_CONTRADICTS_DATABASE, MESSAGE),
    Sabotage(cancellation_told_of_a_paid_booking, names.OUTCOME_CONTRADICTS_DATABASE, STATEMENT),
    # Both promises were made to the traveller: a person says which one stands.
    Sabotage(paid_and_lapsed, names.PAID_BUT_TIMED_OUT, LOOK, names.PAID_BUT_TIMED_OUT, not_lapsed),
    # Which of the two entries is the wrong one, a person has to say.
    Sabotage(
        entry_of_two_travellers,
        names.EFFECT_TWICE,
        LOOK,
        names.EFFECT_TWICE,
        forget_the_other_entry,
    ),
    # The message waits for its consumer, which has to be started.
    Sabotage(booking_never_read, names.NEVER_DELIVERED, LOOK, names.NEVER_DELIVERED, read_booking),
    # What was late stays late.
    Sabotage(deadline_set_late, names.ARMED_LATE, LOOK, names.ARMED_LATE),
    Sabotage(deadline_read_late, names.TIMED_OUT_LATE, LOOK, names.TIMED_OUT_LATE),
)
