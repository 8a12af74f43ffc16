"""A signature proves who calls, at about the time of its date in some zone; each other one has its reason."""

from __future__ import annotations

import hmac
from datetime import UTC, datetime, timedelta, timezone
from hashlib import sha1

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.auth.signature import (
    WINDOW_MS,
    ZONE_MS_MAX,
    ZONE_STEP_MS,
    Reason,
    Refused,
    check,
    parse,
    read,
    sign,
    untimely,
)

NOW = datetime(2026, 11, 22, 6, 0, 0, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
SECRET = b"secret"


def header(access_key: str, date: str, secret: bytes = SECRET) -> str:
    """Return what the Python client writes."""
    signature = hmac.new(secret, date.encode(), sha1).hexdigest()
    return f"MQv2-HMAC-SHA1 Credential={access_key}, SignedHeaders=x-mq-date-time, Signature={signature}"


def written(moment: datetime) -> str:
    return moment.strftime("%Y%m%dT%H%M%SZ")


def reason(authorization: str, date: str, secret: bytes | None = SECRET) -> Reason | None:
    try:
        check(parse(authorization, date), secret, NOW_MS)
    except Refused as refused:
        return refused.reason
    return None


def test_the_hex_of_clients_may_be_of_either_case_and_a_region_may_follow_the_key() -> None:
    date = written(NOW)
    plain = header("orders", date)
    upper = plain.replace(sign(SECRET, date), sign(SECRET, date).upper())
    for one in (plain, upper, plain.replace("=orders,", "=orders/cn-1/RocketMQ,"), plain.replace(", ", ",")):
        assert reason(one, date) is None
        assert parse(one, date).access_key == "orders"


@pytest.mark.parametrize(
    ("authorization", "expected"),
    [
        ("", Reason.UNSIGNED),
        (header("", written(NOW), b""), Reason.UNSIGNED),
        ("Basic b3JkZXJzOnNlY3JldA==", Reason.MALFORMED),
        (header("orders", written(NOW))[:-1], Reason.MALFORMED),
        (header("orders", written(NOW)) + "0", Reason.MALFORMED),
        (header("orders", written(NOW)).replace("x-mq-date-time", "x-mq-client-id"), Reason.MALFORMED),
        (header("k" * 600, written(NOW)), Reason.MALFORMED),
        ("MQv2-HMAC-SHA1 Credential=" + "/" * 100_000, Reason.MALFORMED),
        (header("orders", written(NOW), b"other"), Reason.WRONG_SIGNATURE),
    ],
)
def test_what_proves_nothing_says_why(authorization: str, expected: Reason) -> None:
    assert reason(authorization, written(NOW)) is expected


def test_an_unknown_key_is_told_apart_and_whose_it_claims_to_be_is_kept() -> None:
    date = written(NOW)
    with pytest.raises(Refused) as refused:
        check(parse(header("nobody", date), date), None, NOW_MS)
    assert (refused.value.reason, refused.value.access_key) == (Reason.UNKNOWN_KEY, "nobody")


@pytest.mark.parametrize(
    "date",
    [
        "",
        "20261122T060000",
        "20261322T060000Z",
        "2026-11-22T06:00:00",
        "2026-11-22T06:00:00+25:00",
        "٢٠٢٦١١٢٢T060000Z",
    ],
)
def test_a_date_that_is_none_is_malformed(date: str) -> None:
    assert reason(header("orders", date), date) is Reason.MALFORMED


def test_a_date_of_another_day_is_refused_though_rightly_signed() -> None:
    for days, expected in ((-1, Reason.REPLAYED), (1, Reason.SKEWED)):
        date = written(NOW + timedelta(days=days))
        assert reason(header("orders", date), date) is expected


@given(st.integers(-56, 56), st.integers(-WINDOW_MS // 1000, WINDOW_MS // 1000))
def test_the_time_of_every_zone_is_accepted_within_the_window(quarters: int, seconds: int) -> None:
    zone = timezone(timedelta(minutes=15 * quarters) if abs(quarters) < 96 else timedelta())
    date = written(NOW.astimezone(zone) + timedelta(seconds=seconds))
    assert reason(header("orders", date), date) is None


@given(st.integers(-2 * ZONE_MS_MAX, 2 * ZONE_MS_MAX))
@example(ZONE_MS_MAX + WINDOW_MS)
@example(-ZONE_MS_MAX - WINDOW_MS - 1)
def test_no_other_time_is_accepted(ahead_ms: int) -> None:
    zones = range(-ZONE_MS_MAX, ZONE_MS_MAX + 1, ZONE_STEP_MS)
    is_near = any(abs(ahead_ms - zone_ms) <= WINDOW_MS for zone_ms in zones)
    assert (untimely(NOW_MS + ahead_ms, ZONE_MS_MAX, NOW_MS) is None) == is_near


@given(st.integers(-24 * 60 + 1, 24 * 60 - 1), st.integers(-1000, 1000), st.integers(0, 999_999))
def test_a_date_that_names_its_offset_is_held_to_it(minutes: int, seconds: int, micros: int) -> None:
    zone = timezone(timedelta(minutes=minutes))
    moment = (NOW + timedelta(seconds=seconds)).astimezone(zone).replace(microsecond=micros)
    date = moment.isoformat()
    expected = (
        None if abs(seconds) <= WINDOW_MS // 1000 else Reason.REPLAYED if seconds < 0 else Reason.SKEWED
    )
    assert reason(header("orders", date), date) is expected
    assert read(NOW.strftime("%Y-%m-%dT%H:%M:%S.123456789Z")) == (NOW_MS, 0)


@given(st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)))
def test_a_date_is_read_as_the_calendar_has_it(moment: datetime) -> None:
    moment = moment.replace(microsecond=0, tzinfo=UTC)
    text = f"{moment.year:04}{moment:%m%dT%H%M%SZ}"
    expected_ms = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert read(text) == (expected_ms, ZONE_MS_MAX)
    assert read(moment.isoformat()) == (expected_ms, 0)


@given(st.text(max_size=700), st.text(max_size=30))
def test_whatever_stands_in_the_headers_is_refused_with_a_reason(authorization: str, date: str) -> None:
    assert reason(authorization, date) in Reason
    assert reason("MQv2-HMAC-SHA1 Credential=" + authorization, date) in Reason


@given(st.binary(min_size=1), st.binary())
def test_another_secret_never_fits(secret: bytes, other: bytes) -> None:
    date = written(NOW)
    padded = (secret.ljust(64, b"\0"), other.ljust(64, b"\0"))  # HMAC takes these for the same
    fits = reason(header("orders", date, secret), date, other) is None
    assert fits == (padded[0] == padded[1] or secret == other)
