"""The mutants of a Python source: each is one small fault, of a kind that people make.

    comparison   < for <=, == for !=, in for not in
    condition    a test turned round, one operand of `and` or `or` left out, `and` for `or`
    constant     a number up to 16 one more or one less, a larger one doubled; True for False
    operator     + for -, * for //, & for |, also in += and its like
    statement    a call, an assignment to an attribute or item, a raise, return, break or continue: `pass`
    argument     one keyword left out; of calls such as `get(a, b)` the last positional argument

A mutant replaces a range of the source's bytes, so all around it stays as it is written. Left alone are
annotations, decorators, assertions, strings, f-strings (Python 3.11 does not say where their parts are), and
what nearly any test sees: assignments to names, arguments that a function requires, `/` (of paths) and `|`.

Limitation: a mutant may be equivalent to the source, or harmless; that is judged by hand.
"""

from __future__ import annotations

import ast
import difflib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

KINDS: Final = ("argument", "comparison", "condition", "constant", "operator", "statement")
SMALL_MAX: Final = 16

_COMPARISONS: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATORS: Final[Mapping[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr,
}  # fmt: skip
_NEED_NOT_HAVE_LAST: Final = frozenset(
    ("find", "get", "getattr", "index", "int", "next", "pop", "range", "round", "rsplit", "split", "sum")
)
"""Calls of Python's whose last argument may be left out."""
_CALLS: Final = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom)
_DELETED: Final = (ast.AugAssign, ast.Raise, ast.Return, ast.Break, ast.Continue, ast.Delete)


@dataclass(frozen=True, slots=True, order=True)
class Mutant:
    """One fault: `text` in place of the bytes from `start` to `end` of the source at `path`."""

    path: str
    start: int
    end: int
    kind: str
    text: str

    def applied(self, source: bytes) -> bytes:
        """Return the source with the fault."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    def place(self, source: bytes) -> str:
        """Return `path:line`."""
        return f"{self.path}:{source.count(10, 0, self.start) + 1}"

    def diff(self, source: bytes) -> str:
        """Return the fault as a unified diff."""
        before, after = (text.decode().splitlines(True) for text in (source, self.applied(source)))
        return "".join(difflib.unified_diff(before, after, f"a/{self.path}", f"b/{self.path}"))


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Return every mutant of a source, in the order of its bytes; raise SyntaxError."""
    return sorted(set(_Source(path, source).mutants()))


def drawn(sources: Mapping[str, bytes], count: int, seed: str) -> list[Mutant]:
    """Return up to `count` mutants: a kind at random each time, then one of it; all are valid Python."""
    chance, kinds = random.Random(seed), {kind: list[Mutant]() for kind in KINDS}
    for path in sorted(sources):
        for mutant in mutants_of(path, sources[path]):
            kinds[mutant.kind].append(mutant)
    found: list[Mutant] = []
    while len(found) < count and (left := [kind for kind in KINDS if kinds[kind]]):
        many = kinds[chance.choice(left)]
        mutant = many.pop(chance.randrange(len(many)))
        if is_fault(mutant, sources[mutant.path]):
            found.append(mutant)
    return found


def is_fault(mutant: Mutant, source: bytes) -> bool:
    """Tell whether the source with the fault is Python, and another program."""
    try:
        return ast.dump(ast.parse(mutant.applied(source))) != ast.dump(ast.parse(source))
    except SyntaxError:  # such as an argument that has brackets of its own
        return False


class _Source:
    def __init__(self, path: str, source: bytes) -> None:
        self._path, self._source = path, source
        self._lines = [0, *accumulate(len(line) for line in source.splitlines(keepends=True))]

    def mutants(self) -> Iterator[Mutant]:
        for node in _nodes(ast.parse(self._source)):
            yield from self._of(node)

    def _of(self, node: ast.AST) -> Iterator[Mutant]:
        match node:
            case ast.Compare():
                yield from self._comparisons(node)
            case ast.BoolOp():
                yield from self._operands(node)
            case ast.Constant():
                yield from (self._mutant("constant", node, repr(value)) for value in _others(node.value))
            case ast.BinOp() | ast.AugAssign():
                yield from self._operators(node)
            case ast.Call():
                yield from self._arguments(node)
        for test in _tests(node):
            yield self._turned(test)
        if _is_deletable(node):
            yield self._mutant("statement", node, "pass")

    def _comparisons(self, node: ast.Compare) -> Iterator[Mutant]:
        for n, one in enumerate(node.ops):
            ops = [*node.ops[:n], _COMPARISONS[type(one)](), *node.ops[n + 1 :]]
            yield self._mutant("comparison", node, ast.unparse(ast.Compare(node.left, ops, node.comparators)))

    def _operands(self, node: ast.BoolOp) -> Iterator[Mutant]:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield self._mutant("condition", node, f"({ast.unparse(ast.BoolOp(other, node.values))})")
        for n in range(len(node.values)):
            kept = [*node.values[:n], *node.values[n + 1 :]]
            left = kept[0] if len(kept) == 1 else ast.BoolOp(node.op, kept)
            yield self._mutant("condition", node, f"({ast.unparse(left)})")

    def _turned(self, test: ast.expr) -> Mutant:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self._mutant("condition", test, f"({ast.unparse(test.operand)})")
        return self._mutant("condition", test, f"(not ({self._text(test)}))")

    def _operators(self, node: ast.BinOp | ast.AugAssign) -> Iterator[Mutant]:
        if (other := _OPERATORS.get(type(node.op))) is None:
            return
        if isinstance(node, ast.AugAssign):
            yield self._mutant("operator", node, ast.unparse(ast.AugAssign(node.target, other(), node.value)))
        else:
            yield self._mutant(
                "operator", node, f"({ast.unparse(ast.BinOp(node.left, other(), node.right))})"
            )

    def _arguments(self, node: ast.Call) -> Iterator[Mutant]:
        given, called = [*node.args, *node.keywords], ast.unparse(node.func).rpartition(".")[2]
        for n, one in enumerate(given):
            is_last_of_many = one in node.args and 1 < len(node.args) == n + 1
            is_named = isinstance(one, ast.keyword) and one.arg not in (
                None,
                "strict",
            )  # that is an assertion
            if not (is_named or (is_last_of_many and called in _NEED_NOT_HAVE_LAST)):
                continue
            start = self._range(given[n - 1])[1] if n else self._range(one)[0]
            end = self._range(given[1])[0] if n == 0 and len(given) > 1 else self._range(one)[1]
            yield Mutant(self._path, start, end, "argument", "")

    def _mutant(self, kind: str, node: ast.AST, text: str) -> Mutant:
        return Mutant(self._path, *self._range(node), kind, text)

    def _text(self, node: ast.AST) -> str:
        start, end = self._range(node)
        return self._source[start:end].decode()

    def _range(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.stmt | ast.expr | ast.keyword)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._lines[node.lineno - 1] + node.col_offset
        return start, self._lines[node.end_lineno - 1] + node.end_col_offset


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes whose faults are looked for, those of what is left alone not."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and not isinstance(node, ast.Assert | ast.JoinedStr):
                yield node
                yield from _nodes(node)


def _tests(node: ast.AST) -> Sequence[ast.expr]:
    match node:
        case ast.If() | ast.While() | ast.IfExp():
            return [node.test]
        case ast.comprehension():
            return node.ifs
    return []


def _others(value: object) -> Sequence[object]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1] if value <= SMALL_MAX else [value * 2]
    return [value * 2] if isinstance(value, float) and value else []


def _is_deletable(node: ast.AST) -> bool:
    match node:
        case ast.Expr():
            return isinstance(node.value, _CALLS)
        case ast.Assign():
            return all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    return isinstance(node, _DELETED)
