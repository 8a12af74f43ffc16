"""What a mapping file may say, and what is said of one that says something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jobs.inputs.mapping import COLUMNS, SHOP, Mapping, read_mapping
from tidewheel.errors import ConfigurationError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "names.toml"


def read(file: Path, text: str) -> Mapping:
    file.write_text(text)
    return read_mapping(file)


def refusal(file: Path, text: str) -> str:
    with pytest.raises(ConfigurationError) as raised:
        read(file, text)
    said = str(raised.value)
    assert "\n" not in said
    return said


def test_an_empty_file_is_the_shop(file: Path) -> None:
    assert read(file, "") == SHOP
    assert SHOP.orders.columns == {name: name for name in COLUMNS["orders"] if name != "currency"}
    assert not SHOP.has_currency
    assert SHOP.consumers == {
        "order-created": "shop-carts",
        "order-timeouts": "shop-orders",
        "pushes": "shop-pushes",
    }


def test_everything_may_have_another_name(file: Path) -> None:
    mapping = read(
        file,
        """
        [orders]
        table = "sales.purchase_order"
        order_id = "number"
        total_pence = ""
        [orders.statuses]
        PLACED = ["new", 1]
        PAID = "settled"
        [ledger.entries]
        add = "plus"
        [topics]
        order_created = "purchases"
        [groups]
        order_created = "warehouse"
        [bodies]
        customer_id = "buyer"
        [amounts]
        currency = "EUR"
        [redis]
        cart = "basket:"
        """,
    )
    assert mapping.has_currency
    assert mapping.orders.fixed == {"currency": "EUR"}
    assert mapping.orders.name == "sales.purchase_order"
    assert mapping.orders.columns["order_id"] == "number"
    assert "total_pence" not in mapping.orders.columns
    assert mapping.orders.constants == {"status": {"new": "PLACED", "1": "PLACED", "settled": "PAID"}}
    assert mapping.ledger.constants == {"entry": {"plus": "add"}}
    assert mapping.consumers["purchases"] == "warehouse"
    assert mapping.topics.of_orders == ("purchases", "order-timeouts", "order-paid", "order-cancelled")
    assert mapping.bodies.customer_id == "buyer"
    assert (mapping.redis.cart, mapping.redis.ledger) == ("basket:", "cart-ledger:")
    assert mapping.pushes == SHOP.pushes


def test_topics_that_there_are_not(file: Path) -> None:
    mapping = read(file, '[topics]\norder_timeouts = ""\norder_paid = ""\norder_cancelled = ""')
    assert mapping.topics.all == ("order-created", "", "", "", "pushes")
    assert mapping.consumers == {"order-created": "shop-carts", "pushes": "shop-pushes"}
    assert read(file, '[topics]\norder_created = "pushes"\npushes = ""').topics.order_created == "pushes"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[topics]\norder_created = ""', "[topics]: order_created = '' is no name."),
        (
            "[order]",
            "has the unknown name 'order'. There are orders, order_lines, pushes, carts, ledger, topics",
        ),
        ('[orders]\nid = "x"', "[orders] has the unknown name 'id'. There are table, order_id, customer_id"),
        ('[orders]\nzone = "Londres"', "[orders]: zone = 'Londres' is no zone. Give one as"),
        ('[orders]\nzone = "+25:00"', "[orders]: zone = '+25:00' is no zone. Give one as"),
        ("[orders]\nzone = 1", "[orders]: zone = 1 is no name."),
        ('[carts]\nzone = "UTC"', "[carts] has the unknown name 'zone'."),
        ('[topics]\nplaced = "x"', "[topics] has the unknown name 'placed'. There are order_created,"),
        (
            '[orders.statuses]\nNEW = "x"',
            "[orders.statuses] has the unknown name 'NEW'. There are PLACED, PAID",
        ),
        ("[orders]\norder_id = 7", "[orders]: order_id = 7 is no name. Give a text in quotes."),
        ('[orders]\norder_id = ""', "[orders]: order_id = '' is no name."),
        ('[orders]\ntable = ""', "[orders]: table = '' is no name."),
        ("[groups]\npushes = true", "[groups]: pushes = True is no name."),
        ("[orders.statuses]\nPAID = 1.5", "[orders.statuses]: PAID = 1.5 is neither a text nor a number."),
        ('[orders.statuses]\nPAID = "x"\nPLACED = "x"', "'x' is both PAID and PLACED."),
        ('[orders]\nstatuses = "x"', "[orders.statuses] is no section."),
        ("orders = 5", "orders is no section. Write [orders]"),
        ('[topics]\npushes = "order-paid"', "[topics] gives two of our topics the same name."),
        ("[orders", "is no TOML file"),
    ],
)
def test_mistakes_are_told_in_one_sentence(file: Path, text: str, words: str) -> None:
    assert words in refusal(file, text)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml cannot be read .* Correct --mapping"):
        read_mapping(tmp_path / "nowhere.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="is no TOML file"):
        read_mapping(tmp_path / "binary.toml")
