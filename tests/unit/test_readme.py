"""The documentation is executed: every Python snippet of README.md and docs/*.md runs.

The snippets of a file run in order and share one namespace, in an empty directory. One that cannot
run here stands below the comment `<!-- not run -->`.
"""

from __future__ import annotations

import re
import sys
import textwrap
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FENCED = re.compile(
    r"(?P<skip><!-- not run -->\s*\n)?^(?P<indent>[ \t]*)```python[^\n]*\n(?P<code>.*?)^(?P=indent)```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
OPENED = re.compile(r"""\b(?:open|running)\(["']([^"']+\.db)["']""")


@dataclass(frozen=True)
class Snippet:
    code: str
    line: int
    run: bool


def snippets(text: str) -> list[Snippet]:
    return [
        Snippet(
            code=textwrap.dedent(found["code"]),
            line=text.count("\n", 0, found.start("code")) + 1,
            run=found["skip"] is None,
        )
        for found in FENCED.finditer(text)
    ]


def documents() -> list[Path]:
    return [p for p in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))] if p.exists()]


PARTS = {"OBJECT_STORAGE.md": "s3"}
"""What must be installed for a document's snippets to run."""


def parameters() -> list[Any]:
    return [
        pytest.param(p, marks=pytest.mark.requires(PARTS[p.name])) if p.name in PARTS else p
        for p in documents()
    ]


@pytest.mark.parametrize("document", parameters(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_snippet_of_a_document_runs(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("document")
    monkeypatch.setitem(sys.modules, "document", module)  # classes look up their annotations there
    monkeypatch.chdir(tmp_path)
    for snippet in snippets(document.read_text(encoding="utf-8")):
        if snippet.run:
            padding = "\n" * (snippet.line - 1)  # so a traceback shows the line of the document
            exec(compile(padding + snippet.code, str(document), "exec"), module.__dict__)


def test_documents_share_no_store_so_they_can_be_followed_one_after_the_other() -> None:
    users: dict[str, set[str]] = {}
    for document in documents():
        for snippet in snippets(document.read_text(encoding="utf-8")):
            for store in OPENED.findall(snippet.code):
                users.setdefault(store, set()).add(document.name)
    assert "shop.db" in users
    assert {store: found for store, found in users.items() if len(found) > 1} == {}


def test_the_readme_shows_code_within_thirty_lines() -> None:
    readme = ROOT / "README.md"
    assert readme.exists(), "there is no README.md"
    first = [s.line for s in snippets(readme.read_text(encoding="utf-8"))][:1]
    assert first, "README.md has no Python snippet"
    assert first[0] <= 30, f"the first snippet of README.md starts only at line {first[0]}"


def test_a_snippet_under_the_comment_is_not_run() -> None:
    text = "a\n```python\nx = 1\n```\n\n<!-- not run -->\n```python\nboom()\n```\n"
    assert [(s.code, s.line, s.run) for s in snippets(text)] == [
        ("x = 1\n", 3, True),
        ("boom()\n", 8, False),
    ]
