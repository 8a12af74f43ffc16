"""SQL filters, which select messages by their properties.

An example is `price > 5 AND region IN ('eu', 'us')`.

`grammar.py` defines the syntax, and `terms.py` the semantics. The `lark` package parses each
expression once, and its terms are combined into a single function. A message matches only if the expression
is true, not if it is unknown. Recent filters are cached, because every long poll sends its expression again.
Tidewheel follows SQL92 where Apache RocketMQ's SQL filter deviates from it, and otherwise follows RocketMQ.
`tests/rocketmq/test_filters.py` compares the two using the cases in `tests/vectors/sql_filters.json`:

    expression                   RocketMQ 5.4                           Tidewheel
    a = 1 b, a LIKE 'x'          unreadable parts are ignored           refused
    NOT a = 1                    (NOT a) = 1, never true                NOT (a = 1)
    a, NOT a                     a text is never true                   as a = TRUE, NOT (a = TRUE)
    a = b, one or both missing   true, false or unknown by the side     unknown
    a > 3 for '3.5'              an error, and no match                 true, because numbers are decimal
    a > 3 OR b = 1 for 'x'       an error, and no match                 true or unknown, by b = 1
    a IN (1, 2), -a, a > 0.0     refused or unknown                     supported
    NOT (a CONTAINS 'x')         true if a is missing                   unknown, as a NOT CONTAINS 'x'
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from math import isfinite
from typing import Final, cast

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from commitlog import limits
from commitlog.records import properties
from consumequeue.entry import tags_code
from consumequeue.filters import terms
from consumequeue.filters.errors import IllegalFilter
from consumequeue.filters.filter import SQL, Filter, FilterText, check_expression
from consumequeue.filters.grammar import GRAMMAR, SHOWN
from consumequeue.filters.terms import Kind, Place, Term, Verdict

_LONG_MAX: Final = 1 << 63
_STEP_NS: Final = 200
# Parsing takes 2 ns per byte for properties set by clients, and 16 ns per byte for 6-byte pairs in an
# imported log.
_DECODED_BYTE_NS: Final = 8
_PASSED_BYTE_NS: Final = 4
_SHOWN_CHARACTERS: Final = 20


@dataclass(slots=True, frozen=True)
class SqlFilter:
    """Matches messages for which an SQL expression is true."""

    text: FilterText
    tags_codes: frozenset[int] | None = field(compare=False)
    holds: Verdict = field(compare=False)
    steps: int = field(compare=False)
    passes: int = field(compare=False)

    def work(self, stored_bytes: int) -> int:
        """Return the maximum cost of `matches` in units of `WORK_NS`.

        The cost depends on the size of the stored properties.
        """
        a_byte_ns = _DECODED_BYTE_NS + self.passes * _PASSED_BYTE_NS
        return (self.steps * _STEP_NS + stored_bytes * a_byte_ns) // limits.WORK_NS

    def matches(self, stored: bytes) -> bool:
        """Return whether the expression is true for a record with these stored properties."""
        return self.holds(properties.decode(stored)) is True


@lru_cache(maxsize=limits.FILTERS_KEPT_MAX)
def parse_sql(expression: str) -> Filter:
    """Return the filter for an SQL expression.

    If it is invalid, raise `IllegalFilter` with the line and column.
    """
    check_expression(expression)
    if (count := expression.count("(") + expression.count(",")) > limits.FILTER_MARKS_MAX:
        raise IllegalFilter(
            f"It has {count} opening parentheses and commas, the limit is {limits.FILTER_MARKS_MAX}."
        )
    try:
        term = cast(Term, cast(object, _PARSER.parse(expression)))
    except UnexpectedInput as error:
        raise _refusal(error, expression) from None
    tags = term.tags
    codes = None if tags is None else frozenset(map(tags_code, tags))
    text = FilterText(SQL, expression)
    return SqlFilter(text, codes, terms.truth(term), term.steps, term.passes)


@v_args(inline=True)
class _Reading(Transformer[Token, Term]):
    """Parser actions.

    After matching a grammar rule, the parser calls the method for that rule.
    """

    def start(self, term: Term) -> Term:
        terms.truth(term)
        return term

    def any(self, *parts: Term) -> Term:
        return terms.any_of(list(parts))

    def every(self, *parts: Term) -> Term:
        return terms.every(list(parts))

    def negated(self, term: Term) -> Term:
        return terms.negation(term)

    def equal(self, left: Term, right: Term) -> Term:
        return terms.equal(left, right)

    def unequal(self, left: Term, right: Term) -> Term:
        return terms.negation(terms.equal(left, right))

    def null(self, term: Term) -> Term:
        return terms.is_null(term)

    def not_null(self, term: Term) -> Term:
        return terms.negation(terms.is_null(term))

    def ordered(self, left: Term, order: Token, right: Term) -> Term:
        return terms.ordered(str(order), left, right)

    def between(self, term: Term, low: Term, high: Term) -> Term:
        return terms.between(term, low, high)

    def not_between(self, term: Term, low: Term, high: Term) -> Term:
        return terms.negation(terms.between(term, low, high))

    def one_of(self, term: Term, *members: Term) -> Term:
        return terms.one_of(term, list(members))

    def none_of(self, term: Term, *members: Term) -> Term:
        return terms.negation(terms.one_of(term, list(members)))

    def part(self, term: Term, word: Token, sought: Token) -> Term:
        return terms.part(word.upper(), term, _unquoted(sought))

    def not_part(self, term: Term, word: Token, sought: Token) -> Term:
        return terms.negation(self.part(term, word, sought))

    def plus(self, term: Term) -> Term:
        return terms.signed(term, is_minus=False)

    def minus(self, term: Term) -> Term:
        return terms.signed(term, is_minus=True)

    def named(self, name: Token) -> Term:
        return terms.named(str(name), _place(name))

    def text(self, token: Token) -> Term:
        return terms.constant(Kind.TEXT, _unquoted(token), _place(token))

    def true(self, token: Token) -> Term:
        return terms.constant(Kind.TRUTH, True, _place(token))

    def false(self, token: Token) -> Term:
        return terms.constant(Kind.TRUTH, False, _place(token))

    def bare_null(self, token: Token) -> Term:
        raise terms.illegal(_place(token), "NULL equals nothing. Write IS NULL or IS NOT NULL.")

    def integer(self, token: Token) -> Term:
        return self._number(token, lambda value: value <= _LONG_MAX)

    def decimal(self, token: Token) -> Term:
        return self._number(token, lambda value: isfinite(float(value)))

    def _number(self, token: Token, fits: Callable[[Decimal], bool]) -> Term:
        value = terms.number(token.rstrip("lL"))
        if value is None or not fits(value):
            raise terms.illegal(_place(token), f"{_cut(token)} is out of range.")
        return terms.constant(Kind.NUMBER, value, _place(token))


_PARSER: Final = Lark(GRAMMAR, parser="lalr", transformer=_Reading())
"""Created on import, because building the parser tables takes 30 to 90 ms."""


def _refusal(error: UnexpectedInput, expression: str) -> IllegalFilter:
    """Return the exception for a syntax error.

    The error message states what was found and what was expected.
    """
    place = Place(error.line, error.column)
    if isinstance(error, UnexpectedToken):
        expected = _expected(error.accepts)
        if error.token.type == "$END":
            return terms.illegal(_end(expression), f"it ends where {expected} was expected.")
        return terms.illegal(place, f"found {_cut(error.token)}, expected {expected}.")
    assert isinstance(error, UnexpectedCharacters), "lark has a third kind of syntax error"
    if error.char == "'":
        return terms.illegal(place, "the text that begins here is not closed by a quote.")
    return terms.illegal(place, f"found {error.char!r}, expected {_expected(error.allowed)}.")


def _expected(terminals: set[str] | None) -> str:
    words = {SHOWN.get(one, one.lstrip("_")) for one in terminals or ()} - {""}
    *others, last = sorted(words, key=lambda word: (word.isupper(), word))
    return f"{', '.join(others)} or {last}" if others else last


def _end(expression: str) -> Place:
    lines = expression.split("\n")
    return Place(len(lines), len(lines[-1]) + 1)


def _place(token: Token) -> Place:
    return Place(token.line or 1, token.column or 1)


def _unquoted(token: Token) -> str:
    return token[1:-1].replace("''", "'")


def _cut(token: str) -> str:
    return token if len(token) <= _SHOWN_CHARACTERS else f"{token[:_SHOWN_CHARACTERS]}..."
