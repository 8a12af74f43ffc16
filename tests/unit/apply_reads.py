"""What functions of the core read that is in no record: settings, limits and constants, found in the sources.

From some functions on, what they call is followed by types: annotations of parameters, attributes and
returns, and what `__init__` assigns. A container is taken for what it holds. Every method of a reached type
whose name is loaded counts as called.

    limits.X                read of `commitlog.limits`
    settings.X              read of a field of `BrokerSettings`
    Class.x                 read of an attribute that `__init__` made of settings, limits or a plain parameter
    module.NAME_MAX         read of a constant whose name ends as those of bounds and times do

Weak spot: calls that no annotation tells of, such as those of values in a `dict[str, Any]`, are not followed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE = ("commitlog", "consumequeue", "timingwheel", "txn", "services/broker")
BOUNDS = ("_MAX", "_MIN", "_MS", "_COUNT", "_DEFAULT", "_KEPT", "_BYTES")
PLAIN = {"int", "str", "bool", "float"}
SETTINGS = "BrokerSettings"

Function = ast.FunctionDef
Types = frozenset[str]
NONE: Types = frozenset()


@dataclass(slots=True)
class Class:
    """A class of the core."""

    module: str
    node: ast.ClassDef
    methods: dict[str, Function]
    attributes: dict[str, Types] = field(default_factory=dict)
    configured: set[str] = field(default_factory=set)
    """The attributes that `__init__` makes of settings, limits or plain parameters."""


class Core:
    """The sources of the core, and what of them is reached."""

    def __init__(self) -> None:
        self.trees = dict(_trees())
        self.classes: dict[str, Class] = {}
        self.functions: dict[tuple[str, str], Function] = {}
        self.constants: set[tuple[str, str]] = set()
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
                self.classes[node.name] = Class(module, node, methods)
            elif isinstance(node, ast.AnnAssign) and ast.unparse(node.target).endswith(BOUNDS):
                self.constants.add((module, ast.unparse(node.target)))

    @cached_property
    def imports(self) -> dict[str, dict[str, tuple[str, str]]]:
        """By module and name: the module that the name is from, and its name there; "" for a module."""
        found: dict[str, dict[str, tuple[str, str]]] = {}
        for module, tree in self.trees.items():
            names = found.setdefault(module, {})
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom):
                    for one in node.names:
                        whole = f"{node.module}.{one.name}"
                        is_module = whole in self.trees
                        names[one.asname or one.name] = (
                            (whole, "") if is_module else (node.module or "", one.name)
                        )
        return found

    def named(self, annotation: ast.expr | None) -> Types:
        """Return the classes of the core that an annotation mentions."""
        if annotation is None:
            return NONE
        words = {one.id for one in ast.walk(annotation) if isinstance(one, ast.Name)}
        return frozenset(words & self.classes.keys())

    def _type_attributes(self, one: Class) -> None:
        for node in one.node.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                one.attributes[node.target.id] = self.named(node.annotation)
        for method in one.methods.values():
            scope = Scope(self, one, method)
            for node in ast.walk(method):
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
                    name = node.target.attr
                    one.attributes[name] = one.attributes.get(name, NONE) | self.named(node.annotation)
            for place, value in scope.assigned():
                if _is_own(place):
                    one.attributes[place.attr] = one.attributes.get(place.attr, NONE) | scope.types(value)
                    if method.name == "__init__" and scope.is_configured(value):
                        one.configured.add(place.attr)

    def reads(self, roots: list[tuple[str, str]], reached_min: int = 100) -> dict[str, set[str]]:
        """Return what is read, and by which functions, from methods (class, name) on."""
        found: dict[str, set[str]] = {}
        seen: set[tuple[str, str]] = set()
        waiting = [(owner, name) for owner, name in roots]
        while waiting:
            owner, name = place = waiting.pop()
            if place in seen:
                continue
            seen.add(place)
            one = self.classes.get(owner)
            function = self.functions[owner, name] if one is None else one.methods[name]
            scope = Scope(self, one, function, owner if one is None else one.module)
            for what in scope.read():
                found.setdefault(what, set()).add(f"{owner.rpartition('.')[2]}.{name}")
            waiting += scope.called()
        assert len(seen) >= reached_min, "little is reached: is the walk blind?"
        return found


class Scope:
    """The names of one function, and their types."""

    def __init__(self, core: Core, owner: Class | None, function: Function, module: str = "") -> None:
        self._core, self._owner, self._function = core, owner, function
        self._module = module or (owner.module if owner else "")
        self._imports = core.imports[self._module]
        arguments = function.args
        given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        self._types: dict[str, Types] = {one.arg: core.named(one.annotation) for one in given}
        self._plain = {
            one.arg for one in given if one.annotation is not None and ast.unparse(one.annotation) in PLAIN
        }
        if owner is not None and given and given[0].arg in ("self", "cls"):
            self._types[given[0].arg] = frozenset((owner.node.name,))
        for _ in range(2):
            self._bind()

    def _bind(self) -> None:
        for node in ast.walk(self._function):
            if isinstance(node, ast.For | ast.comprehension):
                self._name(node.target, self.types(node.iter))
            elif isinstance(node, ast.NamedExpr):
                self._name(node.target, self.types(node.value))
        for place, value in self.assigned():
            self._name(place, self.types(value))

    def _name(self, target: ast.expr, types: Types) -> None:
        for one in ast.walk(target):
            if isinstance(one, ast.Name) and types:
                self._types[one.id] = self._types.get(one.id, NONE) | types

    def assigned(self) -> Iterator[tuple[ast.expr, ast.expr]]:
        for node in ast.walk(self._function):
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

    def types(self, node: ast.expr) -> Types:
        """Return the classes of the core that an expression may be of."""
        if isinstance(node, ast.Name):
            if node.id in self._types:
                return self._types[node.id]
            return frozenset((node.id,)) if node.id in self._core.classes else NONE
        if isinstance(node, ast.Attribute):
            return self._of_attribute(node)
        if isinstance(node, ast.Call):
            return self._of_call(node)
        if isinstance(node, ast.Subscript | ast.Starred | ast.NamedExpr):
            return self.types(node.value)
        parts = [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
        if isinstance(node, ast.IfExp | ast.BoolOp | ast.List | ast.Tuple | ast.Dict | ast.Set):
            return NONE.union(*map(self.types, parts))
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            return self.types(node.elt)
        return self.types(node.value) if isinstance(node, ast.DictComp) else NONE

    def _of_attribute(self, node: ast.Attribute) -> Types:
        owners = self.types(node.value)
        found = NONE
        for owner in owners:
            one = self._core.classes[owner]
            found |= one.attributes.get(node.attr, NONE)
            if node.attr in one.methods:
                found |= self._core.named(one.methods[node.attr].returns)
        known = any(self._has(owner, node.attr) for owner in owners)
        return found if known else owners  # `.get`, `.values` of a container: what it holds

    def _has(self, owner: str, name: str) -> bool:
        one = self._core.classes[owner]
        return name in one.attributes or name in one.methods

    def _of_call(self, node: ast.Call) -> Types:
        if isinstance(node.func, ast.Name) and node.func.id not in self._types:
            if node.func.id in self._core.classes:
                return frozenset((node.func.id,))
            place = self._function_named(node.func.id)
            if place is not None:
                return self._core.named(self._core.functions[place].returns)
            return NONE.union(*map(self.types, node.args))  # `iter`, `list`, `next` ...
        return self.types(node.func)

    def _function_named(self, name: str) -> tuple[str, str] | None:
        place = self._imports.get(name, (self._module, name))
        return place if place in self._core.functions else None

    def is_configured(self, value: ast.expr) -> bool:
        """Return whether a value is made of settings, limits, or parameters of plain types."""
        for one in ast.walk(value):
            if isinstance(one, ast.Attribute) and SETTINGS in self.types(one.value):
                return True
            if isinstance(one, ast.Name) and (one.id in self._plain or [*self._read_name(one.id)]):
                return True
        return any(isinstance(one, ast.Name) and one.id == "limits" for one in ast.walk(value))

    def called(self) -> Iterator[tuple[str, str]]:
        """Yield the methods and functions that are loaded: (class or module, name)."""
        for node in ast.walk(self._function):
            if isinstance(node, ast.Attribute):
                yield from self._loaded(node)
            elif isinstance(node, ast.Name) and node.id not in self._types:
                if (place := self._function_named(node.id)) is not None:
                    yield place
                yield from self._made(node.id)

    def _loaded(self, node: ast.Attribute) -> Iterator[tuple[str, str]]:
        if isinstance(node.value, ast.Name) and self._imports.get(node.value.id, ("", "x"))[1] == "":
            module = self._imports[node.value.id][0]
            if (module, node.attr) in self._core.functions:
                yield module, node.attr
            if node.attr in self._core.classes:
                yield from self._made(node.attr)
        for owner in self.types(node.value):
            if node.attr in self._core.classes[owner].methods:
                yield owner, node.attr

    def _made(self, name: str) -> Iterator[tuple[str, str]]:
        one = self._core.classes.get(name)
        for method in ("__init__", "__post_init__") if one is not None else ():
            if method in one.methods:  # type: ignore[union-attr]
                yield name, method

    def read(self) -> Iterator[str]:
        """Yield what the function reads that is configured, or constant."""
        for node in ast.walk(self._function):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                yield from self._read_attribute(node)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                yield from self._read_name(node.id)

    def _read_attribute(self, node: ast.Attribute) -> Iterator[str]:
        if isinstance(node.value, ast.Name) and node.value.id == "limits":
            yield f"limits.{node.attr}"
        for owner in self.types(node.value):
            if owner == SETTINGS:
                yield f"settings.{node.attr}"
            elif node.attr in self._core.classes[owner].configured:
                yield f"{owner}.{node.attr}"

    def _read_name(self, name: str) -> Iterator[str]:
        module, original = self._imports.get(name, (self._module, name))
        if module == "commitlog.limits" and original:
            yield f"limits.{original}"
        elif (module, original) in self._core.constants:
            yield f"{module.rpartition('.')[2]}.{original}"
        one = self._core.classes.get(name)
        if one is not None and name not in self._types:  # made: its fields' defaults count
            for node in one.node.body:
                value = node.value if isinstance(node, ast.AnnAssign) else None
                for part in ast.walk(value) if value is not None else ():
                    if isinstance(part, ast.Attribute) and ast.unparse(part.value) == "limits":
                        yield f"limits.{part.attr}"


def _trees() -> Iterator[tuple[str, ast.Module]]:
    for folder in CORE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            yield module, ast.parse(path.read_text())


def _is_own(place: ast.expr) -> bool:
    return isinstance(place, ast.Attribute) and isinstance(place.value, ast.Name) and place.value.id == "self"
