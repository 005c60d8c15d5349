"""Joins the modules of the browser's client into one file: an ES module, or a classic script.

The modules are small and ours, so a full parser is not needed: a module may import names from
modules beside it (`import { a, b } from "./x.js";`), export declarations (`export class`,
`export function`, `export const`), and export names that it imported (`export { a, b };`). Other
forms, import cycles and two modules with the same name at their top level are errors.
"""

from __future__ import annotations

import re
from pathlib import Path

NOTE = "// Generated from web/client/ by `make generate`: change the files there, not this one.\n"

_IMPORT = re.compile(r'^import \{ ([^}]+) \} from "\./([\w-]+\.js)";\n', re.MULTILINE)
_LIST = re.compile(r"^export \{ ([^}]+) \};\n", re.MULTILINE)
_EXPORTED = re.compile(r"^export (?=(?:async )?(?:class|function|const) )", re.MULTILINE)
_DECLARED = re.compile(
    r"^(?:export )?(?:async )?(?:class|function|const|let)\b[ *]*(\w+)", re.MULTILINE
)
_OTHER = re.compile(r"^(?:import|export)\b.*|\bimport\(.*", re.MULTILINE)


class NotJoined(Exception):
    """A module has a form that this tool does not join."""


def names_in(text: str) -> list[str]:
    """Return the names of a list such as `a, b`."""
    return [name.strip() for name in text.split(",") if name.strip()]


def exports_of(source: str) -> list[str]:
    """Return the names that a module exports, in order."""
    names = [match[1] for match in _DECLARED.finditer(source) if match[0].startswith("export ")]
    return names + [name for match in _LIST.finditer(source) for name in names_in(match[1])]


def in_order(folder: Path, entry: str) -> list[str]:
    """Return a module and all modules that it imports; each module after its imports."""
    order: list[str] = []
    open_modules: list[str] = []

    def visit(name: str) -> None:
        if name in order:
            return
        if name in open_modules:
            raise NotJoined(f"{name} imports itself: {' → '.join([*open_modules, name])}")
        open_modules.append(name)
        source = (folder / name).read_text(encoding="utf-8")
        for match in _IMPORT.finditer(source):
            exported = exports_of((folder / match[2]).read_text(encoding="utf-8"))
            for imported in names_in(match[1]):
                if imported not in exported:
                    raise NotJoined(f"{name} imports {imported}, which {match[2]} does not export")
            visit(match[2])
        open_modules.pop()
        order.append(name)

    visit(entry)
    return order


def plain(source: str, name: str) -> str:
    """Return a module without its imports and exports."""
    text = _EXPORTED.sub("", _LIST.sub("", _IMPORT.sub("", source)))
    if (other := _OTHER.search(text)) is not None:
        raise NotJoined(f"{name}: this form of import or export is not joined: {other[0]}")
    return text.strip() + "\n"


def body_of(folder: Path, entry: str) -> str:
    """Return the text of all modules, without their imports and exports."""
    owners: dict[str, str] = {}
    parts = []
    for name in in_order(folder, entry):
        source = (folder / name).read_text(encoding="utf-8")
        for match in _DECLARED.finditer(source):
            other = owners.setdefault(match[1], name)
            if other != name:
                raise NotJoined(f"{match[1]} is declared in {other} and in {name}: rename one")
        parts.append(f"// {name}\n\n{plain(source, name)}")
    return "\n".join(parts)


def as_module(folder: Path, entry: str, head: str) -> str:
    """Return the client as one ES module."""
    names = exports_of((folder / entry).read_text(encoding="utf-8"))
    return f"{head}{NOTE}\n{body_of(folder, entry)}\nexport {{ {', '.join(names)} }};\n"


def as_script(folder: Path, entry: str, head: str, *, variable: str) -> str:
    """Return the client as one classic script, whose exports are fields of a global variable."""
    names = exports_of((folder / entry).read_text(encoding="utf-8"))
    return (
        f"{head}{NOTE}\nvar {variable} = (() => {{\n"
        f'"use strict";\n\n{body_of(folder, entry)}\n'
        f"return Object.freeze({{ {', '.join(names)} }});\n}})();\n"
    )
