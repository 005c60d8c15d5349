"""The page at /docs: the OpenAPI document for people, as one file without any outside resource."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

from millstream.server.openapi import error_table

STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --soft: #5b6675; --paper: #ffffff;
  --panel: #f4f6f8; --line: #d9dee5; --link: #0b5cad; --get: #0b6b3a; --post: #0b5cad;
  --put: #8a5300; --patch: #8a5300; --delete: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #a3aebb; --paper: #12161c;
  --panel: #1b2129; --line: #313a46; --link: #7db7f5; --get: #6fd39b; --post: #7db7f5;
  --put: #e9b765; --patch: #e9b765; --delete: #f2958d; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 56rem; margin: 0 auto; padding: 1rem 1rem 4rem; }
h1 { margin: .5rem 0 0; } h2 { margin: 2.5rem 0 .25rem; scroll-margin-top: 1rem; }
h3 { font-size: 1rem; margin: 1rem 0 .25rem; }
p { margin: .25rem 0 .75rem; } .soft { color: var(--soft); }
a { color: var(--link); }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1rem; list-style: none; padding: 0; }
code { font: .9em ui-monospace, monospace; overflow-wrap: anywhere; }
details { border: 1px solid var(--line); border-radius: .5rem; margin: .5rem 0; }
details > div { padding: .25rem 1rem 1rem; border-top: 1px solid var(--line); }
summary { cursor: pointer; padding: .6rem 1rem; }
summary:focus-visible, a:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
details[open] > summary { background: var(--panel); border-radius: .5rem .5rem 0 0; }
.method { display: inline-block; min-width: 4.5rem; font-weight: 700; }
.get { color: var(--get); } .post { color: var(--post); } .put { color: var(--put); }
.patch { color: var(--patch); } .delete { color: var(--delete); }
.what { display: block; color: var(--soft); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .35rem .75rem .35rem 0;
  border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
tr:target, details:target { background: var(--panel); }
"""


@dataclass(frozen=True, slots=True)
class Page:
    """A page, and the headers that keep it to itself."""

    html: str
    headers: dict[str, str]


def build(document: dict[str, Any]) -> Page:
    """The page of a document."""
    style = hashlib.sha256(STYLE.encode()).digest()
    policy = (
        f"default-src 'none'; style-src 'sha256-{base64.b64encode(style).decode()}'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(
        "\n".join(_page(document)),
        {"content-security-policy": policy, "x-content-type-options": "nosniff"},
    )


def _page(document: dict[str, Any]) -> Iterator[str]:
    info, tags = document["info"], document["tags"]
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(info['title'])}: the HTTP interface</title>"
    yield f"<style>{STYLE}</style>\n</head>\n<body>\n<main>"
    yield f"<h1>{escape(info['title'])}</h1>\n<p class=soft>{escape(info['summary'])}</p>"
    yield f"<p>{_marked(info['description'])} For machines: <a href=openapi.json>openapi.json</a>."
    yield '</p>\n<nav aria-label="Sections">\n<ul>'
    for tag in tags:
        yield f"<li><a href=#{tag['name']}>{tag['name']}</a></li>"
    yield "<li><a href=#types>types</a></li>\n<li><a href=#errors>errors</a></li>\n</ul>\n</nav>"
    for tag in tags:
        yield from _section(document, tag)
    yield from _types(document)
    yield from _errors()
    yield "</main>\n</body>\n</html>"


def _section(document: dict[str, Any], tag: dict[str, str]) -> Iterator[str]:
    yield f"<h2 id={tag['name']}>{tag['name'].capitalize()}</h2>"
    yield f"<p class=soft>{escape(tag['description'])}</p>"
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if tag["name"] in operation["tags"]:
                yield from _operation(path, method, operation)


def _operation(path: str, method: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"<details id={operation['operationId']}>\n<summary>"
    yield f"<span class='method {method}'>{method.upper()}</span> <code>{escape(path)}</code>"
    yield f"<span class=what>{escape(operation['summary'])}</span></summary>\n<div>"
    if "description" in operation:
        yield f"<p>{_marked(operation['description'])}</p>"
    if parameters := operation.get("parameters"):
        yield "<h3>Parameters</h3>"
        yield from _table(
            ("name", "where", "type", ""),
            [
                (
                    f"<code>{escape(one['name'])}</code>",
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
    yield "<h3>Answers</h3>"
    yield from _table(
        ("status", "meaning", "body"),
        [
            (status, escape(one["description"]), " or ".join(_content(one.get("content", {}))))
            for status, one in operation["responses"].items()
        ],
    )
    yield "</div>\n</details>"


def _content(content: dict[str, Any]) -> Iterator[str]:
    for kind, described in content.items():
        schema = described.get("schema", {})
        shown = f" {_type(schema)}" if "json" in kind else ""
        yield f"<code>{escape(kind)}</code>{shown}"


def _types(document: dict[str, Any]) -> Iterator[str]:
    yield "<h2 id=types>Types</h2>"
    for name, schema in document["components"]["schemas"].items():
        yield f"<details id=type-{escape(name)}>\n<summary><code>{escape(name)}</code>"
        yield f"<span class=what>{_marked(schema.get('description', ''))}</span></summary>\n<div>"
        required = set(schema.get("required", ()))
        yield from _table(
            ("field", "type", ""),
            [
                (
                    f"<code>{escape(field)}</code>" + (" *" if field in required else ""),
                    _type(one),
                    _marked(one.get("description", "")),
                )
                for field, one in schema.get("properties", {}).items()
            ],
        )
        yield "<p class=soft>* required</p>\n</div>\n</details>"


def _errors() -> Iterator[str]:
    yield "<h2 id=errors>Errors</h2>\n<p class=soft>The <code>title</code> of a problem.</p>"
    yield "<div class=scroll><table>\n<tr><th>name</th><th>status</th><th></th></tr>"
    for name, status, text in error_table():
        yield f"<tr id=error-{name}><td><code>{name}</code></td><td>{status}</td>"
        yield f"<td>{_marked(text)}</td></tr>"
    yield "</table></div>"


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield "<div class=scroll><table>"
    yield "<tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>"
    yield "</table></div>"


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
