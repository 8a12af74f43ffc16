"""Header blocks taken apart (HPACK, RFC 7541), for a server that asks its clients for a table of size 0.

A block is a row of fields. With a table of size 0 a field stands for itself, so that what one field says does
not depend on the fields before it, and its bytes can be looked up:

| first bits | field                                        | here                                       |
|------------|----------------------------------------------|--------------------------------------------|
| 1          | an entry of a table, by its number           | numbers to 61 are the RFC's own (static)   |
| 01         | name and value, to enter the client's table  | the same as 0000, since nothing is kept    |
| 001        | the client's table has this size from now on | only before the first field of a block     |
| 0000, 0001 | name and value                               | looked up by all its bytes, or taken apart |

A name or value is a length (seven bits and more where those are all set) and bytes, which are in Huffman's
code if the length's first bit is set.

Most of what a client says is the same with every call; the fields of `PER_CALL` are not, and are not kept.
So a decoder remembers the shapes of its connection's last blocks: runs of bytes that are the same each time,
and between them the values of fields that are not. A block that has a known shape costs a comparison for each
run and one step for each value, whatever the number of fields. Measured with what official clients send
(`docs/front.md`): 2.6 to 6.3 us a block, where a decoder of the same kind with a table of 4,096 bytes takes 6
to 18 and `hpack` 31 to 45; for that a block has 150 to 300 bytes more.

A client may use a table until it has acknowledged that it is to have none; one that does has a full decoder
(`hpack`) until then. Clients of gRPC are asked for it with their first call: others (tests of HTTP/2) keep
their table.

After the acknowledgement the table has the size 0, whether or not the client's next block says so, as RFC
7541 (4.2) asks it to: nginx never does, and enters fields that it never refers to. An entry that is larger
than the table empties it and is no error (4.4), so such a block reads as any other. A reference to an entry
cannot be read: it ends the connection.

Bounds: a block says at most `HEADERS_COUNT_MAX` fields and `HEADERS_BYTES_MAX` bytes, 32 more for each field;
one that says more is refused, and is not read on if it has no table. With a table it has to be, up to four
times the bytes; then it ends the connection. The fields kept for all connections are `KEPT_FIELDS_MAX`, the
shapes of one `SHAPES_MAX`. `work` is what the last block took, in steps of 10 us, for who shares out turns;
`said_bytes` what it said, for who keeps it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from hpack.exceptions import HPACKError
from hpack.hpack import Decoder
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from commitlog.limits import HEADERS_BYTES_MAX, HEADERS_COUNT_MAX
from services.front.http2_frames import TABLE_BYTES_DEFAULT

PER_CALL: Final = frozenset(
    (
        "x-mq-request-id",
        "x-mq-date-time",
        "authorization",
        "grpc-timeout",
        "content-length",
        "traceparent",
        "tracestate",
        "grpc-trace-bin",
        "grpc-tags-bin",
    )
)
"""Fields whose value is another with each call, or may be."""
_TABLE_BLOCK_BYTES_MAX: Final = 4 * HEADERS_BYTES_MAX
"""What a block with a table may say before it is broken off: up to it the table stays its client's."""
_COUNTED_MAX: Final = 4 * HEADERS_COUNT_MAX
"""How many fields are looked at to see whether a block has a table."""
_BYTES_PER_STEP, _TABLE_FIELDS_PER_STEP = 64, 4
_FIELD_BYTES: Final = 32
"""What a field counts beside its name and value (RFC 9113, 6.5.2)."""
KEPT_FIELDS_MAX: Final = 8_192
KEPT_FIELD_BYTES_MAX: Final = 512
SHAPES_MAX: Final = 4

METHOD, SCHEME, PATH, AUTHORITY, REGULAR, MALFORMED = 1, 2, 4, 8, 16, 32
"""What a field is; a request has the first three, each pseudo field once, and before all regular ones."""
_PSEUDO: Final = {":method": METHOD, ":scheme": SCHEME, ":path": PATH, ":authority": AUTHORITY}
_NEEDED: Final = METHOD | SCHEME | PATH
_OF_CONNECTION: Final = frozenset(
    ("connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade")
)
"""What belongs to a connection of HTTP/1 and must not come (RFC 9113, 8.2.2)."""
_STATIC: Final = tuple((name.decode(), value.decode()) for name, value in HeaderTable.STATIC_TABLE)
_STATIC_COUNT: Final = len(_STATIC)
_INDEXED, _ENTERS, _RESIZES = 0x80, 0x40, 0x20
_RESIZES_MAX: Final = 2
"""To the smallest size that was wanted, and to the one that is (RFC 7541, 4.2)."""
_HUFFMAN: Final = 0x80
_LENGTH: Final = 0x7F
_INTEGER_BYTES_MAX: Final = 5


class CompressionError(Exception):
    """A block that cannot be taken apart: what follows on its connection cannot either."""


class Malformed(Exception):
    """A request that HTTP/2 forbids (RFC 9113, 8.1.1): its stream ends. `seen`: the kinds of its fields."""

    def __init__(self, text: str, seen: int) -> None:
        super().__init__(text)
        self.seen = seen


class TooLong(Exception):
    """A block that says more than `HEADERS_BYTES_MAX`, or more fields than `HEADERS_COUNT_MAX`."""


class Field(NamedTuple):
    """A field: its name, its value, and what it is."""

    name: str
    value: str
    kind: int


class Head:
    """The fields of a request: those that stay the same, and those of the call, which are decoded when asked.

    A field that comes several times has its values joined by commas (RFC 9110, 5.2).
    """

    __slots__ = ("_per_call", "fields")

    def __init__(self, fields: dict[str, str], per_call: dict[str, bytes]) -> None:
        self.fields = fields
        """Not to be changed: the next call may have the same."""
        self._per_call = per_call

    def get(self, name: str) -> str:
        """Return the value of a field; empty if it did not come. Raise `CompressionError`."""
        raw = self._per_call.get(name)
        return self.fields.get(name, "") if raw is None else text_of(raw)

    def has(self, name: str) -> bool:
        """Return whether a field came."""
        return name in self._per_call or name in self.fields

    def all(self) -> dict[str, str]:
        """Return every field. Raise `CompressionError`."""
        return self.fields | {name: text_of(raw) for name, raw in self._per_call.items()}


class Shape(NamedTuple):
    """What blocks of a connection have in common: runs, and a value of a name behind each but the last."""

    runs: tuple[bytes, ...]
    names: tuple[str, ...]
    fields: dict[str, str]


class FieldDecoder:
    """The decoder of one connection; `kept` are the fields that all connections have said."""

    __slots__ = ("_full", "_is_acknowledged", "_kept", "_shapes", "_table_bytes", "said_bytes", "work")

    def __init__(self, kept: dict[bytes, Field]) -> None:
        self._kept = kept
        self.work = 0
        """What the last block took: 0 if it had a known shape."""
        self.said_bytes = 0
        """What the last block said, 32 bytes more for each field that is not of a known shape."""
        self._shapes: list[Shape] = []
        self._full: Decoder | None = None
        """While the client uses a table."""
        self._is_acknowledged = False
        self._table_bytes = TABLE_BYTES_DEFAULT
        """The size of its table, as the client has said."""

    def acknowledged(self) -> None:
        """Take in that the client has acknowledged that its table is to have the size 0."""
        self._is_acknowledged = True

    @property
    def uses_table(self) -> bool:
        """Whether the client may still use a table."""
        return self._full is not None

    def decode(self, block: bytes) -> Head:
        """Return the request that a whole block says; raise `CompressionError`, `Malformed`, `TooLong`."""
        self.work, self.said_bytes = 0, len(block)
        if self._full is not None:
            return self._decode_with_table(block)
        for shape in self._shapes:
            if (head := _of_shape(block, shape)) is not None:
                return head
        return self._decode_anew(block)

    def are_trailers(self, block: bytes) -> bool:
        """Return whether a block may end a request; a table takes it in. Raise `CompressionError`."""
        try:
            self._decode_with_table(block) if self._full is not None else self._decode_anew(block)
        except Malformed as malformed:
            return not malformed.seen & (MALFORMED | METHOD | SCHEME | PATH | AUTHORITY)
        except TooLong:
            pass
        return False

    def _decode_anew(self, block: bytes) -> Head:
        self.work = len(block) // _BYTES_PER_STEP
        at = self._resized(block)
        if not self._is_acknowledged and self._table_bytes and _enters_table(block, at):
            self._full = Decoder(_TABLE_BLOCK_BYTES_MAX)
            return self._decode_with_table(block)
        if len(block) > HEADERS_BYTES_MAX:
            raise TooLong
        head, shape = self._walk(block, at)
        if shape is not None:
            self._shapes = [shape, *self._shapes[: SHAPES_MAX - 1]]
        return head

    def _resized(self, block: bytes) -> int:
        """Return where a block's fields begin, behind what it says of its client's table."""
        at = count = 0
        while at < len(block) and block[at] & 0xE0 == _RESIZES:
            (size, at), count = integer(block, at, 0x1F), count + 1
            if count > _RESIZES_MAX:
                raise CompressionError(f"A header block resizes its table {_RESIZES_MAX} times at most.")
            if size > (0 if self._is_acknowledged else TABLE_BYTES_DEFAULT):
                raise CompressionError(f"The header table may not have {size} bytes.")
            if size != self._table_bytes:
                self._shapes.clear()  # of a table of another size: what they enter may count now
            self._table_bytes = size
        return at

    def _decode_with_table(self, block: bytes) -> Head:
        full = self._full
        assert full is not None
        if self._is_acknowledged:
            self._full = None
            return self._decode_anew(block)
        try:
            pairs = list(full.decode(block, raw=True))
        except HPACKError as error:
            raise CompressionError(f"The header block cannot be decoded: {error}") from error
        self.work = len(pairs) // _TABLE_FIELDS_PER_STEP + len(block) // _BYTES_PER_STEP
        self.said_bytes = sum(len(name) + len(value) + _FIELD_BYTES for name, value in pairs)
        if len(pairs) > HEADERS_COUNT_MAX or self.said_bytes > HEADERS_BYTES_MAX:
            raise TooLong
        fields = [field_of(_text(bytes(name)), _text(bytes(value))) for name, value in pairs]
        return Head(_checked(fields), {})

    def _walk(self, block: bytes, at: int) -> tuple[Head, Shape | None]:
        fields, per_call, runs, names = [], {}, [], []
        run_from, end, left_bytes = 0, len(block), HEADERS_BYTES_MAX
        while at < end:
            field, value_at, following = self._field(block, at)
            fields.append(field)
            value_bytes = following - value_at if value_at else len(field.value)
            left_bytes -= _FIELD_BYTES + len(field.name) + value_bytes
            if left_bytes < 0 or len(fields) > HEADERS_COUNT_MAX:
                raise TooLong
            if value_at:
                runs.append(block[run_from:value_at])
                names.append(field.name)
                per_call[field.name] = block[value_at:following]
                run_from = following
            at = following
        self.said_bytes = HEADERS_BYTES_MAX - left_bytes
        constant = _checked(fields)
        for name in per_call:
            del constant[name]
        is_plain = len(per_call) == len(names) and len(fields) == len(constant) + len(per_call)
        runs.append(block[run_from:])
        shape = Shape(tuple(runs), tuple(names), constant) if is_plain else None
        return Head(constant, per_call), shape

    def _field(self, block: bytes, at: int) -> tuple[Field, int, int]:
        """Return the field at `at`; where its value begins, 0 for one that is the same each time.

        Where it ends.
        """
        first = block[at]
        if first & _INDEXED:
            number, end = integer(block, at, 0x7F)
            return field_of(*_static(number)), 0, end
        if first & 0xE0 == _RESIZES:
            raise CompressionError("The header table is resized in the middle of a block.")
        number, name_at = integer(block, at, 0x3F if first & _ENTERS else 0x0F)
        value_at = name_at if number else _string_end(block, name_at)
        end = _string_end(block, value_at)
        raw = block[at:end]
        known = self._kept.get(raw)
        if known is not None:
            return known, 0, end
        name = _static(number)[0] if number else text_of(block[name_at:value_at])
        if name in PER_CALL:
            return Field(name, "", REGULAR), value_at, end
        field = field_of(name, text_of(block[value_at:end]))
        if len(raw) <= KEPT_FIELD_BYTES_MAX:
            if len(self._kept) >= KEPT_FIELDS_MAX:
                self._kept.clear()
            self._kept[raw] = field
        return field, 0, end


def _of_shape(block: bytes, shape: Shape) -> Head | None:
    """Return the request that a block of a known shape says; None if it has another."""
    runs, names, fields = shape
    at, place, per_call = 0, 0, {}
    for name in names:
        run = runs[place]
        if not block.startswith(run, at):
            return None
        at += len(run)
        end = at + 1 + (block[at] & _LENGTH) if at < len(block) else at
        if end > len(block) or block[at] & _LENGTH == _LENGTH:
            return None
        per_call[name] = block[at:end]
        at, place = end, place + 1
    return Head(fields, per_call) if block[at:] == runs[place] else None


def field_of(name: str, value: str) -> Field:
    """Return what a field is."""
    kind = _PSEUDO.get(name, REGULAR)
    if kind == REGULAR:
        is_bad = not name or name.startswith(":") or name in _OF_CONNECTION or not _is_lower(name)
        is_bad |= name == "te" and value != "trailers"
        is_bad |= not value.isprintable() and any(one in value for one in "\0\r\n")
        kind = MALFORMED if is_bad else REGULAR
    elif not value:
        kind = MALFORMED
    return Field(name, value, kind)


def _is_lower(name: str) -> bool:
    return name.isascii() and name.isprintable() and name == name.lower() and " " not in name


def _checked(fields: list[Field]) -> dict[str, str]:
    """Return the fields by name; raise `Malformed`."""
    seen, found = 0, dict[str, str]()
    for name, value, kind in fields:
        if kind < REGULAR and seen & (kind | REGULAR):
            raise Malformed(f"{name} comes twice, or behind other fields.", seen | kind)
        seen |= kind
        found[name] = f"{found[name]},{value}" if name in found else value
    if seen & MALFORMED or seen & _NEEDED != _NEEDED:
        raise Malformed("A field is none that a request may have, or one is missing.", seen)
    return found


def _enters_table(block: bytes, at: int) -> bool:
    """Return whether any field of a block enters the client's table, or is taken from it."""
    count = 0
    while at < len(block):
        first, count = block[at], count + 1
        if count > _COUNTED_MAX:
            raise CompressionError("The header block has too many fields.")
        if first & _INDEXED:
            number, at = integer(block, at, 0x7F)
            if number > _STATIC_COUNT:
                return True
        elif first & _ENTERS:
            return True
        else:
            number, at = integer(block, at, 0x0F)
            at = _string_end(block, at if number else _string_end(block, at))
    return False


def _static(number: int) -> tuple[str, str]:
    if not 0 < number <= _STATIC_COUNT:
        raise CompressionError(f"No entry {number} is in a header table of size 0.")
    return _STATIC[number - 1]


def integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Return an integer in the low bits of `mask` and, where all are set, in what follows.

    And its end (5.1).
    """
    if at >= len(block):
        raise CompressionError("The header block ends in the middle of a field.")
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    for shift in range(0, 7 * _INTEGER_BYTES_MAX, 7):
        if at >= len(block):
            break
        more = block[at]
        at += 1
        value += (more & 0x7F) << shift
        if more < 0x80:
            return value, at
    raise CompressionError("A length in the header block is too long, or cut off.")


def _string_end(block: bytes, at: int) -> int:
    size, at = integer(block, at, _LENGTH)
    if at + size > len(block):
        raise CompressionError("The header block ends in the middle of a string.")
    return at + size


def text_of(raw: bytes) -> str:
    """Return the text of a string behind its length; raise `CompressionError`."""
    _, at = integer(raw, 0, _LENGTH)
    if not raw[0] & _HUFFMAN:
        return _text(raw[at:])
    try:
        return _text(decode_huffman(raw[at:]))
    except HPACKError as error:
        raise CompressionError(f"A string is not in Huffman's code: {error}") from error


def _text(value: bytes) -> str:
    return value.decode("latin-1")
