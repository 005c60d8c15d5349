"""Bodies: read within limits of size and time, and decoded into typed structs.

A body is counted while it arrives, so that a false or missing `Content-Length` does no harm. JSON
is refused if it is too long, too deeply nested, or has so many parts that decoding would take far
more memory than the body.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from starlette.requests import Request

from millstream.errors import InvalidInput, TooLarge
from millstream.server.frame_parts import decode_at_once
from millstream.server.problems import Malformed, TooSlow

T = TypeVar("T")

MiB = 1024 * 1024

JSON_BYTES_MAX = 24 * MiB
"""Largest JSON body: the largest value fits as base64. Larger batches are sent as raw bodies."""

JSON_PARTS_MAX = 500_000
"""Most commas in a JSON body: a full batch of records with four fields each. Bounds the objects."""

JSON_INLINE_BYTES_MAX = 64 * 1024
"""A larger body is decoded on a thread, so that other requests do not wait."""

_FIELD_PATH = re.compile(r"`\$\.(\w+)`$")
"""The path of a field at the top of a struct, at the end of an error of msgspec."""

BODY_S = 60.0
"""How long a body of any size may take to arrive; a slower sender is refused."""


async def read_body(
    request: Request, *, bytes_max: int, seconds: float, grow: Callable[[int], None] | None = None
) -> bytes:
    """Read the body; refuse a too large or too slow body while it arrives.

    `grow` is called with the size of each chunk and may raise to refuse the body.
    """
    _check_length(request.headers.get("content-length"), bytes_max)
    chunks: list[bytes] = []
    size = 0
    has_come = request.scope.get("state", {}).get("has_come")
    try:
        # A timer costs as much as the other work here; most bodies have arrived completely.
        async with asyncio.timeout(None if has_come and has_come() else seconds):
            has_more = True
            while has_more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise Malformed("the client left before the body ended")
                chunk = message.get("body", b"")
                size += len(chunk)
                if size > bytes_max:
                    raise _too_large(size, bytes_max)
                if grow is not None:
                    grow(len(chunk))
                chunks.append(chunk)
                has_more = message.get("more_body", False)
    except TimeoutError as error:
        raise TooSlow(f"the body did not arrive within {seconds:g} s; send less at once") from error
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def decode_json(data: bytes, kind: type[T]) -> T:
    """Decode a JSON body into a struct; refuse unknown fields and wrong types."""
    if len(data) > JSON_BYTES_MAX:
        raise _too_large(len(data), JSON_BYTES_MAX, "a JSON body")
    if data.count(b",") > JSON_PARTS_MAX:
        raise TooLarge(
            f"a JSON body may have at most {JSON_PARTS_MAX:,} commas; send less at once, or a raw body",
            size=data.count(b","),
            limit=JSON_PARTS_MAX,
        )
    try:
        data.decode()  # the decoder does not check the UTF-8 of `Raw` fields
        return decode_at_once(lambda: msgspec.json.decode(data, type=kind))
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the body has a wrong field: {error}{_allowed(kind, error)}") from error
    except RecursionError as error:
        raise InvalidInput("the body's JSON is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"the body is not JSON: {error}") from error


def decode_query(pairs: list[tuple[str, str]], kind: Any) -> Any:
    """Decode the query into a struct; refuse repeated and unknown parameters."""
    parameters = dict(pairs)
    if len(parameters) != len(pairs):
        twice = next(name for index, (name, _) in enumerate(pairs) if name in dict(pairs[:index]))
        raise InvalidInput(f"the parameter {twice[:40]!r} is given twice; expected once")
    if kind is None:
        if parameters:
            raise InvalidInput(f"this endpoint has no parameter {next(iter(parameters))!r}")
        return None
    try:
        return msgspec.convert(parameters, kind, strict=False)
    except msgspec.ValidationError as error:
        allowed = _allowed(kind, error)
        raise InvalidInput(f"a parameter has a wrong value: {error}{allowed}") from error


def _allowed(kind: Any, error: msgspec.ValidationError) -> str:
    """Return the values of a field of few values that an error of msgspec names, as words."""
    at_field = _FIELD_PATH.search(str(error))
    if at_field is None or not issubclass(kind, msgspec.Struct):
        return ""
    types = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    wanted = types.get(at_field[1])
    options = get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,)
    values = [
        value for option in options if get_origin(option) is Literal for value in get_args(option)
    ]
    return f"; it is one of {', '.join(map(str, values))}" if values else ""


def _check_length(length: str | None, bytes_max: int) -> None:
    if length is None:
        return
    if not (length.isascii() and length.isdigit()) or len(length) > 18:
        raise Malformed(f"Content-Length {length[:40]!r} is not a number of bytes")
    if int(length) > bytes_max:
        raise _too_large(int(length), bytes_max)


def _too_large(size: int, limit: int, noun: str = "a body") -> TooLarge:
    return TooLarge(f"{noun} may have at most {limit:,} bytes", size=size, limit=limit)
