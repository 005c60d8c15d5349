"""Writes docs/API.md: every public name, with its signature and its docstring.

`tools/generate.py` calls it. A new name in an `__all__` of `PACKAGES`, or a new method, appears on the
page without a change here. A name that no section places stands in the section of its package.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.api_sources import Definition, Members, Sources, own_members, public_classes, without

PAGE = "docs/API.md"
COLUMNS = 100

HEAD = """\
# API

Every public name of the Python package. `make generate` writes this page from the signatures and
the docstrings in `src/millstream`: change them, not this page.

- `import millstream` is for programs of threads. [`millstream.aio`](#asyncio) has the same classes
  and methods for asyncio.
- `Seconds` is a number of seconds, or a `timedelta`. A value is bytes, text, or anything that JSON
  can express. `HeadersLike` is a mapping, or a list of pairs.
- Every error is a [`MillstreamError`](#errors). `error.retry` says whether a retry can help.

## Contents
"""

ASYNCIO = "Asyncio"
ASYNCIO_TEXT = """\
`import millstream.aio`. The texts above apply to these methods too. Await each `async def`; iterate
each method that returns an `AsyncIterator` by `async for`.
"""

ERRORS = "Errors"
ERRORS_TEXT = """\
`from millstream import errors`. The data of an error are attributes: `error.offset`.
"""

SECTIONS: dict[str, list[str]] = {
    "Stores": ["open", "Millstream", "Durability", "Limits", "SqliteOptions", "SlateOptions"],
    "Logs": [
        *("Log", "threads.metadata.Metadata", "PartitionedLog", "Stage", "Record", "RecordBlock"),
        *("Headers", "Item", "Producer", "Retention", "LogInfo", "PartitionOffset"),
        "SchemaVersion",
        *("record.Extent", "record.Owner", "record.Merged"),
    ],
    "Producers": [
        "LogProducer",
        "QueueProducer",
        "PartitionedProducer",
        "AppendHandle",
        "PutHandle",
        "PartitionedHandle",
        "streaming.options.ProducerSettings",
    ],
    "Cursors": ["Cursor", "PartitionedCursor", "CursorInfo"],
    "Queues": [
        *("Queue", "QueueSpec", "queue.model.spec.QueueSettings", "Backoff"),
        *(
            "PutResult",
            "Message",
            "Fate",
            "queue.model.message.Try",
            "QueueInfo",
            "queue.model.message.Skipped",
        ),
    ],
    "Workers": [
        *("threads.worker.Worker", "HandlerTransaction", "Retry", "Reject"),
        "worker.stats.WorkerStats",
    ],
    "Rooms": [
        *("Room", "RoomEvent", "RoomMessage", "RoomSettings", "RoomInfo", "InstanceInfo"),
        *("rooms.model.RetainedValues", "rooms.model.RetainedValue", "rooms.model.Present"),
        *("rooms.model.RoomTicket", "rooms.model.NounTicket"),
    ],
    "Transactions and SQL": [
        *("Transaction", "Later", "InteractiveTransaction", "SqlResult", "SqlRow"),
    ],
    "Sync": ["replica.sync.outcome.Outcome", "replica.sync.outcome.LogOutcome"],
    "Server": ["server.serving.running", "server.settings.Settings"],
}
"""Titles, and the names below them: names of `millstream`, or of a module below it."""

PACKAGES = {
    "": "More",
    "sql": "Relations for SQL",
    "sqlalchemy": "SQLAlchemy",
    "django": "Django",
    "testing": "Tests of your own",
}
"""Packages whose `__all__` is public, and the section of the names that `SECTIONS` does not place."""

ELSEWHERE = {"MillstreamError"}
"""Names that stand in the section of errors."""

ALL_METHODS = "*"
HIDDEN = {
    "HandlerTransaction": {"closing"},
    "Headers": {"held", "visible", "plain"},
    "Later": {"settle", "__init__"},
    "Limits": {ALL_METHODS},
    "Message": {"label", "index"},
    "Millstream": {"session"},
    "PartitionedCursor": {"open", "by_partition"},
    "QueueSpec": {ALL_METHODS},
    "RecordBlock": {"skip", "metadata", "payload", "bare_records"},
    "RoomSettings": {ALL_METHODS},
    "Settings": {ALL_METHODS},
}
"""Members that parts of Millstream use and users do not."""

TWINS = {"InteractiveTransaction": "Transaction", "HandlerTransaction": "Transaction"}
"""Classes that inherit the same methods as another class, which has their texts."""


@dataclass(frozen=True)
class Entry:
    """A public name on the page."""

    path: str
    """Where users import the name from, below `millstream`: `Log`, `worker.stats.WorkerStats`."""
    definition: Definition

    @property
    def name(self) -> str:
        """The name itself."""
        return self.definition.name


def page_of(root: Path) -> str:
    """Return the text of the page for a checkout."""
    sources = Sources(root)
    sections = placed_entries(sources)
    classes = {entry.name for entries in sections.values() for entry in entries}
    lines = [HEAD, *contents(sections)]
    for title, entries in sections.items():
        lines += [f"## {title}", ""]
        for entry in entries:
            lines += section_of(sources, entry, linked=classes - {entry.name})
    lines += [f"## {ERRORS}", "", ERRORS_TEXT, *errors(sources)]
    lines += [f"## {ASYNCIO}", "", ASYNCIO_TEXT, *asyncio_twins(sources)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def placed_entries(sources: Sources) -> dict[str, list[Entry]]:
    """Return the entries of each section, also of the names that `SECTIONS` does not place."""
    exports = [Entry(name, sources.find("", name)) for name in sources.exports("")]
    public = {(entry.definition.module.name, entry.name): entry for entry in exports}
    placed: set[str] = set(ELSEWHERE)

    def entry_of(path: str) -> Entry:
        module, _, name = path.rpartition(".")
        definition = sources.find(module, name)
        entry = public.get((definition.module.name, name), Entry(path, definition))
        placed.add(entry.path)
        return entry

    sections = {title: [entry_of(path) for path in paths] for title, paths in SECTIONS.items()}
    for package, title in PACKAGES.items():
        paths = [f"{package}.{name}".lstrip(".") for name in sources.exports(package)]
        if unplaced := [path for path in paths if path not in placed]:
            sections[title] = [entry_of(path) for path in unplaced]
    return sections


def contents(sections: dict[str, list[Entry]]) -> Iterator[str]:
    """Yield the table of contents: the sections, and the names in each."""
    for title, entries in sections.items():
        names = ", ".join(f"[`{entry.name}`](#{anchor(entry.name)})" for entry in entries)
        yield wrapped(f"- [{title}](#{anchor(title)}): {names}")
    for title in (ERRORS, ASYNCIO):
        yield f"- [{title}](#{anchor(title)})"
    yield ""


def section_of(sources: Sources, entry: Entry, *, linked: Collection[str]) -> Iterator[str]:
    """Yield the lines about one public name."""
    definition = entry.definition
    module, _, name = f"millstream.{entry.path}".rpartition(".")
    yield from (f"### {name}", "")
    if not isinstance(definition.node, ast.ClassDef):
        yield from (code(definition.signature), "", *prose(definition.docstring, linked))
    else:
        yield from prose(definition.docstring, linked)
    if module != "millstream":
        yield from (f"`from {module} import {name}`", "")
    if name in TWINS:
        twin = TWINS[name]
        yield from (f"It also has the methods of [`{twin}`](#{anchor(twin)}).", "")
    if isinstance(definition.node, ast.ClassDef):
        yield from members_of(name, shown_members(sources, definition), linked)


def shown_members(sources: Sources, definition: Definition) -> Members:
    """Return the members of a class that users need."""
    is_twin = definition.name in TWINS
    members = own_members(definition) if is_twin else sources.members(definition)
    hidden = HIDDEN.get(definition.name, set())
    methods = {} if ALL_METHODS in hidden else without(members.methods, hidden)
    return Members(without(members.facts, hidden), methods)


def members_of(name: str, members: Members, linked: Collection[str]) -> Iterator[str]:
    """Yield the lines about the members of a class: a list of facts, then each method."""
    for declaration, docstring in members.facts.values():
        meaning = link(" ".join(docstring.split()), linked)
        yield wrapped(f"- `{declaration}`" + (f": {meaning}" if meaning else ""))
    yield ""
    for method, (signatures, docstring) in members.methods.items():
        title = name if method == "__init__" else f"{name}: {method}"
        heading = [] if method == "__init__" else [f"#### {title}", ""]
        yield from (*heading, code("\n".join(signatures)), "", *prose(docstring, linked))


def errors(sources: Sources) -> Iterator[str]:
    """Yield the lines about errors: the tree of classes, then what each means."""
    module = sources.module("errors")
    yield from prose(ast.get_docstring(module.tree) or "", ())
    for definition in public_classes(module):
        bases = ", ".join(f"`{base}`" for base in definition.base_names)
        meaning = " ".join(definition.docstring.split())
        yield wrapped(f"- **`{definition.name}`** ({bases}): {meaning}")
    yield ""


def asyncio_twins(sources: Sources) -> Iterator[str]:
    """Yield the signatures of the names for asyncio."""
    for name in sources.exports("aio"):
        definition = sources.find("aio", name)
        yield from (f"### aio.{name}", "")
        if isinstance(definition.node, ast.ClassDef):
            methods = shown_members(sources, definition).methods.values()
            signatures = [signature for method, _ in methods for signature in method]
            yield from (code("\n".join([f"class {name}:", *map(indented, signatures)])), "")
        else:
            yield from (code(definition.signature), "")


def code(text: str) -> str:
    """Return a block of code; the tests of examples run blocks of `python`, and not of `py`."""
    return f"```py\n{text}\n```"


def indented(text: str) -> str:
    """Return a text with the indent of a class's body."""
    return textwrap.indent(text, "    ")


def prose(docstring: str, linked: Collection[str]) -> Iterator[str]:
    """Yield the paragraphs of a docstring; a paragraph with an indented line is code."""
    for paragraph in re.split(r"\n\s*\n", docstring):
        if re.search(r"^ ", paragraph, re.MULTILINE):
            yield from (f"```text\n{textwrap.dedent(paragraph)}\n```", "")
        elif paragraph:
            yield from (wrapped(link(" ".join(paragraph.split()), linked)), "")


def link(text: str, linked: Collection[str]) -> str:
    """Return a text in which the names of classes lead to their sections."""

    def with_link(match: re.Match[str]) -> str:
        name = match[1]
        return f"[`{name}`](#{anchor(name)})" if name in linked else match[0]

    return re.sub(r"`(\w+)`", with_link, text)


def anchor(title: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def wrapped(text: str) -> str:
    """Return a paragraph or a list's entry in lines of the page's width; code spans stay whole."""
    spaces = "\0"
    whole = re.sub(r"`[^`]*`", lambda span: span[0].replace(" ", spaces), text)
    lines = textwrap.wrap(
        whole,
        COLUMNS,
        subsequent_indent="  " if text.startswith("- ") else "",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace(spaces, " ")
