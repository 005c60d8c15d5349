"""Extracts the Python examples of README.md and docs/*.md, to run them and to check their types.

Usage: doc_examples.py FOLDER

Writes a module per document into the folder, for mypy and pyright. The blocks of a page share one
module, because they share one namespace. Every block of README.md is a module of its own, because a
reader may take any block alone. Line numbers are those of the document.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = "README.md"

_BLOCK = re.compile(
    r"(?P<not_run><!-- not run -->\s*\n)?"
    r"^(?P<indent>[ \t]*)```python[^\n]*\n(?P<code>.*?)^(?P=indent)```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)

REDEFINES = "# mypy: allow-redefinition"
"""In line 1, where a document has its title: a page may use a variable for several types."""


@dataclass(frozen=True)
class Example:
    """A block of Python in a document."""

    code: str
    line: int
    """The number of its first line in the document."""
    is_run: bool
    """False below the comment `<!-- not run -->`."""


def examples_in(text: str) -> list[Example]:
    """Return the blocks of Python in a document, in order."""
    return [
        Example(
            code=textwrap.dedent(block["code"]),
            line=text.count("\n", 0, block.start("code")) + 1,
            is_run=block["not_run"] is None,
        )
        for block in _BLOCK.finditer(text)
    ]


def documents(root: Path = ROOT) -> list[Path]:
    """Return the documents of a checkout whose examples count."""
    return [root / README, *sorted(root.glob("docs/*.md"))]


def module_of(examples: list[Example]) -> str:
    """Return a module in which each example has the lines that it has in its document."""
    text = f"{REDEFINES}\n"
    for example in examples:
        text += "\n" * (example.line - 1 - text.count("\n")) + example.code
    return text


def modules(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each module that holds examples."""
    for document in documents(root):
        path = document.relative_to(root).as_posix()
        examples = examples_in(document.read_text(encoding="utf-8"))
        if path == README:
            for example in examples:
                yield f"README_line_{example.line}.py", module_of([example])
        elif examples:
            yield f"{document.stem}.py", module_of(examples)


def main(arguments: list[str]) -> int:
    """Write the modules into a folder, which is emptied first."""
    folder = Path(arguments[0])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, text in modules(ROOT):
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
