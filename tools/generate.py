"""Writes the generated files, or checks them.

They are the nouns of threads, the browser's client, two pages, the OpenAPI document, and git's list.

Usage: generate.py [--check]

Both surfaces are one text: the coroutines' files in `src/millstream/aio/`. The file of the same name
in `src/millstream/threads/` is the same without `async` and `await`, with the names and words of
the tables below, formatted by ruff. What cannot be the same text (`runtime.py`, `concurrency.py`,
`opening.py`, `worker_runtime.py`) is written by hand in both folders, with the same names in it. Whatever still speaks of coroutines afterwards is an error: a table lacks an entry.
"""

from __future__ import annotations

import ast
import functools
import io
import keyword
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":  # run as a program, Python finds modules beside this file only
    sys.path.append(str(Path(__file__).resolve().parent.parent))

from tools import api_page, bundle

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "src/millstream/"

HAND_WRITTEN = ("__init__", "concurrency", "opening", "runtime", "worker_runtime")
"""Modules that are written twice, because coroutines and threads cannot have the same text."""

GENERATED = tuple(
    sorted({path.stem for path in (ROOT / PACKAGE / "aio").glob("*.py")} - {*HAND_WRITTEN})
)
"""Modules of threads that are made from the modules of coroutines with the same names."""

NAMES = {
    "AsyncIterator": "Iterator",
    "AsyncSession": "Session",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "anext": "next",
    "asynccontextmanager": "contextmanager",
    "drive_async": "drive",
}

METHODS = {"len": "__len__"}
"""Methods that threads have in Python's own words."""

WORDS = {
    "the coroutines of one event loop": "any thread",
    "async with await": "with",
    "async with": "with",
    "coroutine": "thread",
    "Coroutine": "Thread",
}
"""In docstrings and comments; the first that fits."""

LEFT_OVER = re.compile(
    r"\b(async\w*|Async\w+|await\w*|aio|[Cc]oroutines?|event loops?|__a(enter|exit|iter|next)__)\b"
)


class Untranslated(Exception):
    """Something in the text of coroutines has no counterpart in the tables."""


def translate(text: str) -> str:
    """The text of threads for a text of coroutines, not yet formatted."""
    return _delegate(_rename_modules(_edit(text)))


def _edit(text: str) -> str:
    """Drop and rename what is a token of its own; everything else stays where it is."""
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(position: tuple[int, int]) -> int:
        return starts[position[0] - 1] + position[1]

    edits: list[tuple[int, int, str]] = []
    for index, token in enumerate(tokens):
        first, stop = place(token.start), place(token.end)
        if token.type == tokenize.NAME and token.string in ("async", "await"):
            edits.append((first, place(tokens[index + 1].start), ""))
            if token.string == "await" and (closing := _needless(tokens, index)) is not None:
                opening = tokens[index - 1]
                edits.append((place(opening.start), place(opening.end), ""))
                edits.append((place(closing.start), place(closing.end), ""))
        elif token.type == tokenize.NAME:
            defined = index > 0 and tokens[index - 1].string == "def"
            table = NAMES | METHODS if defined else NAMES
            edits.append((first, stop, table.get(token.string, token.string)))
        elif token.type in (tokenize.STRING, tokenize.COMMENT):
            edits.append((first, stop, _reword(token.string)))
    for first, stop, put in sorted(edits, reverse=True):
        text = text[:first] + put + text[stop:]
    return text


def _needless(tokens: list[tokenize.TokenInfo], at: int) -> tokenize.TokenInfo | None:
    """The `)` of parentheses that hold an awaited call and nothing else: both can go."""
    before = tokens[at - 2]
    is_call = before.type == tokenize.NAME and not keyword.iskeyword(before.string)
    if tokens[at - 1].string != "(" or is_call or before.string in (")", "]"):
        return None
    depth = 0
    for token in tokens[at + 1 :]:
        if depth == 0 and token.string == ")":
            return token
        if depth == 0 and token.type == tokenize.NAME and keyword.iskeyword(token.string):
            return None
        if depth == 0 and token.type == tokenize.OP and token.string not in (".", "(", "["):
            return None
        depth += (token.string in ("(", "[", "{")) - (token.string in (")", "]", "}"))
    return None


def _reword(words: str) -> str:
    for ours, theirs in WORDS.items():
        words = words.replace(ours, theirs)
    return words


def _rename_modules(text: str) -> str:
    """Import what threads have from where they have it."""
    return re.sub(r"^( *from )millstream\.aio\b", r"\1millstream.threads", text, flags=re.MULTILINE)


def _delegate(text: str) -> str:
    """A loop that only yields becomes `yield from`, which coroutines lack: it is faster."""
    lines = text.splitlines(keepends=True)
    found: list[str] = []
    while lines:
        line = lines.pop(0)
        if loop := re.fullmatch(r"( *)for (\w+) in (.+):\n", line):
            indent, each, whole = loop.groups()
            goes_on = len(lines) > 1 and lines[1].startswith(indent + " ")
            if lines[:1] == [f"{indent}    yield {each}\n"] and not goes_on:
                lines.pop(0)
                line = f"{indent}yield from {whole}\n"
        found.append(line)
    return "".join(found)


@functools.cache
def formatted(text: str, path: str) -> str:
    """A text as ruff sorts its imports and lays it out.

    Two processes of ruff per text cost more than all else here, so a program that generates several
    times, as the tests do, formats each text once.
    """
    for command in (["check", "--quiet", "--fix", "--select", "I"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", path, "-"]
        text = subprocess.run(
            ruff, cwd=ROOT, input=text, capture_output=True, check=True, text=True
        ).stdout
    return text


def generated(source: str, text: str, target: str) -> str:
    """The whole file of threads; `Untranslated` if it still speaks of coroutines."""
    made = formatted(translate(text), target)
    for number, line in enumerate(made.splitlines(), start=1):
        if left := LEFT_OVER.search(line):
            raise Untranslated(
                f"{target}:{number}: {left[0]!r} is left of {source}: say it otherwise there, or "
                f"add it to the tables of tools/generate.py: {line.strip()}"
            )
    head = f"# Generated from {source} by `make generate`: change that file, not this one.\n\n"
    return head + made


MAP = "docs/MAP.md"
OPENAPI = f"{PACKAGE}server/docs/openapi.json"

MAP_HEAD = """# Map

Every module of `src/millstream`, with the first line of its docstring.
`make generate` writes this page: change the docstring, not this page.
[ARCHITECTURE.md](ARCHITECTURE.md) says which package a change belongs to.
"""


def first_line(module: Path) -> str:
    """Return the first line of a module's docstring, as a table's cell can hold it."""
    return _first_line(module.read_text(encoding="utf-8"))


@functools.cache
def _first_line(text: str) -> str:
    docstring = ast.get_docstring(ast.parse(text)) or ""
    return docstring.partition("\n")[0].replace("|", "\\|")


def packages(source: Path) -> Iterator[Path]:
    """Yield the root package, then each package below it, by name."""
    yield source
    yield from sorted(init.parent for init in source.rglob("__init__.py") if init.parent != source)


def map_of(root: Path) -> str:
    """Return the text of the map for a checkout."""
    source = root / PACKAGE
    lines = [MAP_HEAD]
    for package in packages(source):
        name = package.relative_to(source).as_posix()
        modules = [path for path in sorted(package.glob("*.py")) if path.stem != "__init__"]
        title = "Top level" if name == "." else f"`{name}/`"
        lines += [f"## {title}", "", first_line(package / "__init__.py"), ""]
        if modules:
            lines += ["| module | contents |", "|---|---|"]
            lines += [f"| `{path.name}` | {first_line(path)} |" for path in modules]
            lines.append("")
    return "\n".join(lines)


WEB = f"{PACKAGE}web/"
CLIENT = "client.js"
"""The module of the browser's client whose exports pages use; `client/` holds its parts."""

CLIENT_HEAD = """\
// The client for browsers: rooms, logs, queues and the live figures of a Millstream server.
// No dependencies; docs/BROWSER.md explains it, millstream.d.ts has its types.
//
"""

MODULE_HEAD = f"""{CLIENT_HEAD}\
//   const {{ Millstream }} = await import("/millstream.js");
//
//   const room = new Millstream().room("lobby", {{ user: "Ada" }});
//   room.on("message", ({{ type, from, data }}) => console.log(type, from, data));
//   await room.send("chat", {{ text: "Hello" }});
//
"""

SCRIPT_HEAD = f"""{CLIENT_HEAD}\
//   <script src="/millstream.global.js"></script>
//   <script>const room = new millstream.Millstream().room("lobby", {{ user: "Ada" }});</script>
//
"""


def clients(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each form of the browser's client."""
    folder = root / WEB / "client"
    yield f"{WEB}millstream.js", bundle.as_module(folder, CLIENT, MODULE_HEAD)
    script = bundle.as_script(folder, CLIENT, SCRIPT_HEAD, variable="millstream")
    yield f"{WEB}millstream.global.js", script


def sources() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each generated source."""
    for name in GENERATED:
        source, target = f"{PACKAGE}aio/{name}.py", f"{PACKAGE}threads/{name}.py"
        yield target, generated(source, (ROOT / source).read_text(encoding="utf-8"), target)
    yield from clients(ROOT)


def pages() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each generated page; pages are made from all sources."""
    yield MAP, map_of(ROOT)
    yield api_page.PAGE, api_page.page_of(ROOT)
    yield OPENAPI, openapi_document()


@functools.cache
def openapi_document() -> str:
    """Return the OpenAPI document, made by a process that imports the sources as they are now."""
    program = (sys.executable, "-m", "millstream.server.docs")
    return subprocess.run(program, capture_output=True, check=True, text=True).stdout


def attributes() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of git's list of generated files."""
    threads = (f"{PACKAGE}threads/{name}.py" for name in GENERATED)
    scripts = (f"{WEB}{name}" for name in ("millstream.js", "millstream.global.js"))
    paths = (MAP, api_page.PAGE, OPENAPI, *threads, *scripts)
    lines = (f"{path} linguist-generated\n" for path in paths)
    head = "# Reviews and counts of lines skip generated files. `make generate` writes this list.\n"
    yield ".gitattributes", head + "".join(lines)


def stale_files(files: Iterator[tuple[str, str]], *, write: bool) -> Iterator[str]:
    """Yield the path of each file that is not as its sources say, and write it if wanted."""
    for target, text in files:
        place = ROOT / target
        if place.exists() and place.read_text(encoding="utf-8") == text:
            continue
        if write:
            place.write_text(text, encoding="utf-8")
            print(f"wrote {target}")
        yield target


def main(arguments: list[str]) -> int:
    """Write the files, or compare; 1 if one of them is not up to date."""
    write = "--check" not in arguments
    stale = list(stale_files(sources(), write=write))
    if write or not stale:
        stale += stale_files(pages(), write=write)
        stale += stale_files(attributes(), write=write)
    if stale and not write:
        print(f"not as their sources say: {', '.join(stale)}; run `make generate`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
