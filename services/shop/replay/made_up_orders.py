"""Order lines generated from a seed, with the columns and some of the errors of real data.

They are read like the rows of a file, so a demo without a file also shows repeat customers, cancellations and
refused rows.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.shop.replay.online_retail import Row

ARTICLES = {f"{20_000 + 7 * number}": f"{0.25 + number % 40 * 0.35:.2f}" for number in range(200)}
START = datetime(2026, 1, 5, 8, 0)
FIRST_NUMBER = 600_001
CANCELLATION_SHARE = 0.04
DIRTY_SHARE = 0.02
LINES_MAX = 5


def made_up_rows(seed: int, invoice_count: int) -> Iterator[tuple[int, Row]]:
    """Yield the numbered rows of `invoice_count` invoices. The same seed produces the same rows."""
    draw = random.Random(seed)
    customers = [str(12_000 + number) for number in range(max(1, invoice_count // 3))]
    orders: list[list[Row]] = []
    line_number, at = 1, START
    for number in range(FIRST_NUMBER, FIRST_NUMBER + invoice_count):
        at += timedelta(minutes=draw.randint(0, 30))
        rows = invoice_rows(draw, str(number), at, customers, orders)
        for row in rows:
            line_number += 1
            yield line_number, row


def invoice_rows(
    draw: random.Random, number: str, at: datetime, customers: list[str], orders: list[list[Row]]
) -> list[Row]:
    """Return the rows of an invoice, which is usually an order and sometimes the cancellation of an earlier
    order.
    """
    if orders and draw.random() < CANCELLATION_SHARE:
        cancelled = draw.choice(draw.choice(orders))
        quantity = str(-int(cancelled["Quantity"]))
        return [cancelled | {"InvoiceNo": f"C{number}", "InvoiceDate": str(at), "Quantity": quantity}]
    customer = draw.choice(customers)
    skus = draw.sample(list(ARTICLES), draw.randint(1, LINES_MAX))
    order = [order_row(draw, number, at, customer, sku) for sku in skus]
    orders.append(order)
    return [soiled(draw, row) if draw.random() < DIRTY_SHARE else row for row in order]


def order_row(draw: random.Random, number: str, at: datetime, customer: str, sku: str) -> Row:
    """Return a valid order line."""
    return {
        "InvoiceNo": number,
        "StockCode": sku,
        "Description": f"ARTICLE {sku}",
        "Quantity": str(draw.randint(1, 12)),
        "InvoiceDate": str(at),
        "UnitPrice": ARTICLES[sku],
        "CustomerID": f"{customer}.0",
        "Country": "United Kingdom",
    }


def soiled(draw: random.Random, row: Row) -> Row:
    """Return the row with an error that occurs in real data."""
    return row | draw.choice([{"CustomerID": ""}, {"Quantity": "0"}, {"UnitPrice": "0.0"}, {"Quantity": "?"}])
