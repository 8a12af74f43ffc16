"""A shop in which everything has gone wrong once: a fault for every case that a plan repairs, and for some
that no plan may touch, among orders that are sound.

A fault is a generator. It goes on when

    1  the carts have consumed what was announced
    2  the deadlines have passed, and the order service has consumed them
    3  two hours have passed, and the audit is about to be run
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import text, update

from consumequeue.filters.filter import EVERYTHING
from services.broker.spine.values import Delivery, Resolution, TimerName
from services.shop.tables import orders
from services.shop.topics import (
    CARTS_GROUP,
    ORDER_CANCELLED,
    ORDER_CREATED,
    ORDER_PAID,
    ORDER_TIMEOUTS,
    ORDERS_GROUP,
    PUSHES,
    PUSHES_GROUP,
)
from spark_jobs.cases import names

Shop = Any
Story = Iterator[None]
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
BALANCED: Final = names.BALANCED


@dataclass
class Scene:
    """A fault's own order in the shop, of a customer of its own."""

    shop: Shop
    order_id: str

    @property
    def customer(self) -> str:
        return f"of {self.order_id}"

    def place(self, **lines: int) -> None:
        self.shop.place(self.order_id, self.customer, lines or {"apple": 2, "pear": 1})

    def begin(self) -> tuple[Any, Any]:
        """Fills the cart and sends the two halves of an order."""
        self.shop.fill_cart(self.customer, {"apple": 2})
        half = self.shop.half(self.order_id, self.customer, {"apple": 2})
        return half, self.shop.half_deadline(self.order_id)

    def half_deadline(self, due_ms: int) -> Any:
        """Sends the half of a deadline that is due at some time."""
        key = {"TW_TIMER_KEY": f"order:{self.order_id}"}
        body = {"order_id": self.order_id, "due_ms": due_ms}
        return self.shop.send_half(ORDER_TIMEOUTS, self.order_id, body, delivery_ms=due_ms, properties=key)

    def write_rows(self, **values: Any) -> None:
        self.shop.write_rows(self.order_id, self.customer, {"apple": 2})
        self.set(**values)

    def set(self, **values: Any) -> None:
        if values:
            self.shop.set_order(self.order_id, **values)

    def set_paid(self) -> None:
        self.set(status="PAID", paid_ms=self.shop.now_ms)

    def pay(self) -> None:
        self.shop.pay(self.order_id)

    def end(self, outcome: Resolution, *halves: Any) -> None:
        for half in halves:
            self.shop.end(half, outcome)

    def cancel(self) -> None:
        """Tells that the customer has cancelled the order."""
        cancels = {"TW_TIMER_CANCEL": f"order:{self.order_id}", "TW_TIMER_TOPIC": ORDER_TIMEOUTS}
        body = {"order_id": self.order_id, "cancelled_ms": self.shop.now_ms}
        half = self.shop.send_half(ORDER_CANCELLED, self.order_id, body, properties=cancels)
        self.shop.end(half, Resolution.COMMIT)

    def change_cart(self, sku: str, difference: int) -> None:
        self.shop.redis.hincrby(f"cart:{self.customer}", sku, difference)

    def forget_entry(self, order_id: str = "") -> None:
        self.shop.redis.hdel(f"cart-ledger:{self.customer}", f"order:{order_id or self.order_id}")


def unannounced_and_paid(scene: Scene) -> Story:
    scene.shop.fill_cart(scene.customer, {"apple": 2})
    scene.write_rows(status="PAID", paid_ms=scene.shop.now_ms)
    yield


def unannounced_and_overdue(scene: Scene) -> Story:
    scene.shop.fill_cart(scene.customer, {"apple": 2})
    scene.write_rows()
    yield


def unannounced_and_not_due(scene: Scene) -> Story:
    yield
    yield
    yield
    scene.shop.fill_cart(scene.customer, {"apple": 2})
    scene.write_rows(due_ms=scene.shop.now_ms + HOUR_MS)


def rolled_back_and_placed(scene: Scene) -> Story:
    halves = scene.begin()
    scene.write_rows()
    scene.end(Resolution.ROLLBACK, *halves)
    yield


def rolled_back_and_paid(scene: Scene) -> Story:
    halves = scene.begin()
    scene.write_rows(status="PAID", paid_ms=scene.shop.now_ms)
    scene.end(Resolution.ROLLBACK, *halves)
    yield


def paid_and_untold(scene: Scene) -> Story:
    scene.place()
    yield
    scene.end(Resolution.ROLLBACK, scene.shop.half_payment(scene.order_id))
    scene.set_paid()


def paid_and_untold_before_the_deadline(scene: Scene) -> Story:
    yield
    yield
    yield
    scene.place()
    scene.set_paid()


def payment_told_to_a_placed_order(scene: Scene) -> Story:
    scene.place()
    yield
    scene.end(Resolution.COMMIT, scene.shop.half_payment(scene.order_id))


def payment_told_to_a_timed_out_order(scene: Scene) -> Story:
    scene.place()
    yield
    yield
    scene.end(Resolution.COMMIT, scene.shop.half_payment(scene.order_id))


def cancelled_and_untold(scene: Scene) -> Story:
    scene.place()
    yield
    scene.set(status="CANCELLED", cancelled_ms=scene.shop.now_ms)


def cancellation_told_to_a_paid_order(scene: Scene) -> Story:
    scene.place()
    yield
    scene.pay()
    scene.cancel()


def halves_open_without_row(scene: Scene) -> Story:
    scene.begin()
    yield


def halves_open_and_placed(scene: Scene) -> Story:
    scene.begin()
    scene.write_rows()
    yield


def half_open_and_placed_without_deadline(scene: Scene) -> Story:
    scene.shop.fill_cart(scene.customer, {"apple": 2})
    scene.shop.half(scene.order_id, scene.customer, {"apple": 2})
    scene.write_rows()
    yield


def halves_open_and_not_due(scene: Scene) -> Story:
    """The deadline is three hours away, and may still be set."""
    shop = scene.shop
    shop.fill_cart(scene.customer, {"apple": 2})
    shop.half(scene.order_id, scene.customer, {"apple": 2})
    due_ms = shop.now_ms + 3 * HOUR_MS
    scene.half_deadline(due_ms)
    scene.write_rows(due_ms=due_ms)
    yield


def all_halves_open_and_paid(scene: Scene) -> Story:
    scene.begin()
    scene.write_rows()
    scene.set_paid()
    scene.shop.half_payment(scene.order_id)
    yield


def payment_open_and_unpaid(scene: Scene) -> Story:
    scene.place()
    yield
    scene.shop.half_payment(scene.order_id)


def payment_open_and_paid(scene: Scene) -> Story:
    scene.place()
    yield
    scene.shop.half_payment(scene.order_id)
    scene.set_paid()


def effect_twice(scene: Scene) -> Story:
    scene.place()
    yield
    scene.pay()
    scene.change_cart("apple", -2)


def entry_missing(scene: Scene) -> Story:
    scene.place()
    yield
    scene.pay()
    scene.forget_entry()


def entry_missing_beside_an_order_alike(scene: Scene) -> Story:
    """The innocent one is the newer one, as the newest order of an article is the first to be suspected."""
    scene.place()
    innocent = f"{scene.order_id}-innocent"
    scene.shop.place(innocent, scene.customer, {"apple": 2, "pear": 1})
    yield
    scene.pay()
    scene.shop.pay(innocent)
    scene.forget_entry()


def entry_missing_of_an_order_whose_message_has_no_lines(scene: Scene) -> Story:
    """The articles of the order are known from its rows alone."""
    shop = scene.shop
    shop.fill_cart(scene.customer, {"apple": 2})
    halves = shop.half(scene.order_id, scene.customer, {}), shop.half_deadline(scene.order_id)
    scene.write_rows()
    scene.end(Resolution.COMMIT, *halves)
    yield
    scene.pay()
    scene.change_cart("apple", -2)
    scene.forget_entry()


def cart_not_cleared(scene: Scene) -> Story:
    scene.place()
    yield
    scene.pay()
    scene.forget_entry()
    scene.change_cart("apple", 2)
    scene.change_cart("pear", 1)


def cart_too_full(scene: Scene) -> Story:
    scene.place()
    yield
    scene.pay()
    scene.change_cart("pear", 1)


def cart_not_cleared_and_too_full(scene: Scene) -> Story:
    scene.place()
    yield
    scene.pay()
    scene.forget_entry()
    scene.change_cart("apple", 3)
    scene.change_cart("pear", 1)


def cart_changed_by_more_than_was_ordered(scene: Scene) -> Story:
    scene.place()
    yield
    scene.pay()
    scene.change_cart("pear", 5)


def deadline_cancelled_by_hand(scene: Scene) -> Story:
    scene.place()
    scene.shop.broker.timers.cancel(
        TimerName(ORDER_TIMEOUTS, key=f"order:{scene.order_id}"), "by hand", scene.shop.now_ms
    )
    scene.shop.flush()
    yield


def deadline_cancelled_by_the_payment_of_another(scene: Scene) -> Story:
    """The other is paid, and its own deadline comes and does nothing."""
    shop, other = scene.shop, f"{scene.order_id}-other"
    scene.place()
    shop.place(other, f"of {other}", {"apple": 1})
    yield
    cancel = {"TW_TIMER_CANCEL": f"order:{scene.order_id}", "TW_TIMER_TOPIC": ORDER_TIMEOUTS}
    body = {"order_id": other, "paid_ms": shop.now_ms}
    shop.end(shop.send_half(ORDER_PAID, other, body, properties=cancel), Resolution.COMMIT)
    shop.set_order(other, status="PAID", paid_ms=shop.now_ms)


def deadline_never_set(scene: Scene) -> Story:
    shop = scene.shop
    shop.fill_cart(scene.customer, {"apple": 2})
    half = shop.half(scene.order_id, scene.customer, {"apple": 2})
    scene.write_rows()
    scene.end(Resolution.COMMIT, half)
    yield


def timed_out_by_hand(scene: Scene) -> Story:
    yield from deadline_never_set(scene)
    scene.set(status="TIMED_OUT", timed_out_ms=scene.shop.now_ms)


def timed_out_by_hand_and_its_deadline_cancelled(scene: Scene) -> Story:
    yield from deadline_cancelled_by_hand(scene)
    scene.set(status="TIMED_OUT", timed_out_ms=scene.shop.now_ms)


def deadline_set_for_later(scene: Scene) -> Story:
    shop = scene.shop
    shop.fill_cart(scene.customer, {"apple": 2})
    half = shop.half(scene.order_id, scene.customer, {"apple": 2})
    scene.write_rows()
    scene.end(Resolution.COMMIT, half, scene.half_deadline(shop.now_ms + 4 * HOUR_MS))
    yield


def deadline_overdue(scene: Scene) -> Story:
    """The broker does not tick any more from here to the audit."""
    yield
    yield
    yield
    scene.place()


def message_without_order(scene: Scene) -> Story:
    scene.place()
    yield
    scene.pay()
    with scene.shop.database.begin() as connection:
        for table in ("order_lines", "orders"):
            statement = text(f"DELETE FROM {table} WHERE order_id = :id")
            connection.execute(statement, {"id": scene.order_id})


def paid_but_timed_out(scene: Scene) -> Story:
    scene.place()
    yield
    scene.pay()
    scene.set(timed_out_ms=scene.shop.now_ms + 1)


def sound_and_placed(scene: Scene) -> Story:
    scene.place()
    yield


def sound_and_paid(scene: Scene) -> Story:
    scene.place()
    yield
    scene.pay()


def sound_and_cancelled(scene: Scene) -> Story:
    scene.place()
    yield
    scene.set(status="CANCELLED", cancelled_ms=scene.shop.now_ms)
    scene.cancel()


def paid_and_dead(scene: Scene) -> Story:
    yield from sound_and_paid(scene)


class Fault(NamedTuple):
    """What goes wrong, the case that it is, the kinds of the steps of its plan, and the case that it is once
    they are taken.
    """

    story: Callable[[Scene], Story]
    case: str
    kinds: tuple[str, ...]
    after: str = BALANCED


MESSAGE, STATEMENT, COMMAND, LOOK = ("message",), ("statement",), ("command",), ("look",)
DEAD_CREATED: Final = ("dead created", "dead both")
DEAD_DEADLINES: Final = ("dead deadline", "dead both")
UNSAID_PUSH: Final = "unsaid-push"

FAULTS: Final[dict[str, Fault]] = {
    story.__name__.replace("_", " "): Fault(story, case, kinds, after)
    for story, case, kinds, after in (
        (unannounced_and_paid, names.ORDER_WITHOUT_MESSAGE, MESSAGE * 2, BALANCED),
        (unannounced_and_overdue, names.ORDER_WITHOUT_MESSAGE, MESSAGE * 2, BALANCED),
        (unannounced_and_not_due, names.ORDER_WITHOUT_MESSAGE, MESSAGE * 2, BALANCED),
        (rolled_back_and_placed, names.OUTCOME_CONTRADICTS_DATABASE, MESSAGE * 2, BALANCED),
        (rolled_back_and_paid, names.OUTCOME_CONTRADICTS_DATABASE, MESSAGE * 2, BALANCED),
        (paid_and_untold, names.OUTCOME_CONTRADICTS_DATABASE, MESSAGE, BALANCED),
        (paid_and_untold_before_the_deadline, names.OUTCOME_CONTRADICTS_DATABASE, MESSAGE, BALANCED),
        (payment_told_to_a_placed_order, names.OUTCOME_CONTRADICTS_DATABASE, STATEMENT, BALANCED),
        (
            payment_told_to_a_timed_out_order,
            names.OUTCOME_CONTRADICTS_DATABASE,
            LOOK,
            names.OUTCOME_CONTRADICTS_DATABASE,
        ),
        *(
            (story, names.OUTCOME_CONTRADICTS_DATABASE, LOOK, names.OUTCOME_CONTRADICTS_DATABASE)
            for story in (timed_out_by_hand, timed_out_by_hand_and_its_deadline_cancelled)
        ),
        (cancelled_and_untold, names.OUTCOME_CONTRADICTS_DATABASE, MESSAGE, BALANCED),
        (cancellation_told_to_a_paid_order, names.OUTCOME_CONTRADICTS_DATABASE, STATEMENT, BALANCED),
        (halves_open_without_row, names.HALF_UNRESOLVED, COMMAND * 2, ""),
        (halves_open_and_placed, names.HALF_UNRESOLVED, COMMAND * 2 + MESSAGE, BALANCED),
        (half_open_and_placed_without_deadline, names.HALF_UNRESOLVED, COMMAND + MESSAGE, BALANCED),
        (halves_open_and_not_due, names.HALF_UNRESOLVED, COMMAND * 2, BALANCED),
        (all_halves_open_and_paid, names.HALF_UNRESOLVED, COMMAND * 3, BALANCED),
        (payment_open_and_unpaid, names.HALF_UNRESOLVED, COMMAND, BALANCED),
        (payment_open_and_paid, names.HALF_UNRESOLVED, COMMAND, BALANCED),
        (effect_twice, names.EFFECT_TWICE, STATEMENT, BALANCED),
        (entry_missing, names.LEDGER_ENTRY_MISSING, STATEMENT, BALANCED),
        (entry_missing_beside_an_order_alike, names.LEDGER_ENTRY_MISSING, STATEMENT, BALANCED),
        (
            entry_missing_of_an_order_whose_message_has_no_lines,
            names.LEDGER_ENTRY_MISSING,
            STATEMENT,
            BALANCED,
        ),
        (cart_not_cleared, names.CART_NOT_CLEARED, MESSAGE, BALANCED),
        (cart_too_full, names.CART_NOT_CLEARED, STATEMENT, BALANCED),
        (cart_not_cleared_and_too_full, names.CART_NOT_CLEARED, STATEMENT + MESSAGE, BALANCED),
        (cart_changed_by_more_than_was_ordered, names.CART_NOT_CLEARED, LOOK, names.CART_NOT_CLEARED),
        (deadline_cancelled_by_hand, names.TIMEOUT_NOT_FIRED, MESSAGE, BALANCED),
        (deadline_cancelled_by_the_payment_of_another, names.TIMEOUT_NOT_FIRED, MESSAGE, BALANCED),
        (deadline_never_set, names.TIMEOUT_NOT_FIRED, MESSAGE, BALANCED),
        (deadline_set_for_later, names.TIMEOUT_NOT_FIRED, COMMAND, BALANCED),
        (deadline_overdue, names.TIMEOUT_NOT_FIRED, COMMAND, BALANCED),
        (message_without_order, names.MESSAGE_WITHOUT_ORDER, LOOK, names.MESSAGE_WITHOUT_ORDER),
        (paid_but_timed_out, names.PAID_BUT_TIMED_OUT, LOOK, names.PAID_BUT_TIMED_OUT),
        (sound_and_placed, BALANCED, (), BALANCED),
        (sound_and_paid, BALANCED, (), BALANCED),
        (sound_and_cancelled, BALANCED, (), BALANCED),
    )
} | {
    "dead created": Fault(paid_and_dead, names.DEAD_LETTERED, COMMAND),
    "dead deadline": Fault(sound_and_placed, names.DEAD_LETTERED, COMMAND),
    "dead both": Fault(sound_and_placed, names.DEAD_LETTERED, COMMAND * 2),
}  # fmt: skip
"""By name; `after` is empty where nothing is left that would be an order."""


def id_of(name: str) -> str:
    """The id of a fault's order, with what words of a shell and of SQL have to quote."""
    return f"{name.replace(' ', '-')}'s;$1"


def make(shop: Shop) -> None:
    """Lets everything go wrong, up to just before the audit."""
    stories = [fault.story(Scene(shop, id_of(name))) for name, fault in FAULTS.items()]
    go_on(stories)
    shop.push(UNSAID_PUSH, 500)
    dead = {id_of(name) for name in DEAD_CREATED}
    consume(shop, CARTS_GROUP, ORDER_CREATED, lambda of: of["order_id"] not in dead and clear(shop, of))
    go_on(stories)
    shop.advance(shop_timeout_ms(shop))
    dead = {id_of(name) for name in DEAD_DEADLINES}
    consume(shop, ORDERS_GROUP, ORDER_TIMEOUTS, lambda of: of["order_id"] not in dead and time_out(shop, of))
    consume(shop, PUSHES_GROUP, PUSHES, lambda _: True)
    go_on(stories)
    shop.advance(2 * HOUR_MS)
    go_on(stories)
    consume(shop, CARTS_GROUP, ORDER_CREATED, lambda of: clear(shop, of))
    shop.now_ms += 5 * MINUTE_MS
    shop.send(PUSHES, "clock", {"push_id": "clock"})


def go_on(stories: list[Story]) -> None:
    for story in stories:
        next(story, None)


def shop_timeout_ms(shop: Shop) -> int:
    """How long it takes until all deadlines have passed that are set for the usual time."""
    from tests.spark.conftest import TIMEOUT_MS

    return TIMEOUT_MS + 7


def consume(shop: Shop, group: str, topic: str, act: Callable[[Any], bool]) -> None:
    """Receives everything that is there; what `act` fails on is given up."""
    receiving = shop.broker.receiving
    while batch := receiving.receive(
        group, topic, EVERYTHING, 32, 60_000, "client", False, shop.now_ms
    ).deliveries:
        for delivery in batch:
            end = receiving.ack if act(body_of(delivery)) else receiving.forward_to_dead_letter
            end(group, topic, delivery.receipt_handle, shop.now_ms)
        shop.flush()


def body_of(delivery: Delivery) -> Any:
    return json.loads(delivery.message.body)


def clear(shop: Shop, order: Any) -> bool:
    """What the cart service does with an order."""
    lines = [(line["sku"], line["quantity"]) for line in order["lines"]]
    shop.carts.clear(order["customer_id"], order["order_id"], lines)
    return True


def time_out(shop: Shop, deadline: Any) -> bool:
    """What the order service does with a deadline."""
    is_placed = (orders.c.order_id == deadline["order_id"], orders.c.status == "PLACED")
    with shop.database.begin() as connection:
        timed_out = {"status": "TIMED_OUT", "timed_out_ms": shop.now_ms}
        connection.execute(update(orders).where(*is_placed).values(timed_out))
    return True
