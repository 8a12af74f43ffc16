"""Dirty rows are refused, counted and named; they never stop the reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from services.settings.errors import InputUnreadable
from services.shop.orders.new_order import Line
from services.shop.replay.made_up_orders import made_up_rows
from services.shop.replay.online_retail import COLUMNS, Reading, Reason, Row, read_file, read_rows

if TYPE_CHECKING:
    from pathlib import Path

CELLS = st.one_of(
    st.text(max_size=12),
    st.none(),
    st.sampled_from(["536365", "C536365", "85123A", "6", "-1", "2.55", "0.0", "1e400", "NaN", "12923.0"]),
    st.sampled_from(["2010-12-01 08:26:00", "12/1/2010 8:26", "2010-12-01T08:26:00+05:00", "2010-13-01"]),
)
ANY_ROW = st.fixed_dictionaries(dict.fromkeys(COLUMNS, CELLS))


def row(**cells: str) -> Row:
    clean = {
        "InvoiceNo": "536365",
        "StockCode": "85123A",
        "Quantity": "6",
        "InvoiceDate": "2010-12-01 08:26:00",
        "UnitPrice": "2.55",
        "CustomerID": "17850.0",
    }
    return clean | cells


def read(*rows: Row) -> Reading:
    return read_rows(enumerate(rows, start=2))


def test_a_clean_row_becomes_a_line() -> None:
    (invoice,) = read(row()).invoices
    assert (invoice.number, invoice.customer_id) == ("536365", "17850")
    assert invoice.lines == {"85123A": Line("85123A", 6, 255)}


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"CustomerID": ""}, Reason.MISSING_CUSTOMER),
        ({"CustomerID": "nan"}, Reason.MISSING_CUSTOMER),
        ({"Quantity": "0"}, Reason.QUANTITY),
        ({"Quantity": "-3"}, Reason.QUANTITY),
        ({"UnitPrice": "0.0"}, Reason.PRICE),
        ({"UnitPrice": "-11062.06"}, Reason.PRICE),
        ({"Quantity": "six"}, Reason.UNREADABLE),
        ({"Quantity": "1.5"}, Reason.UNREADABLE),
        ({"Quantity": "1e30"}, Reason.UNREADABLE),
        ({"Quantity": "1_0"}, Reason.UNREADABLE),
        ({"Quantity": "1.2E+03"}, Reason.SCIENTIFIC),
        ({"UnitPrice": "1e-3"}, Reason.SCIENTIFIC),
        ({"UnitPrice": "0.001"}, Reason.PENNY),
        ({"UnitPrice": "2.555"}, Reason.PENNY),
        ({"UnitPrice": "0.001", "InvoiceNo": "C536365"}, Reason.PENNY),
        ({"CustomerID": "1.785E+04"}, Reason.SCIENTIFIC),
        ({"CustomerID": "1,785E+04"}, Reason.SCIENTIFIC),
        ({"StockCode": "7.2e+11"}, Reason.SCIENTIFIC),
        ({"InvoiceNo": "5.36365E+05"}, Reason.SCIENTIFIC),
        ({"CustomerID": "M\udcfcller"}, Reason.ENCODING),
        ({"StockCode": "caf\udce9"}, Reason.ENCODING),
        ({"UnitPrice": "NaN"}, Reason.UNREADABLE),
        ({"InvoiceDate": "yesterday"}, Reason.UNREADABLE),
        ({"StockCode": " "}, Reason.UNREADABLE),
        ({"InvoiceNo": "53 6365"}, Reason.UNREADABLE),
        ({"CustomerID": "17850\x00"}, Reason.UNREADABLE),
        ({"CustomerID": "", "Quantity": "0"}, Reason.MISSING_CUSTOMER),
        ({"CustomerID": "", "Quantity": "?"}, Reason.UNREADABLE),
    ],
)
def test_a_refused_row_is_named_with_its_reason(cells: Row, reason: Reason) -> None:
    reading = read(row(), row(**cells))
    assert [(refused.line_number, refused.reason) for refused in reading.refused_rows] == [(3, reason)]
    assert reading.invoices[0].lines.keys() == {"85123A"}


def test_a_short_row_is_unreadable() -> None:
    assert read({"InvoiceNo": "536365"}).refused_by_reason() == {Reason.UNREADABLE: 1}


def test_a_cancellation_may_have_what_an_order_may_not() -> None:
    (invoice,) = read(row(InvoiceNo="C536379", Quantity="-1", UnitPrice="0")).invoices
    assert invoice.is_cancellation
    assert not invoice.is_refused


def test_an_invoice_is_collected_from_the_whole_file_and_sorted_by_time() -> None:
    late, early = "2010-12-02 09:00:00", "2010-12-01 09:00:00"
    reading = read(
        row(InvoiceNo="2", InvoiceDate=late),
        row(InvoiceNo="1"),
        row(InvoiceNo="2", StockCode="22423", InvoiceDate=early),
    )
    assert [(invoice.number, len(invoice.lines)) for invoice in reading.invoices] == [("1", 1), ("2", 2)]


def test_the_same_article_twice_is_one_line() -> None:
    (invoice,) = read(row(), row(Quantity="4", UnitPrice="9.99")).invoices
    assert invoice.lines["85123A"] == Line("85123A", 10, 255)


def test_a_second_customer_in_an_invoice_is_refused() -> None:
    reading = read(row(), row(CustomerID="1"))
    assert reading.refused_by_reason() == {Reason.OTHER_CUSTOMER: 1}


def test_an_invoice_of_refused_rows_is_a_refused_invoice_in_its_place_in_time() -> None:
    late = row(InvoiceNo="2", InvoiceDate="2010-12-02 09:00:00")
    reading = read(late, row(CustomerID=""), row(CustomerID=""))
    assert [(invoice.number, invoice.is_refused) for invoice in reading.invoices] == [
        ("536365", True),
        ("2", False),
    ]


def test_the_uci_files_own_dates_are_read() -> None:
    (invoice,) = read(row(InvoiceDate="12/1/2010 8:26")).invoices
    assert invoice.at.isoformat() == "2010-12-01T08:26:00"


@pytest.mark.parametrize("text", ["12923", "12923.0", "12923.00"])
def test_a_customer_is_one_however_a_spreadsheet_writes_the_number(text: str) -> None:
    (invoice,) = read(row(CustomerID=text)).invoices
    assert invoice.customer_id == "12923"


def test_an_article_may_look_like_a_number() -> None:
    (invoice,) = read(row(StockCode="15E2")).invoices
    assert set(invoice.lines) == {"15E2"}


def test_a_time_that_utc_does_not_have_is_unreadable() -> None:
    assert read(row(InvoiceDate="0001-01-01T00:00:00+05:00")).refused_by_reason() == {Reason.UNREADABLE: 1}


def test_times_with_a_zone_become_utc() -> None:
    first, second = (
        row(InvoiceNo="1", InvoiceDate="2010-12-01T08:26:00+08:00"),
        row(InvoiceNo="2", InvoiceDate="2010-12-01T01:00:00Z"),
    )
    found = [(one.number, one.at.isoformat()) for one in read(first, second).invoices]
    assert found == [("1", "2010-12-01T00:26:00"), ("2", "2010-12-01T01:00:00")]


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        ("02/12/2010 08:26", "13/12/2010 08:26", "line 2 has '02/12/2010 08:26', line 3 has '13/12/2010"),
        ("13/12/2010 08:26", "02/12/2010 08:26", "line 2 has '13/12/2010 08:26', line 3 has '02/12/2010"),
        ("12/13/2010 08:26", "13/12/2010 08:26", "one has the day first"),
        ("2010-12-01T08:26:00+08:00", "2010-12-01 08:26:00", "one has a zone, the other has none"),
        ("2010-12-01T08:26:00+08:00", "12/1/2010 08:26", "one has a zone, the other has none"),
    ],
)
def test_dates_that_contradict_each_other_refuse_the_file(
    tmp_path: Path, one: str, other: str, told: str
) -> None:
    path = tmp_path / "orders.csv"
    lines = (f"{number},a,1,{date},1,c" for number, date in enumerate((one, other)))
    path.write_text("\n".join([",".join(COLUMNS), *lines]))
    with pytest.raises(InputUnreadable, match=told) as raised:
        read_file(path)
    assert str(path) in str(raised.value)
    assert "Write all times as 2010-12-01 08:26:00." in str(raised.value)


@pytest.mark.parametrize("date", ["13/12/2010 08:26", "0/5/2010 08:26", "13/13/2010 08:26"])
def test_a_day_first_alone_is_no_date(date: str) -> None:
    assert read(row(), row(InvoiceDate=date)).refused_by_reason() == {Reason.UNREADABLE: 1}


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "utf-8", "utf-8-sig"])
def test_two_customers_never_become_one(tmp_path: Path, encoding: str) -> None:
    """`Description` is not read, and may be in any encoding."""
    path = tmp_path / "orders.csv"
    rows = [
        "InvoiceNo,StockCode,Description,Quantity,InvoiceDate,UnitPrice,CustomerID",
        *(
            f"{number},a,£ 5,1,2010-12-01 08:26:00,1.00,{customer}"
            for number, customer in enumerate(("Müller", "Möller", "Miller"), 1)
        ),
    ]
    path.write_bytes("\n".join(rows).encode(encoding))
    reading = read_file(path)
    customers = [invoice.customer_id for invoice in reading.invoices if not invoice.is_refused]
    if encoding.startswith("utf-8"):
        assert customers == ["Müller", "Möller", "Miller"]
    else:
        assert customers == ["Miller"]
        assert [(one.line_number, one.reason) for one in reading.refused_rows] == [
            (2, Reason.ENCODING),
            (3, Reason.ENCODING),
        ]


@given(st.lists(ANY_ROW, max_size=30))
def test_every_row_is_accepted_or_refused_once(rows: list[Row]) -> None:
    try:
        reading = read(*rows)
    except InputUnreadable:
        reject()
    refused = [row.line_number for row in reading.refused_rows]
    assert len(refused) == len(set(refused))
    assert sum(reading.refused_by_reason().values()) == len(refused)
    for invoice in reading.invoices:
        accepted = [
            row for at, row in enumerate(rows, 2) if at not in refused and row["InvoiceNo"] is not None
        ]
        mine = [row for row in accepted if row["InvoiceNo"].strip() == invoice.number]
        assert {str(row["StockCode"]).strip() for row in mine} == invoice.lines.keys()


def test_the_first_invoices_bring_their_own_refused_rows() -> None:
    reading = read(row(InvoiceNo="1", Quantity="0"), row(InvoiceNo="2"), row(InvoiceNo="3", Quantity="0"))
    first = reading.first(2)
    assert [invoice.number for invoice in first.invoices] == ["1", "2"]
    assert [refused.invoice for refused in first.refused_rows] == ["1"]


def test_a_file_is_read_with_its_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "orders.csv"
    path.write_text(
        ",".join(COLUMNS)
        + '\n536365,"85123A",6,2010-12-01 08:26:00,2.55,17850.0'
        + "\n536366,22423,x,2010-12-01 08:26:00,1,17850.0\n"
    )
    reading = read_file(path)
    assert [refused.line_number for refused in reading.refused_rows] == [3]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "has no column InvoiceNo"),
        (b"\x00\xff\xfe\x89PNG", "has no column InvoiceNo"),
        (b"InvoiceNo,StockCode,Quantity,InvoiceDate,UnitPrice\n", "has no column CustomerID"),
        ((",".join(COLUMNS) + "\n").encode(), "holds no invoice"),
        ((",".join(COLUMNS) + '\n"' + "x" * 200_000).encode(), "field larger than field limit"),
        ((",".join(COLUMNS) + ",Quantity\n").encode(), "several columns Quantity"),
    ],
)
def test_a_file_that_is_no_order_file_is_told(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "orders.csv"
    path.write_bytes(content)
    with pytest.raises(InputUnreadable, match=told):
        read_file(path)


TAKEN = "536365,22423,LAMP,6,2010-12-01 08:26:00,2.55,17850,UK"


def file_of(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "orders.csv"
    header = "InvoiceNo,StockCode,Description,Quantity,InvoiceDate,UnitPrice,CustomerID,Country"
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_a_decimal_comma_moves_no_cell_into_another_column(tmp_path: Path) -> None:
    """2,55 would be a price of 2.00, of a customer 55."""
    reading = read_file(file_of(tmp_path, TAKEN, TAKEN.replace("2.55", "2,55"), TAKEN + ",, "))
    assert [(one.line_number, one.reason) for one in reading.refused_rows] == [(3, Reason.UNREADABLE)]
    assert [invoice.customer_id for invoice in reading.invoices] == ["17850"]


@pytest.mark.parametrize("end", [TAKEN, TAKEN.replace("LAMP", 'LA"MP'), TAKEN.replace("LAMP", '"LAMP"')])
def test_an_open_quotation_mark_takes_in_no_row(tmp_path: Path, end: str) -> None:
    path = file_of(tmp_path, TAKEN, TAKEN.replace("LAMP", '"LAMP'), TAKEN, end)
    with pytest.raises(InputUnreadable, match="begins in line 3 cannot be told from the next"):
        read_file(path)


def test_quotation_marks_that_are_closed_or_inside_a_cell_are_read(tmp_path: Path) -> None:
    texts = ('5" LAMP', '"LAMP, ""BIG"""', '"LAMP\nBIG"')
    reading = read_file(file_of(tmp_path, *(TAKEN.replace("LAMP", text) for text in texts)))
    assert not reading.refused_rows
    assert reading.invoices[0].lines["22423"].quantity == 18


def test_a_missing_file_and_a_folder_are_told(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.csv", tmp_path):
        with pytest.raises(InputUnreadable, match=str(path)):
            read_file(path)


def test_made_up_rows_come_from_their_seed_and_are_a_little_dirty() -> None:
    rows = list(made_up_rows(seed=1, invoice_count=400))
    assert rows == list(made_up_rows(seed=1, invoice_count=400))
    assert rows != list(made_up_rows(seed=2, invoice_count=400))
    reading = read_rows(rows)
    assert len(reading.invoices) == 400
    assert set(reading.refused_by_reason()) >= {Reason.MISSING_CUSTOMER, Reason.UNREADABLE}
    assert any(invoice.is_cancellation for invoice in reading.invoices)
