"""The nouns of threads are generated: they are up to date, and the generator can be trusted."""

from __future__ import annotations

import importlib
import inspect
import shutil
from pathlib import Path

import pytest

from tools import api_page, generate
from tools.generate import GENERATED, PACKAGE, ROOT, Untranslated, translate

PAIRS = ("concurrency", "opening", "runtime", "worker_runtime")
"""Files that both surfaces have under the same names, each with a text of its own."""


def test_the_generated_files_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check"]) == 0, capsys.readouterr().out


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files in question, in a place where they can be changed."""
    for path in ("pyproject.toml", ".gitattributes", generate.MAP, api_page.PAGE):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    shutil.copytree(
        ROOT / PACKAGE, tmp_path / PACKAGE, ignore=shutil.ignore_patterns("__pycache__")
    )
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    return tmp_path / PACKAGE


@pytest.mark.parametrize("changed", ["aio/log.py", "threads/log.py"])
def test_a_change_of_either_file_is_noticed_and_made_good(
    copy: Path, changed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = copy / changed
    place.write_text(place.read_text().replace('"Log({self', '"The log ({self'))
    assert generate.main(["--check"]) == 1
    assert "not as their sources say: src/millstream/threads/log.py" in capsys.readouterr().out
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    assert ('"The log ({self' in (copy / "threads/log.py").read_text()) == (changed == "aio/log.py")


def test_git_knows_every_generated_file(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = (tmp_path / ".gitattributes").read_text()
    for path in [path for path, _ in (*generate.sources(), *generate.pages())]:
        assert f"\n{path} linguist-generated\n" in listed
    (tmp_path / ".gitattributes").write_text(listed.replace("threads/job.py", "threads/jab.py"))
    assert generate.main(["--check"]) == 1
    assert "not as their sources say: .gitattributes" in capsys.readouterr().out


def test_a_file_that_is_missing_is_made(copy: Path) -> None:
    (copy / "threads/database.py").unlink()
    assert generate.main(["--check"]) == 1
    assert generate.main([]) == 0
    assert (copy / "threads/database.py").read_text() == (
        ROOT / PACKAGE / "threads/database.py"
    ).read_text()


@pytest.mark.parametrize("target", ["web/millstream.js", "web/millstream.global.js"])
def test_the_client_of_browsers_is_made_of_its_modules(copy: Path, target: str) -> None:
    module = copy / "web/client/error.js"
    module.write_text(module.read_text().replace("class MillstreamError", "class  MillstreamError"))
    assert generate.main(["--check"]) == 1
    assert generate.main([]) == 0
    assert "class  MillstreamError" in (copy / target).read_text()


def test_the_map_names_every_module_with_its_first_line(tmp_path: Path) -> None:
    package = tmp_path / PACKAGE
    (package / "engine").mkdir(parents=True)
    (package / "__init__.py").write_text('"""The package."""')
    (package / "clock.py").write_text('"""Time | one door.\n\nMore."""')
    (package / "engine" / "__init__.py").write_text('"""Engines."""')
    (package / "engine" / "copy.py").write_text('"""Copies."""')
    made = generate.map_of(tmp_path)
    assert "| `clock.py` | Time \\| one door. |" in made
    assert "## `engine/`\n\nEngines.\n" in made
    assert "| `copy.py` | Copies. |" in made


def test_a_generated_file_says_from_what_and_by_which_command() -> None:
    for name in GENERATED:
        head = (ROOT / PACKAGE / "threads" / f"{name}.py").read_text().splitlines()[0]
        assert head.startswith(f"# Generated from {PACKAGE}aio/{name}.py by `make generate`")


def test_the_two_folders_hold_the_same_files() -> None:
    def files(folder: str) -> set[str]:
        return {path.stem for path in (ROOT / PACKAGE / folder).glob("*.py")} - {"__init__"}

    assert files("threads") == {*GENERATED, *PAIRS}
    assert files("aio") == {*GENERATED, *PAIRS}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_that_are_written_by_hand_have_the_same_names(name: str) -> None:
    def names(folder: str) -> set[str]:
        module = importlib.import_module(f"millstream.{folder}.{name}")
        defined = {name for name, one in vars(module).items() if inspect.getmodule(one) is module}
        return {name for name in {*defined, *getattr(module, "__all__", ())} if name[0] != "_"}

    assert names("aio") == names("threads")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("async def f():\n    return await g()\n", "def f():\n    return g()\n"),
        ("x = (await g())[0]\n", "x = g()[0]\n"),
        ("x = (await g(1, (2)).h[3]).spec if a else b\n", "x = g(1, (2)).h[3].spec if a else b\n"),
        ("x = (await g() or 1) + 2\n", "x = (g() or 1) + 2\n"),
        ("x = (await g() + 1) * 2\n", "x = (g() + 1) * 2\n"),
        ("x = h(await g())\n", "x = h(g())\n"),
        ("x = h(1)(await g())\n", "x = h(1)(g())\n"),
        ("return (await g()).x\n", "return g().x\n"),
        ("async with a, b as c:\n    pass\n", "with a, b as c:\n    pass\n"),
        ("x = await anext(g(), None)\n", "x = next(g(), None)\n"),
        ("x = [await f(y) async for y in z]\n", "x = [f(y) for y in z]\n"),
        ("await_me = awaiting  # as it is\n", "await_me = awaiting  # as it is\n"),
        (
            'async def len(self):\n    """A coroutine."""\n',
            'def __len__(self):\n    """A thread."""\n',
        ),
        ("x = len(y)\n", "x = len(y)\n"),
        ("from millstream.aio.log import Log\n", "from millstream.threads.log import Log\n"),
        (
            "    from millstream.aio.runtime import Lock\n",
            "    from millstream.threads.runtime import Lock\n",
        ),
        ("async for x in f(1):\n    yield x\n", "yield from f(1)\n"),
        ("for x in f(1):\n    yield x\ny = 1\n", "yield from f(1)\ny = 1\n"),
        ("for x in y:\n    yield x\n    z = x\n", "for x in y:\n    yield x\n    z = x\n"),
        ("for x in y:\n    yield x.z\n", "for x in y:\n    yield x.z\n"),
        ('s = "await"\n', 's = "await"\n'),
    ],
)
def test_a_text_of_coroutines_becomes_one_of_threads(ours: str, theirs: str) -> None:
    assert translate(ours) == theirs


@pytest.mark.parametrize(
    "text",
    [
        "import asyncio\n",
        '"""What one awaits."""\n',
        "from millstream import aio\n",
        "async def f():\n    async with g().__anext__():\n        pass\n",
        "# In its event loop.\n",
        'x = f"{await g()}"\n' if inspect.sys.version_info < (3, 12) else "x = AsyncThing\n",
    ],
)
def test_what_still_speaks_of_coroutines_is_refused(text: str) -> None:
    with pytest.raises(Untranslated, match=r"src/b\.py:\d+: .* is left of src/a\.py"):
        generate.generated("src/a.py", text, "src/b.py")
