"""What official clients sign a call with, and what is wrong with it.

    authorization: MQv2-HMAC-SHA1 Credential=<access key>[/...], SignedHeaders=x-mq-date-time, Signature=<hex>
    x-mq-date-time: 20261122T060000Z; of the Rust client 2026-11-22T07:00:00.123456789+01:00

The signature is HMAC-SHA1 of the date with the secret: nothing else of the call is signed, there is no
nonce, and all calls of one second carry the same. So the date is all that there is to tell a replay by, and
it must be the time, give or take `WINDOW_MS`, in **some** zone: the Python client writes local time with a Z.
A zone is a whole number of quarter hours within 14 hours. A date behind that is REPLAYED, one ahead SKEWED.
A date that names its offset (the Rust client's) is held to it.

What this does not hold off: a header that was overheard passes within its window, and again around every
quarter of an hour until it is 14 hours behind UTC. To remember used signatures would not help: a Java client
(UTC) writes hours later just what a Python client of its user wrote in local time, and so does a Python
client when the clocks are set back. Who can listen in must be kept out by TLS.

Cost: one HMAC of 16 bytes, and two regular expressions for the first of a client's calls in a second.
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
    """Why a caller is not who it says, or says nothing."""

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
    """What a caller says of itself: its access key, the date as it wrote it, and the proof; see `read`."""

    access_key: str
    date: str
    signature: str
    date_ms: int
    zone_ms_max: int


@lru_cache(maxsize=PARSED_MAX)
def parse(authorization: str, date: str) -> Signed:
    """Return the two headers of a call; raise `Refused`."""
    authorization = authorization.strip(" \t")  # blanks around a field's value are none of it (RFC 9110, 5.5)
    if not authorization:
        raise Refused(Reason.UNSIGNED)
    found, moment = _HEADER.fullmatch(authorization[: HEADER_CHARACTERS_MAX + 1]), read(date)
    if found is None or moment is None or len(authorization) > HEADER_CHARACTERS_MAX:
        raise Refused(Reason.MALFORMED)
    access_key, signature = found.groups()
    if not access_key:  # clients without credentials sign too
        raise Refused(Reason.UNSIGNED)
    return Signed(access_key, date, signature, *moment)


def sign(secret: bytes, date: str) -> str:
    """Return what a client writes under a date, in lower-case hex."""
    return hmac.digest(secret, date.encode(), "sha1").hex()


def headers(access_key: str, secret: bytes, date: str) -> tuple[tuple[str, str], ...]:
    """Return what a client sends with a call."""
    proof = f"Credential={access_key}, SignedHeaders=x-mq-date-time, Signature={sign(secret, date)}"
    return ("x-mq-date-time", date), ("authorization", f"MQv2-HMAC-SHA1 {proof}")


def check(signed: Signed, secret: bytes | None, now_ms: int | None) -> None:
    """Raise `Refused` unless the key is known (`secret` is not None), signed rightly, and at this time.

    Without `now_ms`: at any time.
    """
    if secret is None:
        raise Refused(Reason.UNKNOWN_KEY, signed.access_key)
    if not hmac.compare_digest(sign(secret, signed.date), signed.signature.lower()):
        raise Refused(Reason.WRONG_SIGNATURE, signed.access_key)
    late = None if now_ms is None else untimely(signed.date_ms, signed.zone_ms_max, now_ms)
    if late is not None:
        raise Refused(late, signed.access_key)


def read(date: str) -> tuple[int, int] | None:
    """Return a date as milliseconds since 1970, and how far from it the zone may be that it means.

    None for no date.

    What names no offset is taken for UTC.
    """
    if found := _DATE.fullmatch(date):
        return _ms(found), ZONE_MS_MAX
    if found := _DATE_WITH_OFFSET.fullmatch(date):
        sign, hours, minutes = found.groups("0")[6:]
        offset_ms = (int(hours) * 60 + int(minutes)) * 60_000
        return _ms(found) - (-offset_ms if sign == "-" else offset_ms), 0
    return None


def untimely(date_ms: int, zone_ms_max: int, now_ms: int) -> Reason | None:
    """Return what is wrong with a date.

    None if it is now in a zone that it may mean, give or take the window.
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
