"""The page at /docs: the OpenAPI document for people, as one file without any outside resource.

Its style and its script stand in `docs.css` and `docs.js`. The policy that goes with it lets in
these two, by their hashes, and nothing else; without the script everything can still be read.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Any
from urllib.parse import urlencode

from millstream.server.docs import examples
from millstream.server.docs.openapi import JSON, error_table

_PARTS = resources.files("millstream.server.docs")
STYLE = _PARTS.joinpath("docs.css").read_text(encoding="utf-8")
SCRIPT = _PARTS.joinpath("docs.js").read_text(encoding="utf-8")

LINE_CHARS = 76
"""Of an example's JSON; what is longer is broken."""

START = """curl -d hello <span class=origin>http://127.0.0.1:8080</span>/logs/greetings/records
curl <span class=origin>http://127.0.0.1:8080</span>/logs/greetings/records"""


@dataclass(frozen=True, slots=True)
class Page:
    """A page, and the headers that keep it to itself."""

    html: str
    headers: dict[str, str]


def build(document: dict[str, Any]) -> Page:
    """The page of a document."""
    policy = (
        f"default-src 'none'; style-src '{_hash(STYLE)}'; script-src '{_hash(SCRIPT)}'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(
        "\n".join(_page(document)),
        {
            "content-security-policy": policy,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
        },
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _page(document: dict[str, Any]) -> Iterator[str]:
    title = escape(document["info"]["title"])
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{title}: the HTTP interface</title>"
    yield f"<style>{STYLE}</style>\n</head>\n<body>"
    yield '<a class=skip href="#intro">Skip to the content</a>\n<div class=page>'
    yield from _aside(document, title)
    yield "<main>"
    yield from _intro(document, title)
    yield "<p id=none class='none soft' hidden>Nothing here matches.</p>"
    for tag in document["tags"]:
        yield f"<section id={tag['name']}>\n<h2>{tag['name'].capitalize()}</h2>"
        yield f"<p class=soft>{escape(tag['description'])}</p>"
        for path, method, operation in _operations(document, tag["name"]):
            yield from _operation(document, path, method, operation)
        yield "</section>"
    yield from _types(document)
    yield from _errors()
    yield f"</main>\n</div>\n<script>{SCRIPT}</script>\n</body>\n</html>"


def _aside(document: dict[str, Any], title: str) -> Iterator[str]:
    yield f"<aside>\n<div class=brand><b>{title}</b>"
    yield "<button id=theme class=scripted type=button hidden>Dark</button></div>"
    yield "<div class=scripted hidden><label class=skip for=search>Find an operation</label>"
    yield '<input id=search type=search placeholder="Find an operation  /" autocomplete=off>'
    yield "<p id=found class=found role=status></p></div>"
    yield '<nav aria-label="Operations">'
    for tag in document["tags"]:
        name = tag["name"]
        yield f"<div data-section={name}>\n<h2><a href=#{name}>{name}</a></h2>\n<ul>"
        for _, method, operation in _operations(document, name):
            yield f"<li><a href=#{operation['operationId']}>{_method(method)} "
            yield f"<span>{_spaced(operation['operationId'])}</span></a></li>"
        yield "</ul>\n</div>"
    for name in ("types", "errors"):
        yield f"<div data-section={name}>\n<h2><a href=#{name}>{name}</a></h2>\n</div>"
    yield "</nav>\n</aside>"


def _intro(document: dict[str, Any], title: str) -> Iterator[str]:
    info = document["info"]
    token = document["components"]["securitySchemes"]["token"]["description"]
    yield f"<div id=intro>\n<h1>{title}</h1>\n<p class=lead>{escape(info['summary'])}</p>"
    yield f"<div class=start>{_example(START)}</div>\n<div class=cards>"
    yield f"<div class=card><h3>Conventions</h3><p>{_marked(info['description'])}</p></div>"
    yield f"<div class=card><h3>Tokens</h3><p>{escape(token)} Send it as "
    yield "<code>Authorization: Bearer ms_…</code>; <code>millstream token create</code> makes one."
    yield "</p></div>\n<div class=card><h3>More</h3><p>For machines: "
    yield "<a href=openapi.json>openapi.json</a>. At full speed: the WebSocket at "
    yield '<code>/socket</code>, or <code>millstream.open("http://…")</code> in Python. '
    yield "To watch: <a href=#getMetrics>metrics</a> and <a href=#getHealth>health</a>.</p></div>"
    yield "</div>\n</div>"


def _operations(document: dict[str, Any], tag: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if tag in operation["tags"]:
                yield path, method, operation


def _operation(
    document: dict[str, Any], path: str, method: str, operation: dict[str, Any]
) -> Iterator[str]:
    yield f"<details id={operation['operationId']} class=operation>\n<summary>"
    yield f"{_method(method)} <code>{escape(path)}</code>"
    yield f"<span class=what>{escape(operation['summary'])}</span></summary>\n<div>"
    if "description" in operation:
        yield f"<p>{_marked(operation['description'])}</p>"
    yield "<h3>Example</h3>" + _example(_curl(path, method, operation))
    if parameters := operation.get("parameters"):
        yield "<h3>Parameters</h3>"
        yield from _table(
            ("name", "where", "type", ""),
            [
                (
                    f"<code>{escape(one['name'])}</code>{_star(one.get('required', False))}",
                    one["in"],
                    _type(one["schema"]),
                    _marked(one.get("description", "")),
                )
                for one in parameters
            ],
        )
    if body := operation.get("requestBody"):
        yield "<h3>Body</h3>\n<p>" + ("" if body["required"] else "May be left out. ")
        yield " or ".join(_content(body["content"])) + "</p>"
        reference = body["content"].get(JSON, {}).get("schema", {}).get("$ref", "")
        if reference:
            schema = document["components"]["schemas"][reference.rsplit("/", 1)[1]]
            yield from _fields(schema)
    yield from _answers(operation["responses"])
    yield "</div>\n</details>"


def _answers(responses: dict[str, Any]) -> Iterator[str]:
    good = {status: one for status, one in responses.items() if not _is_problem(one)}
    yield "<h3>Answers</h3>"
    yield from _table(
        ("status", "meaning", "body"),
        [
            (status, escape(one["description"]), " or ".join(_content(one.get("content", {}))))
            for status, one in good.items()
        ],
    )
    yield '<h3>Refusals, as a <a href="#type-Problem">Problem</a></h3>\n<ul class=chips>'
    for status, one in responses.items():
        if _is_problem(one):
            yield f"<li><b>{status}</b> {escape(one['description'])}</li>"
    yield "</ul>"


def _is_problem(response: dict[str, Any]) -> bool:
    return "application/problem+json" in response.get("content", {})


def _curl(path: str, method: str, operation: dict[str, Any]) -> str:
    """A command line that asks it."""
    name = operation["operationId"]
    for parameter, value in examples.NAMES.items():
        path = path.replace(f"{{{parameter}}}", value)
    query = urlencode(examples.QUERIES.get(name, {}))
    address = f"<span class=origin>http://127.0.0.1:8080</span>{path}"
    if query:
        address = f"'{address}?{escape(query)}'"
    verb = "" if method == "get" else f" -X {method.upper()}"
    if name not in examples.BODIES:
        return f"curl{verb} {address}"
    verb = "" if method == "post" else verb  # it has a body, so curl posts by itself
    pretty = _pretty(examples.BODIES[name], indent="  ")
    return f"curl{verb} {address} \\\n  --json '{escape(pretty, quote=False)}'"


def _pretty(value: Any, indent: str) -> str:
    """JSON on as few lines as are short enough."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + len(indent) <= LINE_CHARS or not isinstance(value, dict | list):
        return line
    inner = indent + "  "
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {_pretty(one, inner)}" for key, one in value.items()]
    else:
        items = [_pretty(one, inner) for one in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return (
        f",\n{inner}".join([f"{opening}\n{inner}{items[0]}", *items[1:]]) + f"\n{indent}{closing}"
    )


def _content(content: dict[str, Any]) -> Iterator[str]:
    for kind, described in content.items():
        schema = described.get("schema", {})
        shown = f" {_type(schema)}" if "json" in kind else ""
        yield f"<code>{escape(kind)}</code>{shown}"


def _types(document: dict[str, Any]) -> Iterator[str]:
    yield "<section id=types>\n<h2>Types</h2>\n<p class=soft>What bodies and answers hold.</p>"
    for name, schema in document["components"]["schemas"].items():
        yield f"<details id=type-{escape(name)}>\n<summary class=type><code>{escape(name)}</code>"
        yield f"<span class=what>{_marked(schema.get('description', ''))}</span></summary>\n<div>"
        yield from _fields(schema)
        yield "</div>\n</details>"
    yield "</section>"


def _fields(schema: dict[str, Any]) -> Iterator[str]:
    required = set(schema.get("required", ()))
    yield from _table(
        ("field", "type", ""),
        [
            (
                f"<code>{escape(field)}</code>{_star(field in required)}",
                _type(one),
                _marked(one.get("description", "")),
            )
            for field, one in schema.get("properties", {}).items()
        ],
    )


def _errors() -> Iterator[str]:
    yield "<section id=errors>\n<h2>Errors</h2>"
    yield "<p class=soft>The <code>title</code> of a problem.</p>"
    yield "<div class=scroll><table id=error-table>"
    yield "<tr><th>name</th><th>status</th><th></th></tr>"
    for name, status, text in error_table():
        yield f"<tr id=error-{name}><td><code>{name}</code></td><td>{status}</td>"
        yield f"<td>{_marked(text)}</td></tr>"
    yield "</table></div>\n</section>"


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield "<div class=scroll><table>"
    yield "<tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>"
    yield "</table></div>"


def _example(html: str) -> str:
    return f"<div class=example><pre>{html}</pre><button type=button hidden>Copy</button></div>"


def _method(method: str) -> str:
    return f"<span class='method {method}'>{method.upper()}</span>"


def _star(required: bool) -> str:
    return "<span class=need title=required> *</span>" if required else ""


def _spaced(name: str) -> str:
    """`appendRecords` as words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower().capitalize()


def _type(schema: dict[str, Any]) -> str:
    """A schema in a few words, with links to what it refers to."""
    if reference := schema.get("$ref"):
        name = escape(reference.rsplit("/", 1)[1])
        return f'<a href="#type-{name}">{name}</a>'
    if choices := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        return " or ".join(_type(one) for one in choices)
    if "enum" in schema:
        return " | ".join(f"<code>{escape(str(one))}</code>" for one in schema["enum"])
    if "const" in schema:
        return f"<code>{escape(str(schema['const']))}</code>"
    kind = schema.get("type", "any")
    if kind == "array":
        if fixed := schema.get("prefixItems"):
            return f"[{', '.join(_type(one) for one in fixed)}]"
        inner = schema.get("items")
        return f"array of {_type(inner)}" if isinstance(inner, dict) else "array"
    shown = kind if isinstance(kind, str) else " or ".join(kind)
    if schema.get("contentEncoding"):
        shown += f" ({schema['contentEncoding']})"
    if "default" in schema and schema["default"] not in (None, "", [], {}):
        shown += f", {escape(str(schema['default']))} by default"
    return shown


def _marked(text: str) -> str:
    """Text with `code` in it."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
