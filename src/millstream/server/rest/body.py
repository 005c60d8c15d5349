"""Bodies: read within a size and a time, and decoded into typed structs.

A body is counted while it arrives, so a `Content-Length` that lies or is missing changes nothing.
JSON is refused if it is too long, too deep, or holds so many parts that decoding would take far
more memory than the body itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from millstream.errors import InvalidInput, TooLarge
from millstream.server.frame_parts import decode_at_once
from millstream.server.problems import Malformed, TooSlow

T = TypeVar("T")

MiB = 1024 * 1024

JSON_BYTES_MAX = 24 * MiB
"""Of a JSON body: the largest value fits as base64. More is sent as raw bodies."""

JSON_PARTS_MAX = 500_000
"""Commas in a JSON body: a full batch of records with four fields each. Bounds the objects."""

JSON_INLINE_BYTES_MAX = 64 * 1024
"""A larger body is decoded in a thread, so that other requests do not wait for it."""

BODY_S = 60.0
"""How long a body may take to arrive, whatever its size: a slow sender is cut."""


async def read_body(
    request: Request, *, bytes_max: int, seconds: float, grow: Callable[[int], None] | None = None
) -> bytes:
    """The whole body; one that is too large or too slow is refused while it arrives.

    `grow` is told the size of each piece, and may refuse it too.
    """
    _check_length(request.headers.get("content-length"), bytes_max)
    parts: list[bytes] = []
    size = 0
    has_come = request.scope.get("state", {}).get("has_come")
    try:
        # A timer costs as much as all the rest; most bodies are there already.
        async with asyncio.timeout(None if has_come and has_come() else seconds):
            more = True
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise Malformed("the client left before the body ended")
                part = message.get("body", b"")
                size += len(part)
                if size > bytes_max:
                    raise _too_large(size, bytes_max)
                if grow is not None:
                    grow(len(part))
                parts.append(part)
                more = message.get("more_body", False)
    except TimeoutError as error:
        raise TooSlow(f"the body did not arrive within {seconds:g} s; send less at once") from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


def decode_json(data: bytes, kind: type[T]) -> T:
    """A JSON body as a struct; what is unknown or of a wrong type is refused."""
    if len(data) > JSON_BYTES_MAX:
        raise _too_large(len(data), JSON_BYTES_MAX, "a JSON body")
    if data.count(b",") > JSON_PARTS_MAX:
        raise TooLarge(
            f"a JSON body has up to {JSON_PARTS_MAX:,} commas; send less at once, or a raw body",
            size=data.count(b","),
            limit=JSON_PARTS_MAX,
        )
    try:
        data.decode()  # what is kept as it came is not looked at by the decoder
        return decode_at_once(lambda: msgspec.json.decode(data, type=kind))
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the body is not as it should be: {error}") from error
    except RecursionError as error:
        raise InvalidInput("the body's JSON is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"the body is not JSON: {error}") from error


def decode_query(pairs: list[tuple[str, str]], kind: Any) -> Any:
    """What follows the question mark, as a struct; repeats and strangers are refused."""
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(name for at, (name, _) in enumerate(pairs) if name in dict(pairs[:at]))
        raise InvalidInput(f"the parameter {twice[:40]!r} is given twice; expected once")
    if kind is None:
        if found:
            raise InvalidInput(f"there is no parameter {next(iter(found))!r} here")
        return None
    try:
        return msgspec.convert(found, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"a parameter is not as it should be: {error}") from error


def _check_length(told: str | None, bytes_max: int) -> None:
    if told is None:
        return
    if not (told.isascii() and told.isdigit()) or len(told) > 18:
        raise Malformed(f"Content-Length {told[:40]!r} is not a number of bytes")
    if int(told) > bytes_max:
        raise _too_large(int(told), bytes_max)


def _too_large(size: int, limit: int, what: str = "a body") -> TooLarge:
    return TooLarge(f"{what} has up to {limit:,} bytes", size=size, limit=limit)
