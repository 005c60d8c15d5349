"""Finds public names in the sources of the package, with their signatures and docstrings.

Nothing is imported: the text of the sources is enough, so the answer is the same on every version of
Python, whatever is installed. A signature is returned as it is written in its source.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

Function = ast.FunctionDef | ast.AsyncFunctionDef
T = TypeVar("T")

PACKAGE = "millstream"
PROPERTIES = {"property", "cached_property"}
DECORATORS = {"overload", "classmethod", "staticmethod", "contextmanager", "asynccontextmanager"}
"""Decorators that a caller must know of."""
OPERATORS = {"__len__", "__getitem__", "__iter__", "__contains__", "__bool__", "__call__"}
"""Special methods that are members of a class for its users, if they have a docstring."""


class NoSuchName(Exception):
    """A name that is looked up is not in the sources."""


@dataclass(frozen=True)
class Module:
    """A module of the package: its name below the package, and its text."""

    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed text."""
        return ast.parse(self.text)

    @cached_property
    def lines(self) -> list[bytes]:
        """The lines of the text, in bytes: the columns of nodes count bytes."""
        return self.text.encode().splitlines()

    @cached_property
    def definitions(self) -> dict[str, ast.stmt]:
        """Classes, functions and assignments at the top level, by name."""
        definitions: dict[str, ast.stmt] = {}
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef | Function):
                definitions[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                definitions[node.targets[0].id] = node
        return definitions

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """Names that other modules of the package define: their module, and their name there."""
        return {
            alias.asname or alias.name: (below_package(node.module), alias.name)
            for node in self.tree.body
            if isinstance(node, ast.ImportFrom) and node.module
            if node.module.partition(".")[0] == PACKAGE
            for alias in node.names
        }

    def text_between(self, first: ast.expr | ast.stmt, last: ast.expr | ast.stmt) -> str:
        """Return the text from the start of a node to the end of a node, without its indent."""
        lines = self.lines[first.lineno - 1 : last.end_lineno]
        lines[-1] = lines[-1][: last.end_col_offset]
        lines[0] = b" " * first.col_offset + lines[0][first.col_offset :]
        return textwrap.dedent(b"\n".join(lines).decode())


@dataclass(frozen=True)
class Definition:
    """A name, the module that defines it, and its node there."""

    module: Module
    name: str
    node: ast.stmt

    @property
    def docstring(self) -> str:
        """The docstring; for an assignment, the text below it."""
        if isinstance(self.node, ast.ClassDef | Function):
            return ast.get_docstring(self.node) or ""
        return text_below(self.module.tree.body, self.node)

    @property
    def base_names(self) -> list[str]:
        """The names of the base classes."""
        bases = self.node.bases if isinstance(self.node, ast.ClassDef) else []
        return [base.id for base in bases if isinstance(base, ast.Name)]

    @property
    def signature(self) -> str:
        """A function's signature, a class's line, or the text of an assignment."""
        if isinstance(self.node, Function):
            return signature_of(self.module, self.node)
        if isinstance(self.node, ast.ClassDef):
            return f"class {self.name}"
        return self.module.text_between(self.node, self.node)


@dataclass
class Members:
    """The public members of a class."""

    facts: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The declaration and the docstring of each field and property."""
    methods: dict[str, tuple[list[str], str]] = field(default_factory=dict)
    """The signatures and the docstring of each method."""

    def inherit(self, base: Members) -> None:
        """Add the members of a base class that the class itself does not define."""
        self.facts = {**self.facts, **without(base.facts, self.facts)}
        self.methods |= without(base.methods, {*self.methods, "__init__"})


class Sources:
    """The sources of a checkout; a module is parsed when a name of it is looked up."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "src" / PACKAGE
        self._modules: dict[str, Module] = {}

    def module(self, name: str) -> Module:
        """Return a module by its name below the package; the empty name is the package."""
        if name not in self._modules:
            base = self._folder.joinpath(*name.split(".")) if name else self._folder
            path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
            self._modules[name] = Module(name, path.read_text(encoding="utf-8"))
        return self._modules[name]

    def exports(self, package: str) -> list[str]:
        """Return the names in the `__all__` of a package."""
        node = self.module(package).definitions["__all__"]
        assert isinstance(node, ast.Assign)
        names: list[str] = ast.literal_eval(node.value)
        return names

    def find(self, module: str, name: str) -> Definition:
        """Return the definition of a name, wherever the module has the name from."""
        place = self.module(module)
        if name in place.definitions:
            return Definition(place, name, place.definitions[name])
        if name in place.imports:
            return self.find(*place.imports[name])
        raise NoSuchName(f"{PACKAGE}.{module} has no {name}".replace("..", "."))

    def members(self, definition: Definition) -> Members:
        """Return the public members of a class: its own, then the members that it inherits."""
        module, members = definition.module, own_members(definition)
        for base in definition.base_names:
            if base in module.definitions or base in module.imports:
                members.inherit(self.members(self.find(module.name, base)))
        return members


def own_members(definition: Definition) -> Members:
    """Return the public members that the body of a class defines."""
    members, module = Members(), definition.module
    assert isinstance(definition.node, ast.ClassDef)
    body = definition.node.body
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if is_public(node.target.id):
                declaration = " ".join(module.text_between(node, node).split())
                members.facts[node.target.id] = (declaration, text_below(body, node))
        elif isinstance(node, Function) and is_member(node):
            docstring = ast.get_docstring(node) or ""
            if PROPERTIES & decorators_of(node) and node.returns:
                returned = module.text_between(node.returns, node.returns)
                members.facts[node.name] = (f"{node.name}: {returned}", docstring)
            else:
                add_method(members, module, node)
    return members


def add_method(members: Members, module: Module, node: Function) -> None:
    """Add a method; the signatures of overloads stand in place of the signature behind them."""
    signatures, docstring = members.methods.get(node.name, ([], ""))
    is_behind_overloads = bool(signatures) and "overload" not in decorators_of(node)
    if not is_behind_overloads:
        signatures = [*signatures, signature_of(module, node)]
    members.methods[node.name] = (signatures, ast.get_docstring(node) or docstring)


def is_public(name: str) -> bool:
    """Return whether a name is for users."""
    return not name.startswith("_")


def is_member(node: Function) -> bool:
    """Return whether a method is for users; constructors that need a session are not."""
    if node.name == "__init__":
        parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        hints = [ast.unparse(each.annotation) for each in parameters if each.annotation]
        return bool(hints) and not any("Session" in hint for hint in hints)
    return is_public(node.name) or (node.name in OPERATORS and bool(ast.get_docstring(node)))


def decorators_of(node: Function) -> set[str]:
    """Return the plain names of a function's decorators."""
    return {each.id for each in node.decorator_list if isinstance(each, ast.Name)}


def signature_of(module: Module, node: Function) -> str:
    """Return a signature as it is written, below the decorators that a caller must know of."""
    if node.returns is None:
        raise NoSuchName(f"{module.name}.{node.name} does not say what it returns")
    shown = sorted(DECORATORS & decorators_of(node))
    return "\n".join([*[f"@{name}" for name in shown], module.text_between(node, node.returns)])


def text_below(body: list[ast.stmt], node: ast.stmt) -> str:
    """Return the string that stands as a statement below a node, cleaned as a docstring."""
    index = body.index(node) + 1
    below = body[index] if index < len(body) else None
    text = below.value if isinstance(below, ast.Expr) else None
    is_text = isinstance(text, ast.Constant) and isinstance(text.value, str)
    return cleaned(ast.literal_eval(text)) if text is not None and is_text else ""


def cleaned(text: str) -> str:
    """Return the text of a docstring without its indent."""
    first, _, others = text.partition("\n")
    return f"{first.strip()}\n{textwrap.dedent(others)}".strip()


def below_package(module: str) -> str:
    """Return the name of a module below the package: `log.model` for `millstream.log.model`."""
    return module.partition(".")[2]


def without(members: dict[str, T], names: Collection[str]) -> dict[str, T]:
    """Return the members whose names are not among the given names."""
    return {name: member for name, member in members.items() if name not in names}


def public_classes(module: Module) -> Iterator[Definition]:
    """Yield the public classes of a module, in the order of the text."""
    for name, node in module.definitions.items():
        if isinstance(node, ast.ClassDef) and is_public(name):
            yield Definition(module, name, node)
