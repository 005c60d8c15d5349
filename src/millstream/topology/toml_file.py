"""TOML files: parsed, with the line of each key; and written.

`tomllib` tells no lines. So the lines are searched in the text: a table header, and the keys below it.
A line that is not found, such as the line of a key inside a nested table, is left out of a message.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

Path = tuple[str, ...]
"""The names of the tables down to a key."""

_HEADER = re.compile(r"\s*(\[[^\[].*?\])\s*(?:#.*)?")
_KEY = re.compile(r"""\s*((?:[\w\-.\s]|"(?:[^"\\]|\\.)*"|'[^']*')+?)\s*=""")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def lines_of(text: str) -> dict[Path, int]:
    """Return the lines of the tables and keys of a TOML text, counted from 1."""
    lines: dict[Path, int] = {}
    table: Path = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.fullmatch(line):
            table = _path_of(header[1])
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            lines.setdefault((*table, *_path_of(f"{key[1]} = 0")), number)
    return lines


def _path_of(declaration: str) -> Path:
    """Return the path that a header, or a key with a value, declares; an empty path for invalid TOML."""
    try:
        content: Any = tomllib.loads(declaration)
    except tomllib.TOMLDecodeError:
        return ()
    path: list[str] = []
    while isinstance(content, dict) and content:
        ((name, content),) = content.items()
        path.append(name)
    return tuple(path)


def place_of(lines: Mapping[Path, int], path: Path, file: str) -> str:
    """Return where a path is, for a message: `topology.toml, line 3`; without a line, only the file."""
    line = line_of(lines, path)
    return file if line is None else f"{file}, line {line}"


def line_of(lines: Mapping[Path, int], path: Path) -> int | None:
    """Return the line of a key, else of a table around it, or of the first key below it."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    below = [line for name, line in lines.items() if name[: len(path)] == path]
    return min(below, default=None)


def table_text(path: Sequence[str]) -> str:
    """Return the header of a table."""
    return f"[{'.'.join(map(key_text, path))}]"


def key_text(name: str) -> str:
    """Return a key, in quotes if it needs them."""
    return name if _BARE.fullmatch(name) else _string(name)


def value_text(value: Any) -> str:
    """Return a value on one line: texts, numbers, times, lists and tables."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _string(value)
        case int() | float():
            return repr(value)
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case list() | tuple():
            return f"[{', '.join(map(value_text, value))}]"
        case dict():
            pairs = ", ".join(
                f"{key_text(key)} = {value_text(item)}" for key, item in value.items()
            )
            return f"{{ {pairs} }}" if pairs else "{}"
    raise TypeError(f"TOML has no {type(value).__name__}")


def _string(text: str) -> str:
    return '"' + "".join(_ESCAPES.get(char) or _printable(char) for char in text) + '"'


def _printable(char: str) -> str:
    code = ord(char)
    return f"\\u{code:04x}" if code < 32 or code == 127 else char


def plain(value: Any) -> Any:
    """Return a JSON value as TOML can hold it: `{json = "null"}` stands for null.

    TOML has no null. A table with the only key `json` is written in the same way.
    """
    if value is None or (isinstance(value, dict) and [*value] == ["json"]):
        return {"json": msgspec.json.encode(value).decode()}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def from_plain(value: Any) -> Any:
    """Return the JSON value that `plain` returned; raise `ValueError` for text that is no JSON."""
    if isinstance(value, dict):
        if [*value] == ["json"] and isinstance(value["json"], str):
            try:
                return msgspec.json.decode(value["json"])
            except msgspec.DecodeError:
                raise ValueError(f"{value['json']!r:.100} is no JSON") from None
        return {key: from_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    return value
