"""Terms of SQL filter expressions. A term is a function of the properties of a message.

A term is a property, a string, a number, or a Boolean value. A Boolean value is true, false, or unknown
(None). Parsing combines terms into larger ones, so an expression becomes a tree of functions. No part of an
expression is interpreted later or run as code.

Properties are strings. A property compared with a number is converted to a number. When a property is
compared with a Boolean value, "true" in any case becomes true, and any other string becomes false. Numbers
are decimal and exact. A term is unknown if it needs a missing property or compares a nonnumeric property with
a number. AND, OR, and NOT treat unknown terms as in SQL92 (8.12):

    AND      true     unknown  false       OR       true     unknown  false       NOT
    true     true     unknown  false       true     true     true     true        false
    unknown  unknown  unknown  false       unknown  true     unknown  unknown     unknown
    false    false    false    false       false    true     unknown  false       true

For a term that tests TAGS, `tags` holds the only tags for which the term can be true. The hashes of these
tags are compared with those in queue entries, so that records that cannot match are skipped without being
read.

The parser limits the cost of evaluating an expression for a message: `steps` are function calls, and `passes`
are scans of a property. Only CONTAINS scans. Wherever the last character of the search string matches,
CPython compares the preceding characters up to the first difference. The maximum number of comparisons per
property character is thus the number of prefixes of the search string that can overlap (`_overlaps`). This is
1 to 3 for ordinary words. For 'aaaaaaaaaaaaaaaaaaaab' and a property consisting only of the letter 'a', the
maximum is 20. Eight comparisons take as long as advancing to the next position.

Limitation: a property compared with several numbers is converted each time, unless it is in a cache of recent
strings. Only strings short enough to be numbers are cached.
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
from consumequeue.filters.errors import IllegalFilter
from tidewheel import property_names

Truth = bool | None
Value = str | Decimal | Truth
Given = Mapping[str, str]
Evaluation = Callable[[Given], Value]
Verdict = Callable[[Given], Truth]

# The possessive quantifier `++` prevents backtracking at each digit of a sequence that is not a number.
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
    """Kinds of terms, with their names in error messages."""

    PROPERTY = "a property"
    TEXT = "a text"
    NUMBER = "a number"
    TRUTH = "a truth value"


class Place(NamedTuple):
    """Line and column where a term begins. Both start at 1."""

    line: int
    column: int


@dataclass(slots=True, frozen=True)
class Term:
    """A part of an expression. `constant` is the term's value if it is the same for every message.

    `depth` is the nesting depth, and `count` the number of terms evaluated per message. List members are not
    counted, because a list needs only one hash lookup. `steps` is the number of function calls per message,
    and `passes` is the maximum number of scans of a property. `depth`, `count`, and `passes` have their own
    limits. The length of the expression limits `steps`.
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
    """Return the error for an invalid part of the expression at this position."""
    return IllegalFilter(f"Line {place.line}, column {place.column}: {why}")


def constant(kind: Kind, value: Value, place: Place) -> Term:
    """Return the term for a literal string, number, or Boolean value."""
    return Term(kind, lambda _: value, place, constant=value)


def named(name: str, place: Place) -> Term:
    """Return the term for a property. It may be a reserved RocketMQ property, such as TAGS or KEYS."""
    return Term(Kind.PROPERTY, lambda given: given.get(name), place, name=name)


def number(text: str) -> Decimal | None:
    """Return the number in a string, or None if it is not a number.

    A number has digits, an optional decimal point, and an optional exponent of up to four digits.
    """
    return _short_number(text) if len(text) <= limits.FILTER_NUMBER_CHARACTERS_MAX else None


@lru_cache(maxsize=limits.FILTER_NUMBERS_KEPT_MAX)
def _short_number(text: str) -> Decimal | None:
    return Decimal(text) if _NUMBER.fullmatch(text) else None


def signed(term: Term, is_minus: bool) -> Term:
    """Return a signed number or property. Raise `IllegalFilter` for any other term."""
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
    """Return the term `left = right`. Raise `IllegalFilter` if their kinds can never be equal."""
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
    """Return the term for an order comparison such as `left < right`.

    Raise `IllegalFilter` unless both terms are numeric.
    """
    why = f"{order} compares numbers and properties"
    holds = _compared(_ORDERS[order], _numeric(left, why), _numeric(right, why))
    return _joined(Kind.TRUTH, holds, left, right)


def between(term: Term, low: Term, high: Term) -> Term:
    """Return the term `low <= term <= high`. Raise `IllegalFilter` if it can never be true."""
    if (
        isinstance(low.constant, Decimal)
        and isinstance(high.constant, Decimal)
        and low.constant > high.constant
    ):
        raise illegal(low.place, f"BETWEEN {low.constant} AND {high.constant} has the greater number first.")
    return every([ordered(">=", term, low), ordered("<=", term, high)])


def one_of(term: Term, members: list[Term]) -> Term:
    """Return the term `term IN (members)` for a property. Raise `IllegalFilter` for any other term."""
    if term.kind is not Kind.PROPERTY:
        raise illegal(term.place, f"IN asks for a property before it, not {term.kind.value}.")
    value = term.value
    texts = frozenset(one.constant for one in members if isinstance(one.constant, str))
    numbers = frozenset(one.constant for one in members if isinstance(one.constant, Decimal))

    def holds(given: Given) -> Truth:
        text = value(given)
        if not isinstance(text, str) or text in texts:
            return None if text is None else True
        # If the list contains a number, the result for a string that is not a number is unknown, as for `=`.
        read = number(text) if numbers else None
        return read in numbers if read is not None or not numbers else None

    # A list that contains a number has no tags, because 5 equals '5', '5.0', and '05', which have different
    # hashes.
    tags = texts if term.name == property_names.TAG and not numbers else None
    return _joined(Kind.TRUTH, holds, term, tags=tags)


def part(word: str, term: Term, sought: str) -> Term:
    """Return a term that tests whether a string contains, begins with, or ends with `sought`.

    If `sought` is empty, the term is unknown.
    """
    if term.kind not in (Kind.PROPERTY, Kind.TEXT):
        raise illegal(term.place, f"{word} asks for a property or a text before it, not {term.kind.value}.")
    value, has = term.value, _PARTS[word]

    def holds(given: Given) -> Truth:
        text = value(given)
        return has(text, sought) if isinstance(text, str) and sought else None

    passes = 1 + _overlaps(sought) // _COMPARED_PER_PASS if word == "CONTAINS" else 0
    return _joined(Kind.TRUTH, holds, term, passes=passes)


def is_null(term: Term) -> Term:
    """Return the term `term IS NULL`. It is true for missing properties and unknown Boolean values."""
    value = term.value
    return _joined(Kind.TRUTH, lambda given: value(given) is None, term)


def negation(term: Term) -> Term:
    """Return the term `NOT term`. NOT of unknown is unknown."""
    # `tags` is not set, because a negated term may be true for any tag.
    of = truth(term)

    def holds(given: Given) -> Truth:
        verdict = of(given)
        return None if verdict is None else not verdict

    return _joined(Kind.TRUTH, holds, term)


def every(terms: list[Term]) -> Term:
    """Return the conjunction (AND) of terms.

    It is false if any term is false, unknown if none is false but any is unknown, and true otherwise.
    """
    # All terms must be true, so a matching tag must be in the `tags` of every term that has tags.
    known = [term.tags for term in terms if term.tags is not None]
    tags = frozenset.intersection(*known) if known else None
    return _joined(Kind.TRUTH, _until(False, map(truth, terms)), *terms, tags=tags)


def any_of(terms: list[Term]) -> Term:
    """Return the disjunction (OR) of terms.

    It is true if any term is true, unknown if none is true but any is unknown, and false otherwise.
    """
    # One true term is sufficient, so a term without tags may match any tag.
    known = [term.tags for term in terms if term.tags is not None]
    tags = frozenset().union(*known) if len(known) == len(terms) else None
    return _joined(Kind.TRUTH, _until(True, map(truth, terms)), *terms, tags=tags)


def truth(term: Term) -> Verdict:
    """Return the term as a Boolean. Raise `IllegalFilter` for a string or a number."""
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
    """Return a function that combines the results of `verdicts`.

    It returns `decisive` if any result is `decisive`, unknown if none is but any is unknown, and otherwise
    the negation of `decisive`.
    """
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
    """Return the tag in a comparison such as `TAGS = 'text'`, or None."""
    if tested.name == property_names.TAG and isinstance(wanted.constant, str):
        return frozenset({wanted.constant})
    return None


def _overlaps(sought: str) -> int:
    """Return the maximum number of prefixes of a string that can overlap at different positions.

    This is the length of the longest chain of borders (Knuth, Morris, Pratt 1977). The first border is the
    string itself. Each further border is the longest proper prefix of the previous one that is also its
    suffix.
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
    """Return a combined term.

    Raise `IllegalFilter` if the term is too large, too deeply nested, or too expensive.
    """
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
