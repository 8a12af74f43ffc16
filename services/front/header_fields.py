"""An HPACK decoder (RFC 7541) for a server that sets the dynamic table size to 0.

A header block is a sequence of fields. Without a dynamic table, no field depends on preceding fields, and
decoded fields can be looked up by their encoded bytes:

| first bits | field                                        | decoding                                   |
|------------|----------------------------------------------|--------------------------------------------|
| 1          | a table entry, identified by its index       | the static table has the indexes 1 to 61   |
| 01         | name and value, to be added to the table     | as for 0000, because there is no table     |
| 001        | the new size of the dynamic table            | only before the first field of a block     |
| 0000, 0001 | name and value                               | looked up by all bytes or decoded          |

A name or value is encoded as a length followed by bytes. The length has seven bits. If all seven bits are
set, the length continues in the next bytes. The bit before the length is set if the bytes are Huffman-coded.

A client sends most header fields unchanged in every call. Only the fields in `PER_CALL` change from call to
call, and these fields are not cached. A decoder caches the shapes of recent blocks of its connection. A shape
is the list of byte strings between the values that change from call to call. Decoding a block of a known
shape takes one comparison per byte string and one step per changing value, regardless of the number of
fields. Decoding a block from an official client takes 2.6 to 6.3 us (`docs/front.md`). A similar decoder with
a dynamic table of 4,096 bytes takes 6 to 18 us, and the `hpack` package takes 31 to 45 us. Without a dynamic
table, a header block is 150 to 300 bytes longer than with one.

A client may use a dynamic table until it acknowledges a table size of 0. Before the acknowledgement, the
blocks of a client with a dynamic table are decoded by the `hpack` package. The server sets the table size to
0 at the first gRPC call on a connection. Clients that make no gRPC calls, such as HTTP/2 conformance tests,
may keep a dynamic table.

After the acknowledgement, the decoder assumes a table size of 0, even if the next block lacks the size update
that RFC 7541, Section 4.2, requires. For example, nginx never sends the size update, and adds entries that
are never referenced. An entry larger than the table only clears the table (RFC 7541, Section 4.4), so blocks
from nginx can be decoded. If a block references an entry of the dynamic table, the connection is closed.

Limits: a block may contain at most `HEADERS_COUNT_MAX` fields and `HEADERS_BYTES_MAX` bytes, including 32
bytes of overhead per field. A request with a larger block is refused. Without a dynamic table, decoding stops
at the limit. With a dynamic table, the entire block is decoded, and the connection is closed if the size of
the fields exceeds four times the limit. The decoders cache up to `KEPT_FIELDS_MAX` fields for all connections
and `SHAPES_MAX` shapes per connection. `work` is the cost of decoding the last block in units of 10 us, and
`size_bytes` is the size of the fields in the last block.
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
"""Names of the fields whose values differ from call to call."""
_TABLE_BLOCK_BYTES_MAX: Final = 4 * HEADERS_BYTES_MAX
"""Maximum size of the fields in a block with a dynamic table. A larger block ends the connection."""
_COUNTED_MAX: Final = 4 * HEADERS_COUNT_MAX
"""Maximum number of fields to examine for uses of the dynamic table."""
_BYTES_PER_STEP, _TABLE_FIELDS_PER_STEP = 64, 4
_FIELD_BYTES: Final = 32
"""Overhead per field in bytes (RFC 9113, Section 6.5.2)."""
KEPT_FIELDS_MAX: Final = 8_192
KEPT_FIELD_BYTES_MAX: Final = 512
SHAPES_MAX: Final = 4

METHOD, SCHEME, PATH, AUTHORITY, REGULAR, MALFORMED = 1, 2, 4, 8, 16, 32
"""Kinds of fields. A request must have fields of the first three kinds.

Pseudo-header fields must precede regular fields.
"""
_PSEUDO: Final = {":method": METHOD, ":scheme": SCHEME, ":path": PATH, ":authority": AUTHORITY}
_NEEDED: Final = METHOD | SCHEME | PATH
_OF_CONNECTION: Final = frozenset(
    ("connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade")
)
"""Connection-specific fields of HTTP/1, which a request must not have (RFC 9113, Section 8.2.2)."""
_STATIC: Final = tuple((name.decode(), value.decode()) for name, value in HeaderTable.STATIC_TABLE)
_STATIC_COUNT: Final = len(_STATIC)
_INDEXED, _ENTERS, _RESIZES = 0x80, 0x40, 0x20
_RESIZES_MAX: Final = 2
"""Maximum number of table size updates in a block: smallest and final size (RFC 7541, Section 4.2)."""
_HUFFMAN: Final = 0x80
_LENGTH: Final = 0x7F
_INTEGER_BYTES_MAX: Final = 5


class CompressionError(Exception):
    """Raised when a header block cannot be decoded. The connection must then be closed."""


class MalformedRequestError(Exception):
    """Raised when a request is malformed (RFC 9113, Section 8.1.1). The stream must then be reset.

    `seen` is a bit set of the kinds of the fields in the request.
    """

    def __init__(self, text: str, seen: int) -> None:
        super().__init__(text)
        self.seen = seen


class HeadersTooLongError(Exception):
    """Raised when a block exceeds `HEADERS_BYTES_MAX` bytes or `HEADERS_COUNT_MAX` fields."""


class Field(NamedTuple):
    """A header field with its name, value, and kind."""

    name: str
    value: str
    kind: int


class Head:
    """The header fields of a request. Fields in `PER_CALL` are decoded on access.

    The values of a repeated field are joined with commas (RFC 9110, Section 5.2).
    """

    __slots__ = ("_per_call", "fields")

    def __init__(self, fields: dict[str, str], per_call: dict[str, bytes]) -> None:
        self.fields = fields
        """The fields of the request that are not in `PER_CALL`.

        This dictionary is shared by calls and must not be modified.
        """
        self._per_call = per_call

    def get(self, name: str) -> str:
        """Return the value of a field, or an empty string if the request has no such field.

        Raise `CompressionError` if the value cannot be decoded.
        """
        raw = self._per_call.get(name)
        return self.fields.get(name, "") if raw is None else decode_string(raw)

    def has(self, name: str) -> bool:
        """Return whether the request has a field with the given name."""
        return name in self._per_call or name in self.fields

    def all(self) -> dict[str, str]:
        """Return all fields. Raise `CompressionError` if a value cannot be decoded."""
        return self.fields | {name: decode_string(raw) for name, raw in self._per_call.items()}


class Shape(NamedTuple):
    """The common parts of similar header blocks.

    A block consists of the byte strings in `runs`, separated by the encoded values of the fields in `names`.
    """

    runs: tuple[bytes, ...]
    names: tuple[str, ...]
    fields: dict[str, str]


class FieldDecoder:
    """Decodes the header blocks of one connection.

    `kept` is a field cache shared by all connections.
    """

    __slots__ = ("_full", "_is_acknowledged", "_kept", "_shapes", "_table_bytes", "size_bytes", "work")

    def __init__(self, kept: dict[bytes, Field]) -> None:
        self._kept = kept
        self.work = 0
        """Decoding cost of the last block in units of 10 us, or 0 if its shape was known."""
        self.size_bytes = 0
        """Length of the last block in bytes.

        For a block of unknown shape, the size of its fields, with 32 bytes of overhead each.
        """
        self._shapes: list[Shape] = []
        self._full: Decoder | None = None
        """The `hpack` decoder, or None if the client uses no dynamic table."""
        self._is_acknowledged = False
        self._table_bytes = TABLE_BYTES_DEFAULT
        """The last dynamic table size that the client has set."""

    def disable_table(self) -> None:
        """Process the client's acknowledgement of a table size of 0."""
        self._is_acknowledged = True

    @property
    def uses_table(self) -> bool:
        """Return whether the client uses a dynamic table."""
        return self._full is not None

    def decode(self, block: bytes) -> Head:
        """Decode a complete header block.

        Raise `CompressionError`, `MalformedRequestError`, or `HeadersTooLongError` if the block is invalid.
        """
        self.work, self.size_bytes = 0, len(block)
        if self._full is not None:
            return self._decode_with_table(block)
        for shape in self._shapes:
            if (head := _match_shape(block, shape)) is not None:
                return head
        return self._decode_without_table(block)

    def are_trailers(self, block: bytes) -> bool:
        """Return whether a block contains valid trailers. Raise `CompressionError` for an undecodable block.

        Also update the dynamic table, if the client uses one.
        """
        try:
            self._decode_with_table(block) if self._full is not None else self._decode_without_table(block)
        except MalformedRequestError as malformed:
            return not malformed.seen & (MALFORMED | METHOD | SCHEME | PATH | AUTHORITY)
        except HeadersTooLongError:
            pass
        return False

    def _decode_without_table(self, block: bytes) -> Head:
        self.work = len(block) // _BYTES_PER_STEP
        at = self._read_table_sizes(block)
        if not self._is_acknowledged and self._table_bytes and _uses_dynamic_table(block, at):
            self._full = Decoder(_TABLE_BLOCK_BYTES_MAX)
            return self._decode_with_table(block)
        if len(block) > HEADERS_BYTES_MAX:
            raise HeadersTooLongError
        head, shape = self._decode_fields(block, at)
        if shape is not None:
            self._shapes = [shape, *self._shapes[: SHAPES_MAX - 1]]
        return head

    def _read_table_sizes(self, block: bytes) -> int:
        """Apply the table size updates at the start of a block. Return the position of the first field.

        Raise `CompressionError` if a table size or the number of updates is not allowed.
        """
        at = count = 0
        while at < len(block) and block[at] & 0xE0 == _RESIZES:
            (size, at), count = decode_integer(block, at, 0x1F), count + 1
            if count > _RESIZES_MAX:
                raise CompressionError(f"A header block resizes its table {_RESIZES_MAX} times at most.")
            if size > (0 if self._is_acknowledged else TABLE_BYTES_DEFAULT):
                raise CompressionError(f"The header table may not have {size} bytes.")
            if size != self._table_bytes:
                self._shapes.clear()  # With a larger table, a block of a known shape may add entries.
            self._table_bytes = size
        return at

    def _decode_with_table(self, block: bytes) -> Head:
        full = self._full
        assert full is not None
        if self._is_acknowledged:
            self._full = None
            return self._decode_without_table(block)
        try:
            pairs = list(full.decode(block, raw=True))
        except HPACKError as error:
            raise CompressionError(f"The header block cannot be decoded: {error}") from error
        self.work = len(pairs) // _TABLE_FIELDS_PER_STEP + len(block) // _BYTES_PER_STEP
        self.size_bytes = sum(len(name) + len(value) + _FIELD_BYTES for name, value in pairs)
        if len(pairs) > HEADERS_COUNT_MAX or self.size_bytes > HEADERS_BYTES_MAX:
            raise HeadersTooLongError
        fields = [
            classify_field(_decode_latin1(bytes(name)), _decode_latin1(bytes(value))) for name, value in pairs
        ]
        return Head(_check_fields(fields), {})

    def _decode_fields(self, block: bytes, at: int) -> tuple[Head, Shape | None]:
        fields, per_call, runs, names = [], {}, [], []
        run_from, end, left_bytes = 0, len(block), HEADERS_BYTES_MAX
        while at < end:
            field, value_at, following = self._decode_field(block, at)
            fields.append(field)
            value_bytes = following - value_at if value_at else len(field.value)
            left_bytes -= _FIELD_BYTES + len(field.name) + value_bytes
            if left_bytes < 0 or len(fields) > HEADERS_COUNT_MAX:
                raise HeadersTooLongError
            if value_at:
                runs.append(block[run_from:value_at])
                names.append(field.name)
                per_call[field.name] = block[value_at:following]
                run_from = following
            at = following
        self.size_bytes = HEADERS_BYTES_MAX - left_bytes
        constant = _check_fields(fields)
        for name in per_call:
            del constant[name]
        is_plain = len(per_call) == len(names) and len(fields) == len(constant) + len(per_call)
        runs.append(block[run_from:])
        shape = Shape(tuple(runs), tuple(names), constant) if is_plain else None
        return Head(constant, per_call), shape

    def _decode_field(self, block: bytes, at: int) -> tuple[Field, int, int]:
        """Return the field at position `at`, the position of the value, and the end position of the field.

        If the field is not in `PER_CALL`, the position of the value is 0. Raise `CompressionError` if the
        field cannot be decoded.
        """
        first = block[at]
        if first & _INDEXED:
            number, end = decode_integer(block, at, 0x7F)
            return classify_field(*_find_static_entry(number)), 0, end
        if first & 0xE0 == _RESIZES:
            raise CompressionError("The header table is resized in the middle of a block.")
        number, name_at = decode_integer(block, at, 0x3F if first & _ENTERS else 0x0F)
        value_at = name_at if number else _find_string_end(block, name_at)
        end = _find_string_end(block, value_at)
        raw = block[at:end]
        known = self._kept.get(raw)
        if known is not None:
            return known, 0, end
        name = _find_static_entry(number)[0] if number else decode_string(block[name_at:value_at])
        if name in PER_CALL:
            return Field(name, "", REGULAR), value_at, end
        field = classify_field(name, decode_string(block[value_at:end]))
        if len(raw) <= KEPT_FIELD_BYTES_MAX:
            if len(self._kept) >= KEPT_FIELDS_MAX:
                self._kept.clear()
            self._kept[raw] = field
        return field, 0, end


def _match_shape(block: bytes, shape: Shape) -> Head | None:
    """Return the fields of a block, or None if the block does not have the given shape."""
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


def classify_field(name: str, value: str) -> Field:
    """Return a header field with its kind."""
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


def _check_fields(fields: list[Field]) -> dict[str, str]:
    """Return the fields as a dictionary. Raise `MalformedRequestError` if the fields are invalid."""
    seen, found = 0, dict[str, str]()
    for name, value, kind in fields:
        if kind < REGULAR and seen & (kind | REGULAR):
            raise MalformedRequestError(f"{name} comes twice, or behind other fields.", seen | kind)
        seen |= kind
        found[name] = f"{found[name]},{value}" if name in found else value
    if seen & MALFORMED or seen & _NEEDED != _NEEDED:
        raise MalformedRequestError("A field is none that a request may have, or one is missing.", seen)
    return found


def _uses_dynamic_table(block: bytes, at: int) -> bool:
    """Return whether any field references the dynamic table or is added to the table.

    Raise `CompressionError` if there are too many fields or a field is truncated.
    """
    count = 0
    while at < len(block):
        first, count = block[at], count + 1
        if count > _COUNTED_MAX:
            raise CompressionError("The header block has too many fields.")
        if first & _INDEXED:
            number, at = decode_integer(block, at, 0x7F)
            if number > _STATIC_COUNT:
                return True
        elif first & _ENTERS:
            return True
        else:
            number, at = decode_integer(block, at, 0x0F)
            at = _find_string_end(block, at if number else _find_string_end(block, at))
    return False


def _find_static_entry(number: int) -> tuple[str, str]:
    if not 0 < number <= _STATIC_COUNT:
        raise CompressionError(f"No entry {number} is in a header table of size 0.")
    return _STATIC[number - 1]


def decode_integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Return an integer and its end position (RFC 7541, Section 5.1).

    Raise `CompressionError` if the integer is invalid.

    `mask` selects the low-order bits of the first byte. If all of these bits are set, the value continues in
    the next bytes.
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


def _find_string_end(block: bytes, at: int) -> int:
    size, at = decode_integer(block, at, _LENGTH)
    if at + size > len(block):
        raise CompressionError("The header block ends in the middle of a string.")
    return at + size


def decode_string(raw: bytes) -> str:
    """Decode a length-prefixed string. Raise `CompressionError` if the string is invalid."""
    _, at = decode_integer(raw, 0, _LENGTH)
    if not raw[0] & _HUFFMAN:
        return _decode_latin1(raw[at:])
    try:
        return _decode_latin1(decode_huffman(raw[at:]))
    except HPACKError as error:
        raise CompressionError(f"A string is not in Huffman's code: {error}") from error


def _decode_latin1(value: bytes) -> str:
    return value.decode("latin-1")
