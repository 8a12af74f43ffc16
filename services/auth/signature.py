"""Signatures of official clients, and their verification.

    authorization: MQv2-HMAC-SHA1 Credential=<access key>[/...], SignedHeaders=x-mq-date-time, Signature=<hex>
    x-mq-date-time: 20261122T060000Z (Rust client: 2026-11-22T07:00:00.123456789+01:00)

The signature is the HMAC-SHA1 of the date with the secret. No other part of the call is signed, there is no
nonce, and all calls within one second have the same signature. A replay can therefore be detected only by the
date. The date must be the current time, within `WINDOW_MS`, in **some** time zone, because the Python client
writes local time with a Z. A zone offset is a multiple of a quarter of an hour, up to 14 hours. A date in the
past is REPLAYED, and a date in the future is SKEWED. If a date includes an offset (as from the Rust client),
the offset must be correct.

Limits: a recorded header is valid within its window, and again around each quarter of an hour until it is 14
hours behind UTC. A list of used signatures would not help: hours later, a Java client (UTC) may write the
same date that a Python client of the same user wrote in local time. The same occurs with a Python client when
clocks are set back. TLS is required to protect against recording.

Cost: one HMAC of 16 bytes, and two regular expressions for the first call of a client within a second.
"""

from __future__ import annotations

import calendar
import hmac
import re
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

WINDOW_MS: Final = 3 * 60_000
ZONE_STEP_MS: Final = 15 * 60_000
ZONE_MS_MAX: Final = 14 * 3_600_000
HEADER_CHARACTERS_MAX: Final = 512
PARSED_MAX: Final = 1_024
_HEADER: Final = re.compile(
    r"MQv2-HMAC-SHA1 +Credential=([^,/\s]*)(?:/[^,\s]*)?, *SignedHeaders=x-mq-date-time, *"
    r"Signature=([0-9A-Fa-f]{40})"
)
_DATE: Final = re.compile(
    r"([0-9]{4})(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3])([0-5][0-9])([0-5][0-9]|60)Z"
)
_DATE_WITH_OFFSET: Final = re.compile(
    r"([0-9]{4})-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9]|60)"
    r"(?:\.[0-9]{1,9})?(?:Z|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))"
)


class Reason(StrEnum):
    """The reason why a caller could not be authenticated."""

    UNSIGNED = "unsigned"
    MALFORMED = "malformed"
    UNKNOWN_KEY = "unknown key"
    WRONG_SIGNATURE = "wrong signature"
    SKEWED = "skewed"
    REPLAYED = "replayed"


class Refused(Exception):
    """A signature that proves nothing; `access_key` is whose it claims to be."""

    def __init__(self, reason: Reason, access_key: str = "") -> None:
        super().__init__(reason)
        self.reason, self.access_key = reason, access_key


class Signed(NamedTuple):
    """The parsed headers of a call: access key, date as written, and signature.

    `read` describes the other fields.
    """

    access_key: str
    date: str
    signature: str
    date_ms: int
    zone_ms_max: int


@lru_cache(maxsize=PARSED_MAX)
def parse(authorization: str, date: str) -> Signed:
    """Parse the two headers of a call. Raises `Refused`."""
    # blanks around a field value are not part of it (RFC 9110, 5.5)
    authorization = authorization.strip(" \t")
    if not authorization:
        raise Refused(Reason.UNSIGNED)
    found, moment = _HEADER.fullmatch(authorization[: HEADER_CHARACTERS_MAX + 1]), read(date)
    if found is None or moment is None or len(authorization) > HEADER_CHARACTERS_MAX:
        raise Refused(Reason.MALFORMED)
    access_key, signature = found.groups()
    if not access_key:  # clients without credentials also sign
        raise Refused(Reason.UNSIGNED)
    return Signed(access_key, date, signature, *moment)


def sign(secret: bytes, date: str) -> str:
    """Return the signature of a date in lower-case hex."""
    return hmac.digest(secret, date.encode(), "sha1").hex()


def headers(access_key: str, secret: bytes, date: str) -> tuple[tuple[str, str], ...]:
    """Return the headers that authenticate a call."""
    proof = f"Credential={access_key}, SignedHeaders=x-mq-date-time, Signature={sign(secret, date)}"
    return ("x-mq-date-time", date), ("authorization", f"MQv2-HMAC-SHA1 {proof}")


def check(signed: Signed, secret: bytes | None, now_ms: int | None) -> None:
    """Raise `Refused` unless the key is known (`secret` is not None), the signature is correct, and the date
    is current.

    If `now_ms` is None, the date is not checked.
    """
    if secret is None:
        raise Refused(Reason.UNKNOWN_KEY, signed.access_key)
    if not hmac.compare_digest(sign(secret, signed.date), signed.signature.lower()):
        raise Refused(Reason.WRONG_SIGNATURE, signed.access_key)
    late = None if now_ms is None else untimely(signed.date_ms, signed.zone_ms_max, now_ms)
    if late is not None:
        raise Refused(late, signed.access_key)


def read(date: str) -> tuple[int, int] | None:
    """Return a date in milliseconds since 1970, and the maximum offset of its time zone.

    Returns None for an invalid date.

    A date without an offset is interpreted as UTC.
    """
    if found := _DATE.fullmatch(date):
        return _ms(found), ZONE_MS_MAX
    if found := _DATE_WITH_OFFSET.fullmatch(date):
        sign, hours, minutes = found.groups("0")[6:]
        offset_ms = (int(hours) * 60 + int(minutes)) * 60_000
        return _ms(found) - (-offset_ms if sign == "-" else offset_ms), 0
    return None


def untimely(date_ms: int, zone_ms_max: int, now_ms: int) -> Reason | None:
    """Return the reason why a date is not current.

    Returns None if the date is current in one of its possible time zones, within the window.
    """
    ahead_ms = date_ms - now_ms
    nearest_ms = (ahead_ms + ZONE_STEP_MS // 2) // ZONE_STEP_MS * ZONE_STEP_MS
    off_ms = ahead_ms - max(-zone_ms_max, min(nearest_ms, zone_ms_max))
    if abs(off_ms) <= WINDOW_MS:
        return None
    return Reason.REPLAYED if off_ms < 0 else Reason.SKEWED


def _ms(found: re.Match[str]) -> int:
    year, month, day, hour, minute, second = map(int, found.groups()[:6])
    return calendar.timegm((max(year, 1), month, day, hour, minute, second)) * 1000
