"""What the parts of an SQL filter expression mean: each term is a function of a message's properties.

A term is a property, a text, a number or a truth value; a truth value is true, false or unknown (None). Terms
are joined into larger ones while the expression is read, so what is kept of it in the end is one nest of
functions: nothing is interpreted, and nothing of the expression is ever run as code.

Properties are texts. Beside a number one is read as a number, beside a truth value as a truth value ("true"
in any case is true, every other text false), else as it is. Numbers are decimal and exact. Unknown is what
rests on a property that is missing, or that was to be a number and is none; AND, OR and NOT go on from there
as SQL92 has it.

`tags` of a term that tests TAGS are the tags without which it cannot be true: from their hashes alone the
queue tells which records need not be read.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple, cast

from commitlog import limits, properties
from consumequeue.errors import IllegalFilter

Truth = bool | None
Value = str | Decimal | Truth
Given = Mapping[str, str]
Evaluation = Callable[[Given], Value]
Verdict = Callable[[Given], Truth]

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]{1,4})?")
_ORDERS: Final[dict[str, Callable[[Decimal, Decimal], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_PARTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": str.__contains__,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


class Kind(Enum):
    """What a term is; the value names it to people."""

    PROPERTY = "a property"
    TEXT = "a text"
    NUMBER = "a number"
    TRUTH = "a truth value"


class Place(NamedTuple):
    """Where a term begins in the expression, both from 1."""

    line: int
    column: int


@dataclass(slots=True, frozen=True)
class Term:
    """A part of an expression; `constant` is the value of one that is the same for every message.

    `depth` counts the terms that lie in each other, `count` those that are looked at for a message; what
    stands in a list counts as nothing, for it is looked up. Both are bounded: no expression holds others up.
    """

    kind: Kind
    value: Evaluation
    place: Place
    depth: int = 1
    count: int = 1
    tags: frozenset[str] | None = None
    constant: Value = None
    name: str = ""


def illegal(place: Place, why: str) -> IllegalFilter:
    """The error for something wrong at a place of the expression."""
    return IllegalFilter(f"Line {place.line}, column {place.column}: {why}")


def constant(kind: Kind, value: Value, place: Place) -> Term:
    """A text, number or truth value as it was written."""
    return Term(kind, lambda _: value, place, constant=value)


def named(name: str, place: Place) -> Term:
    """A property of the message, also those that RocketMQ itself sets, such as TAGS and KEYS."""
    return Term(Kind.PROPERTY, lambda given: given.get(name), place, name=name)


@lru_cache(maxsize=limits.FILTER_NUMBERS_KEPT_MAX)
def number(text: str) -> Decimal | None:
    """The number that a text is, None if it is none: digits, a point, an exponent of up to four digits."""
    if len(text) > limits.FILTER_NUMBER_CHARACTERS_MAX or not _NUMBER.fullmatch(text):
        return None
    return Decimal(text)


def signed(term: Term, is_minus: bool) -> Term:
    """The number with that sign before it; raises `IllegalFilter` for texts and truth values."""
    of = _numeric(term, "A sign stands before a number or a property")
    if not is_minus:
        return _joined(Kind.NUMBER, of, term)
    if isinstance(term.constant, Decimal):
        return constant(Kind.NUMBER, term.constant.copy_negate(), term.place)

    def negated(given: Given) -> Value:
        value = of(given)
        return None if value is None else value.copy_negate()

    return _joined(Kind.NUMBER, negated, term)


def equal(left: Term, right: Term) -> Term:
    """Whether two terms have one value; raises `IllegalFilter` for kinds that have none in common."""
    kinds = {left.kind, right.kind}
    if Kind.TRUTH in kinds and kinds & {Kind.TEXT, Kind.NUMBER}:
        raise illegal(left.place, f"{left.kind.value} and {right.kind.value} cannot be compared.")
    reading: Callable[[Term], Evaluation] = _value
    if Kind.TRUTH in kinds:
        reading = truth
    elif Kind.NUMBER in kinds:
        reading = _number_of
    holds = _compared(operator.eq, reading(left), reading(right))
    return _joined(Kind.TRUTH, holds, left, right, tags=_tags(left, right) or _tags(right, left))


def ordered(order: str, left: Term, right: Term) -> Term:
    """`left < right`, or another order; raises `IllegalFilter` for texts and truth values."""
    why = f"{order} compares numbers and properties"
    holds = _compared(_ORDERS[order], _numeric(left, why), _numeric(right, why))
    return _joined(Kind.TRUTH, holds, left, right)


def between(term: Term, low: Term, high: Term) -> Term:
    """`low <= term <= high`; raises `IllegalFilter` if that can never be."""
    if (
        isinstance(low.constant, Decimal)
        and isinstance(high.constant, Decimal)
        and low.constant > high.constant
    ):
        raise illegal(low.place, f"BETWEEN {low.constant} AND {high.constant} has the greater number first.")
    return every([ordered(">=", term, low), ordered("<=", term, high)])


def one_of(term: Term, members: list[Term]) -> Term:
    """Whether the term equals one of some texts and numbers."""
    if term.kind is not Kind.PROPERTY:
        raise illegal(term.place, f"IN asks for a property before it, not {term.kind.value}.")
    value = term.value
    texts = frozenset(one.constant for one in members if isinstance(one.constant, str))
    numbers = frozenset(one.constant for one in members if isinstance(one.constant, Decimal))

    def holds(given: Given) -> Truth:
        text = value(given)
        if not isinstance(text, str) or text in texts:
            return None if text is None else True
        read = number(text) if numbers else None
        return read in numbers if read is not None or not numbers else None

    tags = texts if term.name == properties.TAG and not numbers else None
    return _joined(Kind.TRUTH, holds, term, tags=tags)


def part(word: str, term: Term, sought: str) -> Term:
    """Whether the term's text contains, begins or ends with `sought`; unknown for an empty one."""
    if term.kind not in (Kind.PROPERTY, Kind.TEXT):
        raise illegal(term.place, f"{word} asks for a property or a text before it, not {term.kind.value}.")
    value, has = term.value, _PARTS[word]

    def holds(given: Given) -> Truth:
        text = value(given)
        return has(text, sought) if isinstance(text, str) and sought else None

    return _joined(Kind.TRUTH, holds, term)


def is_null(term: Term) -> Term:
    """Whether the term has no value: a property that is not there, a truth that is unknown."""
    value = term.value
    return _joined(Kind.TRUTH, lambda given: value(given) is None, term)


def negation(term: Term) -> Term:
    """True for false, false for true."""
    of = truth(term)

    def holds(given: Given) -> Truth:
        verdict = of(given)
        return None if verdict is None else not verdict

    return _joined(Kind.TRUTH, holds, term)


def every(terms: list[Term]) -> Term:
    """False if one is false, else unknown if one is unknown, else true."""
    known = [term.tags for term in terms if term.tags is not None]
    tags = frozenset.intersection(*known) if known else None
    return _joined(Kind.TRUTH, _until(False, map(truth, terms)), *terms, tags=tags)


def any_of(terms: list[Term]) -> Term:
    """True if one is true, else unknown if one is unknown, else false."""
    known = [term.tags for term in terms if term.tags is not None]
    tags = frozenset().union(*known) if len(known) == len(terms) else None
    return _joined(Kind.TRUTH, _until(True, map(truth, terms)), *terms, tags=tags)


def truth(term: Term) -> Verdict:
    """The term as a truth value; raises `IllegalFilter` for texts and numbers."""
    if term.kind is Kind.TRUTH:
        return cast(Verdict, term.value)
    if term.kind is not Kind.PROPERTY:
        raise illegal(
            term.place, f"{term.kind.value} is neither true nor false. Compare it, as in price > 5."
        )
    value = term.value

    def holds(given: Given) -> Truth:
        text = value(given)
        return text.lower() == "true" if isinstance(text, str) else None

    return holds


def _until(decisive: bool, verdicts: Iterable[Verdict]) -> Verdict:
    """`decisive` as soon as one verdict is; else unknown if one was unknown, else the opposite."""
    asked = tuple(verdicts)

    def holds(given: Given) -> Truth:
        is_unknown = False
        for verdict in asked:
            found = verdict(given)
            if found is decisive:
                return decisive
            is_unknown = is_unknown or found is None
        return None if is_unknown else not decisive

    return holds


def _compared(holds: Callable[..., bool], left: Evaluation, right: Evaluation) -> Verdict:
    def verdict(given: Given) -> Truth:
        left_value = left(given)
        if left_value is None:
            return None
        right_value = right(given)
        return None if right_value is None else holds(left_value, right_value)

    return verdict


def _value(term: Term) -> Evaluation:
    return term.value


def _numeric(term: Term, why: str) -> Callable[[Given], Decimal | None]:
    if term.kind not in (Kind.PROPERTY, Kind.NUMBER):
        raise illegal(term.place, f"{why}, not {term.kind.value}.")
    return _number_of(term)


def _number_of(term: Term) -> Callable[[Given], Decimal | None]:
    if term.kind is Kind.NUMBER:
        return cast("Callable[[Given], Decimal | None]", term.value)
    value = term.value

    def read(given: Given) -> Decimal | None:
        text = value(given)
        return number(text) if isinstance(text, str) else None

    return read


def _tags(tested: Term, wanted: Term) -> frozenset[str] | None:
    """The one tag that TAGS = 'text' asks for."""
    if tested.name == properties.TAG and isinstance(wanted.constant, str):
        return frozenset({wanted.constant})
    return None


def _joined(kind: Kind, value: Evaluation, *parts: Term, tags: frozenset[str] | None = None) -> Term:
    """A term made of others; raises `IllegalFilter` if they are too many, or too deep in each other."""
    depth, count = 1 + max(part.depth for part in parts), sum(part.count for part in parts)
    if depth > limits.FILTER_DEPTH_MAX:
        raise illegal(parts[0].place, f"it is nested more than {limits.FILTER_DEPTH_MAX} deep.")
    if count > limits.FILTER_TERMS_MAX:
        raise illegal(
            parts[0].place,
            f"it has more than {limits.FILTER_TERMS_MAX} properties and values. "
            "Write alternatives of one property as IN (...): its list is looked up at once.",
        )
    return Term(kind, value, parts[0].place, depth, count, tags)
