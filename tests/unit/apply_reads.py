"""What functions of the core read that is in no record, found in the sources.

From some functions on, what they call is followed by types: annotations of parameters, attributes and
returns, and what `__init__` assigns. A container is taken for what it holds. Every method of a reached type
whose name is loaded counts as called, and of a value of no known type every method of that name.

    limits.X                read of `commitlog.limits`
    settings.X              read of a field of `BrokerSettings`
    Class.x                 read of an attribute that `__init__` made of settings, limits or a plain
                            parameter, or any method of a `now_ms`
    module.NAME_MAX         read of a constant whose name ends as those of bounds and times do
    disk.X                  call of a method of `Disk`
    clock                   use of the system's clock
    Class.f(now_ms)         a function that is given the time
    Class.x()               call of a function that an attribute holds: any

Limitation: of what a variable holds that is no attribute, only methods are followed, no functions.
"""

from __future__ import annotations

import ast
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).parents[2]
CORE = ("commitlog", "consumequeue", "timingwheel", "txn", "services/auth", "services/broker")
BOUNDS = ("_MAX", "_MIN", "_MS", "_COUNT", "_DEFAULT", "_KEPT", "_BYTES")
CONTAINERS = {
    "defaultdict", "deque", "dict", "frozenset", "list", "set", "tuple",
    "Collection", "Iterable", "Iterator", "Mapping", "Sequence",
}  # fmt: skip
HELD = "held "
"""Before the name of a class: a container of it."""
TYPES_FROM_ELSEWHERE = (array, bytes, deque, dict, int, list, set, str, np.ndarray, NamedTuple("Row", []))
BUILT_IN = {name for one in TYPES_FROM_ELSEWHERE for name in dir(one)}
CLOCKS = {"now", "utcnow", "today"}
NOW = "now_ms"
PLAIN = {"int", "str", "bool", "float"}
SETTINGS = "BrokerSettings"
DISK = "Disk"

Function = ast.FunctionDef
Types = frozenset[str]
NONE: Types = frozenset()


@dataclass(slots=True)
class Class:
    """A class of the core."""

    name: str
    """Its own name; behind its module where another class of the core has that name, too."""
    module: str
    node: ast.ClassDef
    methods: dict[str, Function]
    attributes: dict[str, Types] = field(default_factory=dict)
    configured: set[str] = field(default_factory=set)
    """The attributes that `__init__` makes of settings, limits or plain parameters, or any method of now."""


class Core:
    """The sources of the core, and what of them is reached."""

    def __init__(self, trees: dict[str, ast.Module] | None = None) -> None:
        self.trees = trees or parsed()
        self._nodes: dict[Function, list[ast.AST]] = {}
        self.classes: dict[str, Class] = {}
        self.functions: dict[tuple[str, str], Function] = {}
        self.constants: set[tuple[str, str]] = set()
        self.homes: dict[tuple[str, str], str] = {}
        for module, tree in self.trees.items():
            self._define(module, tree)
        for _ in range(3):  # types of attributes rest on types of others
            for one in self.classes.values():
                self._type_attributes(one)

    def _define(self, module: str, tree: ast.Module) -> None:
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                self.functions[module, node.name] = node
            elif isinstance(node, ast.ClassDef):
                methods = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
                name = f"{module}.{node.name}" if node.name in self.classes else node.name
                self.homes[module, node.name] = name
                self.classes[name] = Class(name, module, node, methods)
            elif isinstance(node, ast.AnnAssign) and ast.unparse(node.target).endswith(BOUNDS):
                self.constants.add((module, ast.unparse(node.target)))

    @cached_property
    def imports(self) -> dict[str, dict[str, tuple[str, str]]]:
        """By module and name: the module that the name is from, and its name there; "" for a module."""
        found: dict[str, dict[str, tuple[str, str]]] = {}
        for module, tree in self.trees.items():
            names = found.setdefault(module, {})
            for node in ast.walk(tree):
                if isinstance(node, ast.Import):
                    names |= {one.asname or one.name: (one.name, "") for one in node.names}
                elif isinstance(node, ast.ImportFrom):
                    for one in node.names:
                        whole = f"{node.module}.{one.name}"
                        is_module = whole in self.trees
                        names[one.asname or one.name] = (
                            (whole, "") if is_module else (node.module or "", one.name)
                        )
        return found

    def nodes(self, function: Function) -> list[ast.AST]:
        """Return all nodes of a function, walked once."""
        if function not in self._nodes:
            self._nodes[function] = [*ast.walk(function)]
        return self._nodes[function]

    def home(self, module: str, name: str) -> tuple[str, str]:
        """Return the module that defines what is called so in a module, and its name there."""
        place = module, name
        while (imported := self.imports.get(place[0], {}).get(place[1])) is not None and imported != place:
            place = imported
        return place

    def class_named(self, module: str, name: str) -> str:
        """Return the class of the core that is called so in a module; "" for none."""
        return self.homes.get(self.home(module, name), "")

    def named(self, module: str, annotation: ast.expr | None) -> Types:
        """Return the classes of the core that an annotation mentions."""
        if annotation is None:
            return NONE
        if isinstance(annotation, ast.BinOp):
            return self.named(module, annotation.left) | self.named(module, annotation.right)
        words = {one.id for one in ast.walk(annotation) if isinstance(one, ast.Name)}
        held = isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) in CONTAINERS
        found = {self.class_named(module, one) for one in words} - {""}
        return frozenset(f"{HELD * held}{one}" for one in found)

    def _type_attributes(self, one: Class) -> None:
        for node in one.node.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                one.attributes[node.target.id] = self.named(one.module, node.annotation)
        for method in one.methods.values():
            scope = Scope(self, one, method)
            for place, types in scope.annotated():
                if _is_own(place):
                    one.attributes[place.attr] = one.attributes.get(place.attr, NONE) | types
            for place, value in scope.assigned():
                if _is_own(place):
                    one.attributes[place.attr] = one.attributes.get(place.attr, NONE) | scope.types(value)
                    if scope.is_of_now(value) or (method.name == "__init__" and scope.is_configured(value)):
                        one.configured.add(place.attr)

    def reads(self, roots: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
        """Return what is read, and by which functions, from methods (class, name) on."""
        found: dict[str, set[str]] = {}
        for place, scope in self.reached(roots).items():
            for what in scope.read():
                found.setdefault(what, set()).add(".".join(place))
        return found

    def reached(self, roots: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Scope]:
        """Return the methods and functions that are called, from methods (class, name) on."""
        seen: dict[tuple[str, str], Scope] = {}
        waiting = [*roots]
        while waiting:
            owner, name = place = waiting.pop()
            if place in seen:
                continue
            one = self.classes.get(owner)
            function = self.functions[place] if one is None else one.methods[name]
            seen[place] = scope = Scope(self, one, function, owner if one is None else one.module)
            waiting += scope.called()
        return seen


class Scope:
    """The names of one function, and their types."""

    def __init__(self, core: Core, owner: Class | None, function: Function, module: str = "") -> None:
        self._core, self._owner, self._function = core, owner, function
        self._nodes = core.nodes(function)
        self._module = module or (owner.module if owner else "")
        self._imports = core.imports[self._module]
        arguments = function.args
        given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        self._types: dict[str, Types] = {one.arg: core.named(self._module, one.annotation) for one in given}
        self._given = {one.arg for one in given}
        self._plain = {
            one.arg for one in given if one.annotation is not None and ast.unparse(one.annotation) in PLAIN
        }
        if owner is not None and given and given[0].arg in ("self", "cls"):
            self._types[given[0].arg] = frozenset((owner.name,))
        for _ in range(2):
            self._bind()

    def _bind(self) -> None:
        for node in self._nodes:
            if isinstance(node, ast.For | ast.comprehension):
                self._name(node.target, _taken_out(self.types(node.iter)))
            elif isinstance(node, ast.NamedExpr):
                self._name(node.target, self.types(node.value))
        for place, value in self.assigned():
            self._name(place, self.types(value))
        for place, types in self.annotated():
            self._name(place, types)

    def _name(self, target: ast.expr, types: Types) -> None:
        while isinstance(target, ast.Subscript | ast.Starred):
            target = target.value
        if isinstance(target, ast.Attribute):
            return
        for one in ast.walk(target):
            if isinstance(one, ast.Name) and types:
                self._types[one.id] = self._types.get(one.id, NONE) | types

    def assigned(self) -> Iterator[tuple[ast.expr, ast.expr]]:
        for node in self._nodes:
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AnnAssign) and node.value is not None:
                targets, value = [node.target], node.value
            elif isinstance(node, ast.Assign):
                value = node.value
            for target in targets:
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    yield from zip(target.elts, value.elts, strict=True)
                elif isinstance(target, ast.Tuple):
                    yield from ((one, value) for one in target.elts)
                else:
                    yield target, value

    def annotated(self) -> Iterator[tuple[ast.expr, Types]]:
        for node in self._nodes:
            if isinstance(node, ast.AnnAssign):
                yield node.target, self._core.named(self._module, node.annotation)

    def types(self, node: ast.expr) -> Types:
        """Return the classes of the core that an expression may be of."""
        if isinstance(node, ast.Name):
            if node.id in self._types:
                return self._types[node.id]
            return frozenset({self._core.class_named(self._module, node.id)} - {""})
        if isinstance(node, ast.Attribute):
            return self._of_attribute(node)
        if isinstance(node, ast.Call):
            return self._of_call(node)
        if isinstance(node, ast.Subscript | ast.Starred):
            return _taken_out(self.types(node.value))
        if isinstance(node, ast.NamedExpr):
            return self.types(node.value)
        parts = [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
        if isinstance(node, ast.IfExp | ast.BoolOp | ast.List | ast.Tuple | ast.Dict | ast.Set):
            return NONE.union(*map(self.types, parts))
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            return self.types(node.elt)
        return self.types(node.value) if isinstance(node, ast.DictComp) else NONE

    def _of_attribute(self, node: ast.Attribute) -> Types:
        types = self.types(node.value)
        owners, found = types & self._core.classes.keys(), NONE
        for owner in owners:
            one = self._core.classes[owner]
            found |= one.attributes.get(node.attr, NONE)
            if node.attr in one.methods:
                found |= self._core.named(one.module, one.methods[node.attr].returns)
        known = any(self._has(owner, node.attr) for owner in owners)
        return found if known else _taken_out(types)  # `.get`, `.values` of a container: what it holds

    def _has(self, owner: str, name: str) -> bool:
        one = self._core.classes[owner]
        return name in one.attributes or name in one.methods

    def _of_call(self, node: ast.Call) -> Types:
        if isinstance(node.func, ast.Name) and node.func.id not in self._types:
            if name := self._core.class_named(self._module, node.func.id):
                return frozenset((name,))
            place = self._function_named(node.func.id)
            if place is not None:
                return self._core.named(place[0], self._core.functions[place].returns)
            return _taken_out(NONE.union(*map(self.types, node.args)))  # `iter`, `list`, `next` ...
        return self.types(node.func)

    def _function_named(self, name: str) -> tuple[str, str] | None:
        place = self._core.home(self._module, name)
        return place if place in self._core.functions else None

    def is_configured(self, value: ast.expr) -> bool:
        """Return whether a value is made of settings, limits, or parameters of plain types."""
        for one in ast.walk(value):
            if isinstance(one, ast.Attribute) and SETTINGS in self.types(one.value):
                return True
            if isinstance(one, ast.Name) and (one.id in self._plain or [*self._read_name(one.id)]):
                return True
        return any(isinstance(one, ast.Name) and one.id == "limits" for one in ast.walk(value))

    def is_of_now(self, value: ast.expr) -> bool:
        """Return whether a value is a time that is made of the present."""
        return not self.types(value) and any(
            isinstance(one, ast.Name) and one.id == NOW for one in ast.walk(value)
        )

    def called(self) -> Iterator[tuple[str, str]]:
        """Yield the methods and functions that are loaded: (class or module, name)."""
        for node in self._nodes:
            if isinstance(node, ast.Attribute):
                yield from self._loaded(node)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                yield from self._called_of_unknown(node.func)
            elif isinstance(node, ast.Name) and node.id not in self._types:
                if (place := self._function_named(node.id)) is not None:
                    yield place
                yield from self._made(self._core.class_named(self._module, node.id))

    def _loaded(self, node: ast.Attribute) -> Iterator[tuple[str, str]]:
        if module := self._module_of(node.value):
            if (module, node.attr) in self._core.functions:
                yield module, node.attr
            yield from self._made(self._core.class_named(module, node.attr))
        for owner in self.types(node.value) & self._core.classes.keys():
            if node.attr in self._core.classes[owner].methods:
                yield owner, node.attr

    def _called_of_unknown(self, method: ast.Attribute) -> Iterator[tuple[str, str]]:
        if method.attr not in BUILT_IN and not self.types(method.value) and not self._module_of(method.value):
            for name, one in self._core.classes.items():
                if method.attr in one.methods:
                    yield name, method.attr

    def _module_of(self, node: ast.expr) -> str:
        """Return the module that a name stands for; "" for none."""
        name, inside = self._imports.get(node.id, ("", "")) if isinstance(node, ast.Name) else ("", "")
        return "" if inside else name

    def _made(self, name: str) -> Iterator[tuple[str, str]]:
        one = self._core.classes.get(name)
        for method in ("__init__", "__post_init__") if one is not None else ():
            if method in one.methods:  # type: ignore[union-attr]
                yield name, method

    def read(self) -> Iterator[str]:
        """Yield what the function reads that is configured, or constant, a clock, or the disk."""
        if NOW in self._given:
            owner = self._owner.name if self._owner else self._module.rpartition(".")[2]
            yield f"{owner}.{self._function.name}({NOW})"
        for node in self._nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                yield from self._read_by_call(node.func)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                yield from self._read_attribute(node)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                yield from self._read_name(node.id)

    def _read_attribute(self, node: ast.Attribute) -> Iterator[str]:
        if isinstance(node.value, ast.Name) and node.value.id == "limits":
            yield f"limits.{node.attr}"
        if node.attr in CLOCKS and ast.unparse(node.value) in ("datetime", "date"):
            yield "clock"
        for owner in self.types(node.value) & self._core.classes.keys():
            if owner in (SETTINGS, DISK):
                yield f"{owner.removeprefix('Broker').lower()}.{node.attr}"
            elif node.attr in self._core.classes[owner].configured:
                yield f"{owner}.{node.attr}"

    def _read_by_call(self, method: ast.Attribute) -> Iterator[str]:
        owners = sorted(self.types(method.value) & self._core.classes.keys())
        is_method = any(method.attr in self._core.classes[owner].methods for owner in owners)
        if owners and not is_method and method.attr not in BUILT_IN:
            yield f"{owners[0]}.{method.attr}()"

    def _read_name(self, name: str) -> Iterator[str]:
        module, original = self._core.home(self._module, name)
        if module == "commitlog.limits" and original:
            yield f"limits.{original}"
        elif module == "time":
            yield "clock"
        elif (module, original) in self._core.constants:
            yield f"{module.rpartition('.')[2]}.{original}"
        one = self._core.classes.get(self._core.class_named(self._module, name))
        if one is not None and name not in self._types:  # made: its fields' defaults count
            for node in one.node.body:
                value = node.value if isinstance(node, ast.AnnAssign) else None
                for part in ast.walk(value) if value is not None else ():
                    if isinstance(part, ast.Attribute) and ast.unparse(part.value) == "limits":
                        yield f"limits.{part.attr}"


def _taken_out(types: Types) -> Types:
    return frozenset(one.removeprefix(HELD) for one in types)


def parsed() -> dict[str, ast.Module]:
    """Return the sources of the core by module."""
    paths = [path for folder in CORE for path in sorted((ROOT / folder).rglob("*.py"))]
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): ast.parse(path.read_text()) for path in paths
    }


def _is_own(place: ast.expr) -> bool:
    return isinstance(place, ast.Attribute) and isinstance(place.value, ast.Name) and place.value.id == "self"
