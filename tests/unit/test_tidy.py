"""The style guide as a test: what we do not want is listed here, and found.

Each rule is a function from a parsed source file to the lines that break it. A sample beside each rule
shows that it can fail.
"""

from __future__ import annotations

import ast
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from graphlib import CycleError, TopologicalSorter
from io import StringIO
from pathlib import Path

import pytest

from tools import words

ROOT = Path(__file__).resolve().parents[2]
LINES_MAX = 500  # the guide says: past 400, look for the second noun
PRINTING = ("src/millstream/cli/", "tools/", "examples/")
TIMING = ("src/millstream/cli/", "tools/", "examples/")
CLOCK = "src/millstream/clock.py"
FUNCTION_LINES_MAX = 70
LEVELS_MAX = 5  # of blocks inside one another, within a function

VAGUE_NAME = re.compile(r"(utils?|helpers?|common|managers?|misc|.*_v2|v2|new_.*|.*_impl)")
UNFINISHED = re.compile(r"\b(TO[D]O|FIX[M]E|XX[X])\b")
MACHINE_PATH = re.compile(r"(?<![\w.~>-])/(work|root|home|Users|opt/pypi[\w-]*)/\w")
REGISTRY = re.compile(r"pypi\.org|pythonhosted\.org|art[i]factory|[-_]index[-_]url|find[-]links")
UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "yaml"}
CLOCK_READS = {
    *(f"time.{n}{ns}" for n in ("time", "monotonic", "clock_gettime") for ns in ("", "_ns")),
    *(f"datetime.datetime.{n}" for n in ("now", "utcnow", "today")),
    "datetime.date.today",
}
TEXTS = {"STRING", "FSTRING_MIDDLE"}  # the latter from Python 3.12 on
COLUMNS_MAX = 100  # of a line of documentation, outside tables and code
CELL_CHARACTERS_MAX = 150  # of a table's cell, code not counted: longer ones are lists
STOPWATCHES = {"time.perf_counter", "time.perf_counter_ns"}


@dataclass(frozen=True)
class Source:
    """One file: where it lies, seen from the root, and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)


Rule = Callable[[Source], Iterator[tuple[int, str]]]
PublicNode = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
BlockNode = (
    ast.If | ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith | ast.Try | ast.Match
)


def is_long(source: Source) -> Iterator[tuple[int, str]]:
    count = len(source.text.splitlines())
    if count > LINES_MAX:
        yield count, f"{count} lines, more than {LINES_MAX}"


def has_a_long_function(source: Source) -> Iterator[tuple[int, str]]:
    for node in ast.walk(source.tree):
        if isinstance(node, FunctionNode):
            count = (node.end_lineno or node.lineno) - node.lineno + 1
            if count > FUNCTION_LINES_MAX:
                yield node.lineno, f"{node.name} has {count} lines, more than {FUNCTION_LINES_MAX}"


def nests_deeply(source: Source) -> Iterator[tuple[int, str]]:
    for node in ast.walk(source.tree):
        if isinstance(node, FunctionNode) and (count := levels(node)) > LEVELS_MAX:
            yield node.lineno, f"{node.name} has {count} levels, more than {LEVELS_MAX}"


def levels(node: ast.AST) -> int:
    """How many blocks lie inside one another below a node; `elif` stands beside its `if`."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        is_elif = isinstance(node, ast.If) and node.orelse == [child] and isinstance(child, ast.If)
        is_block = isinstance(child, BlockNode | FunctionNode) and not is_elif
        deepest = max(deepest, levels(child) + is_block)
    return deepest


def is_vaguely_named(source: Source) -> Iterator[tuple[int, str]]:
    for part in Path(source.path).parts:
        if VAGUE_NAME.fullmatch(part.split(".")[0]):
            yield 1, f"the name {part!r} does not say what is in it"


def lacks_docstring(source: Source) -> Iterator[tuple[int, str]]:
    if not ast.get_docstring(source.tree):
        yield 1, "the module has no docstring"
    for node in public_nodes(source.tree.body):
        if not ast.get_docstring(node):
            yield node.lineno, f"{node.name} has no docstring"


def public_nodes(body: list[ast.stmt]) -> Iterator[PublicNode]:
    for node in body:
        if isinstance(node, PublicNode) and not node.name.startswith("_"):
            decorators = {ast.unparse(d).split(".")[-1] for d in node.decorator_list}
            if decorators.isdisjoint({"overload", "override", "setter", "deleter"}):
                yield node
            if isinstance(node, ast.ClassDef):
                yield from public_nodes(node.body)


def is_unsafe(source: Source) -> Iterator[tuple[int, str]]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in {"eval", "exec"}:
                yield node.lineno, f"{node.func.id}()"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module]
            for name in names:
                if name and name.split(".")[0] in UNSAFE_MODULES:
                    yield node.lineno, f"import of {name}"


def prints(source: Source) -> Iterator[tuple[int, str]]:
    if source.path.startswith(PRINTING):
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print":
            yield node.lineno, "print() outside the command line"


def reads_the_time(source: Source) -> Iterator[tuple[int, str]]:
    if source.path == CLOCK:
        return
    forbidden = CLOCK_READS | (set() if source.path.startswith(TIMING) else STOPWATCHES)
    meaning = imported_names(source.tree)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute | ast.Name):
            head, _, rest = ast.unparse(node).partition(".")
            name = meaning.get(head, "") + (f".{rest}" if rest else "")
            if name in forbidden:
                yield node.lineno, f"{name}: time comes from clock.py"


def imported_names(tree: ast.Module) -> dict[str, str]:
    """What each imported name stands for: `from time import time as t` gives t → time.time."""
    meaning: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                meaning[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            meaning |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return meaning


def is_unfinished(source: Source) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(source.text.splitlines(), start=1):
        if found := UNFINISHED.search(line):
            yield number, found[0]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name) and node.id == "NotImplementedError":
            yield node.lineno, "NotImplementedError"


def names_a_machine(source: Source) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(source.text.splitlines(), start=1):
        for pattern in (MACHINE_PATH, REGISTRY):
            if found := pattern.search(line):
                yield number, f"{found[0]!r} belongs to one machine"


def is_wide(source: Source) -> Iterator[tuple[int, str]]:
    for number, line in prose_lines(source.text):
        if line.lstrip().startswith("|"):
            cells = re.sub(r"`[^`]*`|\\[|]", "", line).split("|")
            if (length := max(len(cell.strip()) for cell in cells)) > CELL_CHARACTERS_MAX:
                yield number, f"a cell of {length} characters, more than {CELL_CHARACTERS_MAX}"
        elif len(line) > COLUMNS_MAX:
            yield number, f"{len(line)} columns, more than {COLUMNS_MAX}"


def prose_lines(text: str) -> Iterator[tuple[int, str]]:
    """The numbered lines of a document that are not in a block of code."""
    is_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        is_fence = line.lstrip().startswith("```")
        if not is_code and not is_fence:
            yield number, line
        is_code ^= is_fence


def says_what_we_do_not(source: Source) -> Iterator[tuple[int, str]]:
    """Words that the glossary forbids: in the prose of documents, in comments and texts of code."""
    lines = (prose_lines if source.path.endswith(".md") else spoken_lines)(source.text)
    for number, line in lines:
        for found in forbidden_words().finditer(re.sub(r"`[^`]*`", "", line)):
            yield number, f"{found[0]!r}: docs/GLOSSARY.md has a better word"


def spoken_lines(text: str) -> Iterator[tuple[int, str]]:
    """The numbered lines of comments, docstrings and other texts of a source."""
    for token in tokenize.generate_tokens(StringIO(text).readline):
        if token.type == tokenize.COMMENT or tokenize.tok_name[token.type] in TEXTS:
            yield from enumerate(token.string.splitlines(), start=token.start[0])


def glossary() -> tuple[str, str]:
    """The two parts of the glossary: its terms, and the words that we do not use."""
    text = (ROOT / "docs" / "GLOSSARY.md").read_text(encoding="utf-8")
    terms, _, unwanted = text.partition("## Words we do not use")
    return terms, unwanted


@cache
def forbidden_words() -> re.Pattern[str]:
    cells = re.findall(r"^\| (`.*?) \|", glossary()[1], re.MULTILINE)
    words = [word for cell in cells for word in re.findall(r"`(.+?)`", cell)]
    return re.compile(rf"\b({'|'.join(words)})\b", re.IGNORECASE)


def read_sources(paths: list[str]) -> Iterator[Source]:
    for path in paths:
        try:
            yield Source(path, (ROOT / path).read_text(encoding="utf-8"))
        except (UnicodeDecodeError, FileNotFoundError):
            continue  # a picture; or deleted, and not yet committed


def project_files() -> list[str]:
    """Every file that is, or would be, committed; without git, every file outside hidden ones."""
    git = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(git, cwd=ROOT, capture_output=True, check=True, text=True).stdout
        return sorted(set(filter(None, listed.split("\0"))))
    except (OSError, subprocess.CalledProcessError):
        found = (p.relative_to(ROOT) for p in ROOT.rglob("*") if p.is_file())
        return sorted(
            p.as_posix() for p in found if not any(d.startswith((".", "__py")) for d in p.parts)
        )


def python_files(*places: str) -> list[str]:
    return [p for p in project_files() if p.endswith(".py") and p.startswith(places)]


OURS = ("src/", "tools/", "examples/")
RULES: list[tuple[Rule, tuple[str, ...], Source]] = [
    (is_long, ("src/",), Source("src/a.py", "x = 1\n" * (LINES_MAX + 1))),
    (is_vaguely_named, ("src/", "tools/", "tests/"), Source("src/new_log.py", "")),
    (
        lacks_docstring,
        ("src/",),
        Source("src/a.py", '"""A."""\nclass A:\n    """A."""\n    def b(self): ...'),
    ),
    (is_unsafe, OURS, Source("src/a.py", "from pickle import loads")),
    (prints, OURS, Source("src/a.py", "print(1)")),
    (reads_the_time, ("src/",), Source("src/a.py", "from datetime import datetime as d\nd.now()")),
    (is_unfinished, OURS, Source("src/a.py", "def f(): raise NotImplementedError")),
    (has_a_long_function, ("src/",), Source("src/a.py", "def f():\n" + " x = 1\n" * 70)),
    (
        nests_deeply,
        ("src/",),
        Source(
            "a.py", "def f():\n" + "".join(" " * n + "if a:\n" for n in range(1, 7)) + " " * 7 + "b"
        ),
    ),
]
EACH_RULE = pytest.mark.parametrize(
    ("rule", "places", "sample"), RULES, ids=[rule.__name__ for rule, _, _ in RULES]
)


def broken_lines(rule: Rule, paths: list[str]) -> list[str]:
    return [
        f"{source.path}:{line}: {what}"
        for source in read_sources(paths)
        for line, what in rule(source)
    ]


@cache
def broken_rules() -> dict[str, list[str]]:
    """The lines that break each rule; a file is parsed once for all of them."""
    broken: dict[str, list[str]] = {rule.__name__: [] for rule, _, _ in RULES}
    for source in read_sources(
        python_files(*{place for _, places, _ in RULES for place in places})
    ):
        for rule, places, _ in RULES:
            if source.path.startswith(places):
                lines = (f"{source.path}:{line}: {what}" for line, what in rule(source))
                broken[rule.__name__] += lines
    return broken


@EACH_RULE
def test_no_source_breaks_the_rule(rule: Rule, places: tuple[str, ...], sample: Source) -> None:
    assert not (broken := broken_rules()[rule.__name__]), "\n".join(["", *broken])


@EACH_RULE
def test_the_rule_finds_its_sample(rule: Rule, places: tuple[str, ...], sample: Source) -> None:
    assert list(rule(sample))


def test_no_file_names_a_machine_or_a_registry() -> None:
    assert not (broken := broken_lines(names_a_machine, project_files())), "\n".join(["", *broken])


@pytest.mark.parametrize("text", ["cd /" + "root/x", "https://pypi" + ".org/simple"])
def test_a_machine_path_and_a_registry_are_found(text: str) -> None:
    assert list(names_a_machine(Source("a.md", text)))


def documents() -> list[str]:
    return [p for p in project_files() if p == "README.md" or Path(p).match("docs/*.md")]


def test_no_document_is_wide() -> None:
    assert not (broken := broken_lines(is_wide, documents())), "\n".join(["", *broken])


@pytest.mark.parametrize("text", ["w " * 51, "```\nx\n```\n- " + "w " * 50, f"| a | {'w ' * 80}|"])
def test_a_wide_line_and_a_long_cell_are_found(text: str) -> None:
    assert list(is_wide(Source("docs/a.md", text)))


@pytest.mark.parametrize("text", [f"```\n{'w ' * 60}\n```", f"| a | `{'w' * 200}` | {'w ' * 60} |"])
def test_wide_code_and_tables_are_left_alone(text: str) -> None:
    assert not list(is_wide(Source("docs/a.md", text)))


def test_no_text_has_a_word_that_the_glossary_forbids() -> None:
    paths = [*documents(), *python_files("src/")]
    assert not (broken := broken_lines(says_what_we_do_not, paths)), "\n".join(["", *broken])


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("docs/a.md", "Whoever asks."),
        ("src/a.py", "# those who wait"),
        ("src/a.py", '"""A.\n\nKept for ever.\n"""'),
        ("src/a.py", 'x = f"{1} than nothing"'),
    ],
)
def test_a_forbidden_word_is_found(path: str, text: str) -> None:
    assert list(says_what_we_do_not(Source(path, text)))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("docs/a.md", "`anyone`\n```\nwhoever\n```"),
        ("src/a.py", "anyone = somebody(1)  # `anyone`"),
    ],
)
def test_code_may_have_any_name(path: str, text: str) -> None:
    assert not list(says_what_we_do_not(Source(path, text)))


def test_the_glossary_defines_each_term_once_and_in_order() -> None:
    terms = re.findall(r"^- \*\*(.+?)\*\*: \S", glossary()[0], re.MULTILINE)
    assert len(terms) == len(re.findall(r"^- ", glossary()[0], re.MULTILINE)), "a line has no term"
    assert terms == sorted(set(terms)), "a term is defined twice, or is not in its place"


LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def leads_nowhere(source: Source) -> Iterator[tuple[int, str]]:
    """Links whose file, or whose heading in it, is not there."""
    folder = (ROOT / source.path).parent
    for number, line in prose_lines(source.text):
        for file, anchor in LINK.findall(re.sub(r"`[^`]*`(?!\])", "", line)):
            target = (folder / file).resolve() if file else ROOT / source.path
            if not target.exists():
                yield number, f"there is no {file}"
            elif anchor and anchor not in anchors(target.read_text(encoding="utf-8")):
                yield number, f"{target.name} has no heading #{anchor}"


def anchors(text: str) -> set[str]:
    """The anchors of headings, as GitHub makes them."""
    headings = [line.lstrip("#") for _, line in prose_lines(text) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", one.strip().lower()).replace(" ", "-") for one in headings}


def test_every_link_of_the_documentation_leads_somewhere() -> None:
    assert not (broken := broken_lines(leads_nowhere, documents())), "\n".join(["", *broken])


@pytest.mark.parametrize("text", ["[a](no.md)", "[a](FORMAT.md#no)", "# A b\n[a](#a-c)"])
def test_a_link_to_nowhere_is_found(text: str) -> None:
    assert list(leads_nowhere(Source("docs/QUEUES.md", text)))


def named_packages(text: str) -> set[str]:
    """Return the packages and top-level modules that the table of ARCHITECTURE.md names."""
    section = text.partition("## Where does a change belong")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([\w/]+(?:\.py|/))`", row)}


def top_level_parts(package: Path) -> set[str]:
    """Return the packages and modules directly below a package, as the table writes them."""
    packages = {f"{init.parent.name}/" for init in package.glob("*/__init__.py")}
    return packages | {path.name for path in package.glob("*.py") if "__" not in path.name}


def test_the_architecture_has_a_row_for_every_package() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "millstream"
    named = named_packages(text)
    assert not [name for name in named if not (package / name).exists()]
    assert top_level_parts(package) <= named


def test_a_package_without_a_row_is_found(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "__init__.py").touch()
    (tmp_path / "clock.py").touch()
    text = "## Where does a change belong\n| `log/` | a |\n"
    assert top_level_parts(tmp_path) - named_packages(text) == {"clock.py"}


PATH = re.compile(r"`([\w/]+/\w+\.py)`")


def names_a_lost_file(source: Source) -> Iterator[tuple[int, str]]:
    """Paths of modules and tests, from the root, the sources or the tests."""
    places = [ROOT / below for below in ("", "src", "src/millstream", "tests")]
    for number, line in enumerate(source.text.splitlines(), start=1):
        for path in PATH.findall(line):
            if not any((place / path).exists() for place in places):
                yield number, f"there is no {path}"


def journey_paths(text: str) -> set[str]:
    """Return the modules and packages that the pictures of ARCHITECTURE.md name, without `.py`."""
    section = text.partition("## Journeys")[2].partition("\n## ")[0]
    pictures = "".join(re.findall(r"```\n(.*?)```", section, re.DOTALL))
    package = ROOT / "src" / "millstream"
    tops = "|".join(path.name for path in package.iterdir() if (path / "__init__.py").exists())
    return set(re.findall(rf"(?<![\w/])(?:{tops})(?:/[a-z_]+)+", pictures))


def test_the_journeys_lead_through_modules_that_are_there() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "millstream"
    paths = journey_paths(text)
    assert len(paths) > 20
    # The picture of a request names modules of the server without its name.
    places = (package, package / "server")
    lost = [
        path
        for path in paths
        if not any((root / path).is_dir() or (root / f"{path}.py").exists() for root in places)
    ]
    assert not lost


def test_no_document_names_a_file_that_is_not_there() -> None:
    assert not (broken := broken_lines(names_a_lost_file, documents())), "\n".join(["", *broken])


def test_a_file_that_is_not_there_is_found() -> None:
    assert list(names_a_lost_file(Source("docs/A.md", "see `log/no.py`, `log/model/head.py`"))) == [
        (1, "there is no log/no.py")
    ]


def test_no_file_of_any_kind_has_a_vague_name() -> None:
    broken = [p for p in project_files() for _ in is_vaguely_named(Source(p, ""))]
    assert not broken, broken


def test_an_elif_is_no_deeper_than_its_if() -> None:
    chain = "if a:\n b\n" + "elif a:\n b\n" * 9 + "else:\n with c:\n  d"
    assert levels(ast.parse(chain)) == 2


# What belongs to Python and to Spark, and has no other name.
FOREIGN = {"_exit", "_current_frames", "_log_destroy_pending", "_gateway", "_jdf", "_jvm"}

PRIVATE_TOUCHES = {
    "tests/crash/test_write_failures.py": 1,
    "tests/property/test_queue_model.py": 1,
    "tests/spark/test_assigning.py": 1,
    "tests/unit/aio/test_cursor_twins.py": 1,
    "tests/unit/aio/test_session.py": 2,
    "tests/unit/aio/test_twins.py": 2,
    "tests/unit/log/test_recent.py": 2,
    "tests/unit/log/test_sparse.py": 1,
    "tests/unit/queue/test_keeping_sparse.py": 2,
    "tests/unit/queue/test_waiting_line.py": 2,
    "tests/unit/remote/test_session.py": 2,
    "tests/unit/server/test_fairness.py": 2,
    "tests/unit/server/test_guard.py": 1,
    "tests/unit/server/test_health.py": 1,
    "tests/unit/server/test_tracing.py": 4,
    "tests/unit/spark/test_arrow.py": 1,
    "tests/unit/store/test_fold.py": 1,
    "tests/unit/store/test_fold_beside.py": 4,
    "tests/unit/store/test_keeper.py": 3,
    "tests/unit/store/test_newest.py": 2,
    "tests/unit/store/test_overlay.py": 1,
    "tests/unit/store/test_reads_beside_commits.py": 1,
    "tests/unit/store/test_sleep.py": 2,
    "tests/unit/store/test_store.py": 3,
    "tests/unit/store/test_transactor.py": 15,
}
"""How often tests touch private attributes of our objects, by file; a number may only fall.

`millstream.testing.Probe` offers what most tests need.
"""


def private_touches(source: Source) -> Iterator[tuple[int, str]]:
    """Attributes with an underscore, of anything but the object itself, and such names of ours."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("millstream"):
            names = [alias.name for alias in node.names]
            yield from ((node.lineno, name) for name in names if name.startswith("_"))
        if isinstance(node, ast.Attribute) and re.match("_(?!_)", node.attr):
            is_own = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
            if not is_own and node.attr not in FOREIGN:
                yield node.lineno, ast.unparse(node)


def test_tests_touch_private_attributes_only_where_they_did() -> None:
    found = {
        source.path: list(private_touches(source))
        for source in read_sources(python_files("tests/"))
    }
    broken = [
        f"{path}:{line}: {what}"
        for path, touches in found.items()
        if len(touches) > PRIVATE_TOUCHES.get(path, 0)
        for line, what in touches
    ]
    assert not broken, "\n".join(["ask millstream.testing.Probe:", *broken])
    assert not PRIVATE_TOUCHES.keys() - found.keys(), "these files are gone"


def test_a_private_touch_is_found() -> None:
    text = "ms._session.store\nself._a\nfrom millstream.a import _b\nos._exit(0)\na.__class__"
    assert sorted(line for line, _ in private_touches(Source("tests/a.py", text))) == [1, 3]


def module_of(path: str) -> str:
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports_of(source: Source, modules: set[str]) -> set[str]:
    """Which of the modules a module imports when it is itself imported, or for its types."""
    found = set()
    for node in nodes_outside_functions(source.tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else node.module for name in inside}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return (found & modules) - {module_of(source.path)}


def nodes_outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, FunctionNode):
            yield from nodes_outside_functions(child)


def circle_of_imports(sources: Iterable[Source]) -> list[str]:
    by_name = {module_of(source.path): source for source in sources}
    modules = set(by_name)
    try:
        TopologicalSorter({n: imports_of(s, modules) for n, s in by_name.items()}).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert not (circle := circle_of_imports(read_sources(python_files("src/")))), circle


def test_a_circle_of_imports_is_found() -> None:
    checked = "if TYPE_CHECKING:\n from a import b"
    some = [Source("src/a/b.py", "from a import c"), Source("src/a/c.py", checked)]
    assert set(circle_of_imports(some)) == {"a.b", "a.c"}
    late = Source("src/a/c.py", "def f():\n from a import b")
    assert circle_of_imports([some[0], late]) == []


TWINS = "src/millstream/threads/"
"""The same classes as in `aio`, for threads."""


def twice_named(sources: Iterable[Source]) -> list[str]:
    bodies = [source.tree.body for source in sources if not source.path.startswith(TWINS)]
    names = Counter(one.name for body in bodies for one in body if isinstance(one, ast.ClassDef))
    return sorted(name for name, count in names.items() if count > 1)


def test_a_class_has_a_name_of_its_own() -> None:
    assert twice_named(read_sources(python_files("src/"))) == []


def test_a_name_for_two_things_is_found() -> None:
    paths = ("src/a.py", "src/b.py", f"{TWINS}c.py")
    sources = [Source(path, "class A: ...") for path in paths]
    assert twice_named(sources) == ["A"]
    assert twice_named(sources[1:]) == []


DARK_PERCENT_MAX = 3.5
VAGUE_PERCENT_MAX = 0.5
"""Ceilings of `tools/words.py`: they may only fall."""


def test_the_sources_are_written_plainly() -> None:
    total = words.measure([ROOT / "src" / "millstream"])
    worst = [f"{path}:{line}: {text}" for _, path, line, text in sorted(total.dark)[-20:]]
    assert total.dark_percent <= DARK_PERCENT_MAX, "\n".join(["", *worst])
    assert total.vague_percent <= VAGUE_PERCENT_MAX


def test_a_dark_sentence_and_a_vague_name_are_found() -> None:
    total = words.Measure()
    total.add(
        "a.py",
        'def f(found: int) -> int:\n    """None if it shows none, False if another one."""\n'
        "    # Return the head of the log.\n    head = found\n    return head\n",
    )
    assert [sentence for *_, sentence in total.dark] == [
        "None if it shows none, False if another one."
    ]
    assert (total.sentences, total.names, total.vague) == (2, 2, 1)
