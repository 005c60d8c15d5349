"""The documentation is executed: every Python example of README.md and docs/*.md runs.

The examples of a page run in order and share one namespace, in an empty directory. Every example of
README.md also runs alone, and a second time in the same directory. An example that cannot run here
stands below the comment `<!-- not run -->`.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import millstream
from tools.doc_examples import README, ROOT, Example, documents, examples_in, module_of

OPENED = re.compile(r"""\b(?:open|running)\(["']([^"']+\.db)["']""")
HANGS_S = 120

PARTS = {"OBJECT_STORAGE.md": "s3"}
"""What must be installed for a document's examples to run."""


def examples_of(document: Path) -> list[Example]:
    return examples_in(document.read_text(encoding="utf-8"))


README_EXAMPLES = [example for example in examples_of(ROOT / README) if example.is_run]


def parameters() -> list[Any]:
    return [
        pytest.param(p, marks=pytest.mark.requires(PARTS[p.name])) if p.name in PARTS else p
        for p in documents()
    ]


def run(examples: list[Example], document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run examples one after the other in a namespace of their own."""
    module = types.ModuleType("document")
    monkeypatch.setitem(sys.modules, "document", module)  # classes look up their annotations there
    for example in examples:
        padding = "\n" * (example.line - 1)  # so a traceback shows the line of the document
        exec(compile(padding + example.code, str(document), "exec"), module.__dict__)


@pytest.mark.parametrize("document", parameters(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_example_of_a_document_runs(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run([each for each in examples_of(document) if each.is_run], document, monkeypatch)


@pytest.mark.parametrize("example", README_EXAMPLES, ids=lambda example: f"line {example.line}")
def test_an_example_of_the_readme_runs_alone_and_twice(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        run([example], ROOT / README, monkeypatch)


def test_the_examples_of_the_readme_run_one_after_the_other_and_all_of_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for example in README_EXAMPLES * 2:
        run([example], ROOT / README, monkeypatch)


def test_the_worker_process_of_the_readme_handles_messages_until_it_is_told_to_stop(
    tmp_path: Path,
) -> None:
    (program,) = [each.code for each in README_EXAMPLES if each.code.startswith("# mail_worker.py")]
    (tmp_path / "mail_worker.py").write_text(program, encoding="utf-8")
    with millstream.open(tmp_path / "shop.db") as ms:
        mail = ms.create_queue("mail", lease=30, max_attempts=5)
        mail.put_many([{"to": "bob"}, {"to": "cy"}])
    command = [sys.executable, "mail_worker.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as worker:
        try:
            assert worker.stdout is not None
            lines = [worker.stdout.readline() for _ in range(2)]
            assert lines == ["mail to bob\n", "mail to cy\n"]
            worker.send_signal(signal.SIGTERM)
            worker.communicate(timeout=HANGS_S)
        finally:
            worker.kill()
    with millstream.open(tmp_path / "shop.db") as ms:
        assert ms.queue("mail").claim() == []


def test_documents_share_no_store_so_they_can_be_followed_one_after_the_other() -> None:
    users: dict[str, set[str]] = {}
    for document in documents():
        for example in examples_of(document):
            for store in OPENED.findall(example.code):
                users.setdefault(store, set()).add(document.name)
    assert "shop.db" in users
    assert {store: found for store, found in users.items() if len(found) > 1} == {}


def test_the_readme_begins_with_the_demo_and_shows_code_within_thirty_lines() -> None:
    text = (ROOT / README).read_text(encoding="utf-8")
    first = examples_in(text)[0]
    assert first.line <= 30, f"the first example of {README} starts only at line {first.line}"
    before = "\n".join(text.splitlines()[: first.line])
    assert "`make demo`" in before
    assert "`millstream demo`" in before


def test_the_readme_installs_the_wheel_of_this_version() -> None:
    text = (ROOT / README).read_text(encoding="utf-8")
    assert f"dist/millstream-{millstream.__version__}-py3-none-any.whl" in text


def test_an_example_under_the_comment_is_not_run() -> None:
    text = "a\n```python\nx = 1\n```\n\n<!-- not run -->\n```python\nboom()\n```\n"
    assert examples_in(text) == [Example("x = 1\n", 3, True), Example("boom()\n", 8, False)]


def test_an_example_has_the_lines_of_its_document_where_types_are_checked() -> None:
    text = "# Title\n\n```python\nx = 1\n```\n\n- a\n\n  ```python\n  y = 2\n  ```\n"
    lines = module_of(examples_in(text)).splitlines()
    assert (lines[3], lines[9]) == ("x = 1", "y = 2")
