"""How a TLS handshake ended that failed, as far as one between the two can see: gRPC does not tell.

Only the heads of records are read (RFC 8446, 5.1: type, version 2, length 2), and only until the handshake
is over; no byte costs anything after that.

| seen, before it is over                             | what it means                                     |
|-----------------------------------------------------|---------------------------------------------------|
| type 21 (alert) of 2 bytes: level, description      | said in the clear: until keys are agreed upon     |
| type 20 of the broker behind one of the client's    | TLS 1.2: over, the client is known                |
| type 21, longer                                     | TLS 1.2: said behind a handshake, so a good-bye   |
| type 23 of 19 bytes, the first of the client        | TLS 1.3: its alert: 2 bytes, a type, a tag of 16  |
| type 23 of the broker behind one of the client's    | over: a ticket, or HTTP/2's settings              |
| the client hangs up, nothing of its type 23 seen    | it does not want to go on                         |
| the broker hangs up                                 | it does not take what the client has shown        |

In TLS 1.3 all that follows the ServerHello is of type 23, sealed: an alert can be told by its length (a
Finished has 53 bytes, an empty certificate 25), not which. gRPC says none, it hangs up: where a client's
certificate is missing, expired or of another authority than those of `--tls-clients`.
"""

from __future__ import annotations

from typing import Final

from services.front.client_hello import RECORD_HEAD_BYTES

CLIENT, BROKER = "the client", "the broker"
_CHANGE, _ALERT, _APPLICATION_DATA = 20, 21, 23
_ALERT_BYTES: Final = 2
_SEALED_ALERT_BYTES: Final = 19
_ALERTS: Final = {
    0: "good-bye", 10: "unexpected message", 20: "bad record", 22: "record overflow",
    40: "handshake failure", 42: "bad certificate", 43: "unsupported certificate",
    44: "certificate revoked", 45: "certificate expired", 46: "certificate unknown",
    47: "illegal parameter", 48: "unknown authority", 49: "access denied", 50: "decode error",
    51: "decrypt error", 70: "protocol version", 71: "insufficient security", 80: "internal error",
    86: "inappropriate fallback", 90: "user canceled", 109: "missing extension",
    110: "unsupported extension", 112: "unrecognized name", 113: "bad certificate status",
    115: "unknown key", 116: "certificate required", 120: "no HTTP/2",
}  # fmt: skip


class Records:
    """The records of one side: their types and lengths, and of an alert its description."""

    def __init__(self) -> None:
        self._pending = b""
        self._to_skip = 0

    def read(self, data: bytes) -> list[tuple[int, int, int]]:
        """Return (type, length, last byte if it is an alert in the clear) of each whose head has come."""
        found = []
        data = self._pending + data
        place = self._to_skip
        while len(data) >= place + RECORD_HEAD_BYTES:
            kind, length = data[place], int.from_bytes(data[place + 3 : place + 5])
            after = place + RECORD_HEAD_BYTES + length
            is_clear_alert = kind == _ALERT and length == _ALERT_BYTES
            if is_clear_alert and len(data) < after:
                break
            found.append((kind, length, data[after - 1] if is_clear_alert else 0))
            place = after
        self._pending, self._to_skip = data[place:], max(0, place - len(data))
        return found


class Handshake:
    """One connection's, told what either side does while `is_going_on`; `failure` is why it failed."""

    def __init__(self) -> None:
        self.is_going_on, self.failure = True, ""
        self._has_finished = self._has_changed = False
        self._sides = {CLIENT: Records(), BROKER: Records()}

    def said(self, side: str, data: bytes) -> None:
        """Take note of what a side has said."""
        for kind, length, description in self._sides[side].read(data):
            if self.is_going_on:
                self._take(side, kind, length, description)

    def hung_up(self, side: str) -> None:
        """Take note of the end, and of the side that has come to it first."""
        if self.is_going_on:
            is_its_right = side == CLIENT and self._has_finished
            self._ends("" if is_its_right else f"TLS: {side} hangs up in the handshake")

    def _take(self, side: str, kind: int, length: int, description: int) -> None:
        if kind == _ALERT:
            said = _ALERTS.get(description, "an unknown alert")
            self._ends(f"TLS: {side} says {said}" if length == _ALERT_BYTES else "")
        elif kind == _CHANGE:
            self._changes(side)
        elif kind == _APPLICATION_DATA:
            if side == BROKER and self._has_finished:
                self._ends("")
            elif side == CLIENT and not self._has_finished and length == _SEALED_ALERT_BYTES:
                self.hung_up(CLIENT)
            elif side == CLIENT:
                self._has_finished = True

    def _changes(self, side: str) -> None:
        """In 1.3 the broker's comes first, and means nothing."""
        if side == CLIENT:
            self._has_changed = True
        elif self._has_changed:
            self._ends("")

    def _ends(self, failure: str) -> None:
        self.is_going_on, self.failure = False, failure
