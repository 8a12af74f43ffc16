"""What the parts of an SQL filter expression mean: each term is a function of a message's properties.

A term is a property, a text, a number or a truth value; a truth value is true, false or unknown (None). Terms
are joined into larger ones while the expression is read, so what is kept of it in the end is one nest of
functions: nothing is interpreted, and nothing of the expression is ever run as code.

Properties are texts. Beside a number one is read as a number, beside a truth value as a truth value ("true"
in any case is true, every other text false), else as it is. Numbers are decimal and exact. Unknown is what
rests on a property that is missing, or that was to be a number and is none; AND, OR and NOT go on from there
as SQL92 has it (8.12):

    AND      true     unknown  false       OR       true     unknown  false       NOT
    true     true     unknown  false       true     true     true     true        false
    unknown  unknown  unknown  false       unknown  true     unknown  unknown     unknown
    false    false    false    false       false    true     unknown  false       true

`tags` of a term that tests TAGS are the tags without which it cannot be true: from their hashes alone the
queue tells which records need not be read.

Cost of one message, bounded when an expression is read: `steps` calls of functions, and `passes` over the
bytes of a property, by CONTAINS alone. CPython compares the sought text at each place where its last
character fits, up to the first difference; so each character of the property is compared as often as
beginnings of the sought text can overlap there (`_overlaps`): 1 to 3 times for words, 20 times for
'aaaaaaaaaaaaaaaaaaaab' in a property of nothing but 'a'. 8 comparisons take as long as one place more.

Weak spot: a property that is compared several times is read as a number each time, from a cache of texts
lately read; only texts short enough to be a number get there.
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

from commitlog import limits
from consumequeue.errors import IllegalFilter
from tidewheel import property_names

Truth = bool | None
Value = str | Decimal | Truth
Given = Mapping[str, str]
Evaluation = Callable[[Given], Value]
Verdict = Callable[[Given], Truth]

# Possessive (`++`): a run of digits that ends in no number is not tried again from each of its digits.
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]{1,4})?")
_ORDERS: Final[dict[str, Callable[[Decimal, Decimal], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_COMPARED_PER_PASS: Final = 8
_PARTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": str.__contains__,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


class Kind(Enum):
    """The kind of a term; the value names it to people."""

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
    stands in a list counts as nothing, for it is looked up. `steps` are the functions called for a message,
    `passes` how often the bytes of a property may be passed over. All but `steps`, which follow from the
    expression's length, have a limit of their own.
    """

    kind: Kind
    value: Evaluation
    place: Place
    depth: int = 1
    count: int = 1
    tags: frozenset[str] | None = None
    constant: Value = None
    name: str = ""
    steps: int = 1
    passes: int = 0


def illegal(place: Place, why: str) -> IllegalFilter:
    """Return the error for something wrong at a place of the expression."""
    return IllegalFilter(f"Line {place.line}, column {place.column}: {why}")


def constant(kind: Kind, value: Value, place: Place) -> Term:
    """Return the term of a text, number or truth value as it was written."""
    return Term(kind, lambda _: value, place, constant=value)


def named(name: str, place: Place) -> Term:
    """Return the term of a property, also of those that RocketMQ itself sets, such as TAGS and KEYS."""
    return Term(Kind.PROPERTY, lambda given: given.get(name), place, name=name)


def number(text: str) -> Decimal | None:
    """Return the number that a text is: digits, a point, an exponent of up to four digits; else None."""
    return _short_number(text) if len(text) <= limits.FILTER_NUMBER_CHARACTERS_MAX else None


@lru_cache(maxsize=limits.FILTER_NUMBERS_KEPT_MAX)
def _short_number(text: str) -> Decimal | None:
    return Decimal(text) if _NUMBER.fullmatch(text) else None


def signed(term: Term, is_minus: bool) -> Term:
    """Return the number with a sign before it; raise `IllegalFilter` for texts and truth values."""
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
    """Return `left = right`; raise `IllegalFilter` for kinds that have no value in common."""
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
    """Return `left < right`, or another order; raise `IllegalFilter` for texts and truth values."""
    why = f"{order} compares numbers and properties"
    holds = _compared(_ORDERS[order], _numeric(left, why), _numeric(right, why))
    return _joined(Kind.TRUTH, holds, left, right)


def between(term: Term, low: Term, high: Term) -> Term:
    """Return `low <= term <= high`; raise `IllegalFilter` if that can never be."""
    if (
        isinstance(low.constant, Decimal)
        and isinstance(high.constant, Decimal)
        and low.constant > high.constant
    ):
        raise illegal(low.place, f"BETWEEN {low.constant} AND {high.constant} has the greater number first.")
    return every([ordered(">=", term, low), ordered("<=", term, high)])


def one_of(term: Term, members: list[Term]) -> Term:
    """Return `term IN (members)`, texts and numbers; raise `IllegalFilter` if the term is no property."""
    if term.kind is not Kind.PROPERTY:
        raise illegal(term.place, f"IN asks for a property before it, not {term.kind.value}.")
    value = term.value
    texts = frozenset(one.constant for one in members if isinstance(one.constant, str))
    numbers = frozenset(one.constant for one in members if isinstance(one.constant, Decimal))

    def holds(given: Given) -> Truth:
        text = value(given)
        if not isinstance(text, str) or text in texts:
            return None if text is None else True
        # With a number in the list a text that is no number cannot be told from it: unknown, as with `=`.
        read = number(text) if numbers else None
        return read in numbers if read is not None or not numbers else None

    # With a number in the list no tags: 5 is equal to the tags '5', '5.0' and '05', each of another hash.
    tags = texts if term.name == property_names.TAG and not numbers else None
    return _joined(Kind.TRUTH, holds, term, tags=tags)


def part(word: str, term: Term, sought: str) -> Term:
    """Return whether the term's text contains, begins or ends with `sought`; unknown for an empty one."""
    if term.kind not in (Kind.PROPERTY, Kind.TEXT):
        raise illegal(term.place, f"{word} asks for a property or a text before it, not {term.kind.value}.")
    value, has = term.value, _PARTS[word]

    def holds(given: Given) -> Truth:
        text = value(given)
        return has(text, sought) if isinstance(text, str) and sought else None

    passes = 1 + _overlaps(sought) // _COMPARED_PER_PASS if word == "CONTAINS" else 0
    return _joined(Kind.TRUTH, holds, term, passes=passes)


def is_null(term: Term) -> Term:
    """Return `term IS NULL`: true for a property that is not there, and for a truth that is unknown."""
    value = term.value
    return _joined(Kind.TRUTH, lambda given: value(given) is None, term)


def negation(term: Term) -> Term:
    """Return `NOT term`: true for false, false for true, unknown for unknown."""
    # Of `tags` nothing is kept: the tags without which a term cannot be true say nothing of when it is false.
    of = truth(term)

    def holds(given: Given) -> Truth:
        verdict = of(given)
        return None if verdict is None else not verdict

    return _joined(Kind.TRUTH, holds, term)


def every(terms: list[Term]) -> Term:
    """Return AND: false if a term is false, else unknown if a term is unknown, else true."""
    # All terms must be true, so a tag must be among those of every term that asks for some.
    known = [term.tags for term in terms if term.tags is not None]
    tags = frozenset.intersection(*known) if known else None
    return _joined(Kind.TRUTH, _until(False, map(truth, terms)), *terms, tags=tags)


def any_of(terms: list[Term]) -> Term:
    """Return OR: true if a term is true, else unknown if a term is unknown, else false."""
    # One true term is enough, so a single term that asks for no tag lets every tag through.
    known = [term.tags for term in terms if term.tags is not None]
    tags = frozenset().union(*known) if len(known) == len(terms) else None
    return _joined(Kind.TRUTH, _until(True, map(truth, terms)), *terms, tags=tags)


def truth(term: Term) -> Verdict:
    """Return the term as a truth value; raise `IllegalFilter` for texts and numbers."""
    if term.kind is Kind.TRUTH:
        return cast(Verdict, term.value)
    if term.kind is not Kind.PROPERTY:
        raise illegal(
            term.place, f"{term.kind.value} is neither true nor false. Compare it, as in price > 5."
        )
    value = term.value

    def holds(given: Given) -> Truth:
        text = value(given)
        if not isinstance(text, str):
            return None
        return len(text) == len("true") and text.lower() == "true"

    return holds


def _until(decisive: bool, verdicts: Iterable[Verdict]) -> Verdict:
    """Return `decisive` as soon as a verdict is; else unknown if one was unknown, else the opposite."""
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
    """Return the one tag that TAGS = 'text' asks for; None if the comparison is another."""
    if tested.name == property_names.TAG and isinstance(wanted.constant, str):
        return frozenset({wanted.constant})
    return None


def _overlaps(sought: str) -> int:
    """Return how many beginnings of a text can lie over each other at most, each begun later than the last.

    It is the longest chain of borders (Knuth, Morris, Pratt 1977): a text is its own first, then the longest
    that it both begins and ends with, and so on.
    """
    borders, depths = [0], [1]
    for at in range(1, len(sought)):
        border = borders[-1]
        while border and sought[border] != sought[at]:
            border = borders[border - 1]
        border += sought[border] == sought[at]
        borders.append(border)
        depths.append(1 + (depths[border - 1] if border else 0))
    return max(depths)


def _joined(
    kind: Kind, value: Evaluation, *parts: Term, tags: frozenset[str] | None = None, passes: int = 0
) -> Term:
    """Return a term made of others; raise `IllegalFilter` if they are too many, too deep, or too costly."""
    depth, count = 1 + max(part.depth for part in parts), sum(part.count for part in parts)
    if depth > limits.FILTER_DEPTH_MAX:
        raise illegal(parts[0].place, f"it is nested more than {limits.FILTER_DEPTH_MAX} deep.")
    if count > limits.FILTER_TERMS_MAX:
        raise illegal(
            parts[0].place,
            f"it has more than {limits.FILTER_TERMS_MAX} properties and values. "
            "Write alternatives of one property as IN (...): its list is looked up at once.",
        )
    steps, passes = 1 + sum(part.steps for part in parts), passes + sum(part.passes for part in parts)
    if passes > limits.FILTER_PASSES_MAX:
        raise illegal(
            parts[0].place,
            f"its CONTAINS may pass over a property {passes} times, the limit is {limits.FILTER_PASSES_MAX}. "
            "A text that repeats its own beginning, as 'aaaab', counts once for every "
            f"{_COMPARED_PER_PASS} repeats.",
        )
    return Term(kind, value, parts[0].place, depth, count, tags, steps=steps, passes=passes)
