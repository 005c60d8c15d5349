"""The OpenAPI 3.1 document, made from the table of endpoints and their structs."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from http import HTTPStatus
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import Struct

from millstream.errors import MillstreamError
from millstream.server import problems
from millstream.server.docs import examples, glossary
from millstream.server.problems import Problem
from millstream.server.rest.endpoint import ANY, JSON, Answer, Endpoint

_REFERENCE = "#/components/schemas/{name}"
_REFUSAL = "#/components/responses/Refusal{status}"

TAGS = {
    "logs": "Records at offsets that never change",
    "records": "Append records to a log, and read them",
    "cursors": "Positions of named readers of a log",
    "queues": "Work queues: each message goes to one consumer at a time",
    "messages": "Put messages into a queue, and look at them",
    "claims": "Claim messages, and finish them",
    "jobs": "Functions that run in the background: their state, results and output",
    "schedules": "Schedules of jobs: times at which a task runs",
    "transactions": "Several operations in one commit",
    "rooms": "Live messages to all listeners, presence, and retained values",
    "staging": "Bulk writes from many tasks, published in one commit",
    "replica": "Copies of logs, for other stores",
    "store": "The store as a whole",
    "cluster": "Nodes that share a store",
    "access": "Tokens, and tickets for browsers",
    "about": "About this API",
}

_STATUS_WORDS = {
    400: "The request cannot be read",
    401: "The token is missing or unknown",
    403: "The token lacks the permission",
    404: "It does not exist",
    406: "The server has no media type that the client accepts",
    408: "The body did not arrive in time",
    409: "The state is not what the request expected",
    410: "The record was deleted",
    413: "A limit is exceeded",
    415: "The media type of the body is not accepted",
    416: "The position is beyond the end",
    422: "The request is invalid and can never succeed",
    423: "The log is held exclusively",
    429: "Too many requests: slow down",
    500: "An error of the server, damage, or an unknown outcome",
    503: "The store cannot be used now",
}


def document(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """Return the complete document."""
    listed = list(endpoints)
    types = list(dict.fromkeys(_types(listed)))
    schema_list, schemas = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    references = dict(zip(types, schema_list, strict=True))
    schemas = {name: _with_tuples(schema) for name, schema in schemas.items()}
    for kind in _structs(types):
        _describe_fields(kind, schemas)
    paths: dict[str, Any] = {}
    for endpoint in listed:
        operation = _operation(endpoint, references, schemas)
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    for endpoint in listed:
        if endpoint.query is not None:
            schemas.pop(endpoint.query.__name__, None)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Millstream",
            "version": "1",
            "summary": "Durable logs and work queues over HTTP",
            "description": "Names in paths are percent-encoded; a slash within a name is `%2F`. "
            "Durations are seconds. Times in answers are RFC 3339 text in UTC; times of records, "
            "of messages of rooms and of tickets are milliseconds since the epoch. Every error is "
            "an RFC 9457 problem whose `title` is the error's name and whose `retry` says whether "
            "the same request may succeed later.",
        },
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "security": [{"token": []}, {}],
        "paths": paths,
        "x-errors": _error_table(),
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "responses": dict(_refusals(listed, references[Problem])),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Needed unless the server listens on this machine only.",
                }
            },
        },
    }


def _error_table() -> list[dict[str, Any]]:
    """Return all errors by name, with status and description."""
    kinds = sorted(_errors(MillstreamError), key=lambda kind: kind.__name__)
    return [
        {
            "name": kind.__name__,
            "status": problems.status_of(kind("")),
            "description": inspect.getdoc(kind),
        }
        for kind in kinds
        if kind.__doc__
    ]


def _errors(root: type[MillstreamError]) -> Iterator[type[MillstreamError]]:
    for kind in root.__subclasses__():
        if kind.__module__.startswith(("millstream.errors", "millstream.server")):
            yield kind
            yield from _errors(kind)


def _types(endpoints: list[Endpoint]) -> Iterator[Any]:
    yield Problem
    for endpoint in endpoints:
        types = (endpoint.body, endpoint.query)
        yield from (kind for kind in types if kind is not None)
        yield from (answer.type for answer in endpoint.answers if answer.type is not None)


def _operation(
    endpoint: Endpoint, references: dict[Any, Any], schemas: dict[str, Any]
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
    }
    if endpoint.detail:
        operation["description"] = endpoint.detail
    parameters = [*_path_parameters(endpoint), *_other_parameters(endpoint, schemas)]
    if parameters:
        operation["parameters"] = parameters
    if endpoint.takes_body:
        operation["requestBody"] = _body(endpoint, references)
    operation["responses"] = _responses(endpoint, references)
    return operation


def _path_parameters(endpoint: Endpoint) -> Iterator[dict[str, Any]]:
    for name, kind in endpoint.path_types.items():
        schema: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 255}
        if kind is int:
            schema = {"type": "string", "pattern": "^[0-9]{1,19}$"}
        shown = examples.NAMES[name]
        yield {"name": name, "in": "path", "required": True, "schema": schema, "example": shown}


def _other_parameters(endpoint: Endpoint, schemas: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if endpoint.query is not None:
        for name, schema in schemas[endpoint.query.__name__]["properties"].items():
            plain = _without_null(schema)
            parameter = {"name": name, "in": "query", "description": plain.pop("description", "")}
            if shown := examples.QUERIES.get(endpoint.name, {}).get(name):
                parameter["example"] = shown
            yield {**parameter, "schema": plain}
    for name, text in endpoint.headers.items():
        yield {"name": name, "in": "header", "description": text, "schema": {"type": "string"}}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove null from a parameter's schema: a query cannot contain null."""
    plain = {key: value for key, value in schema.items() if key != "anyOf"}
    if plain.get("default", 0) is None:
        del plain["default"]
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) == 1:
        plain.update(kinds[0])
    elif kinds:
        plain["anyOf"] = kinds
    return plain


def _body(endpoint: Endpoint, references: dict[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if endpoint.body is not None:
        content[JSON] = {"schema": references[endpoint.body]}
        if endpoint.name in examples.BODIES:
            content[JSON]["example"] = examples.BODIES[endpoint.name]
    for kind in endpoint.raw:
        for named in ("application/octet-stream", "text/plain") if kind == ANY else (kind,):
            content[named] = {"schema": {"type": "string", "format": "binary"}}
    return {"required": not endpoint.body_optional, "content": content}


def _responses(endpoint: Endpoint, references: dict[Any, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for answer in endpoint.answers:
        responses[str(answer.status)] = _good(answer, references)
    for status in endpoint.statuses():
        responses.setdefault(str(status), {"$ref": _REFUSAL.format(status=status)})
    return responses


def _refusals(endpoints: list[Endpoint], problem: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the name and the response of each refusal; operations share them."""
    statuses = {status for endpoint in endpoints for status in endpoint.statuses()}
    for status in sorted(statuses):
        refusal: dict[str, Any] = {
            "description": _STATUS_WORDS[status],
            "content": {problems.MEDIA_TYPE: {"schema": problem}},
        }
        if status in (429, 503):
            retry_after = {"description": "Seconds", "schema": {"type": "string"}}
            refusal["headers"] = {"Retry-After": retry_after}
        yield f"Refusal{status}", refusal


def _good(answer: Answer, references: dict[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if answer.type is not None:
        content[JSON] = {"schema": references[answer.type]}
    content.update({kind: {} for kind in answer.media_types})
    described: dict[str, Any] = {
        "description": answer.description or HTTPStatus(answer.status).phrase
    }
    if content:
        described["content"] = content
    return described


def _with_tuples(node: Any) -> Any:
    """Return tuples of a single type as arrays of fixed length, which every tool understands."""
    if isinstance(node, dict):
        fields = {key: _with_tuples(value) for key, value in node.items()}
        first, *further = fields.get("prefixItems", [None])
        if first is not None and all(item == first for item in further):
            del fields["prefixItems"]
            fields["items"] = first
        return fields
    return [_with_tuples(item) for item in node] if isinstance(node, list | tuple) else node


def _structs(types: Iterable[Any]) -> list[type[Struct]]:
    """Return the structs among types and their fields, each once."""
    structs: dict[type[Struct], None] = {}
    waiting = list(types)
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and issubclass(kind, Struct):
            if kind not in structs:
                structs[kind] = None
                waiting += [field.type for field in msgspec.structs.fields(kind)]
        else:
            waiting += getattr(kind, "__args__", ())
    return list(structs)


def _describe_fields(kind: type[Struct], schemas: dict[str, Any]) -> None:
    """Copy the docstrings of a struct's fields into its schema."""
    properties = schemas.get(kind.__name__, {}).get("properties", {})
    texts = {
        name: text for parent in reversed(kind.__mro__) for name, text in _words(parent).items()
    }
    for name, schema in properties.items():
        text = texts.get(name) or glossary.WORDS.get(name)
        if text and "$ref" in schema:
            properties[name] = {"allOf": [schema], "description": text}
        elif text:
            schema["description"] = text


def _words(kind: type) -> dict[str, str]:
    """Return the docstrings of a class's fields; empty without the source."""
    return _field_texts(kind.__module__).get(kind.__qualname__, {})


@cache
def _field_texts(module: str) -> dict[str, dict[str, str]]:
    """Return the docstrings of fields by name of the class, for each class of a module."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return {}
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
    return {node.name: _texts_below_fields(node) for node in classes}


def _texts_below_fields(node: ast.ClassDef) -> dict[str, str]:
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(node.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
