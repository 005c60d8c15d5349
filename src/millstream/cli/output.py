"""What `read` and `claim` print: a record or message per line, for people, as JSON, or its value."""

from __future__ import annotations

import sys
from base64 import b64encode
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import typer

from millstream import Message, Record
from millstream.cli.display import safe, say, time_of
from millstream.partitioning import partition_of

_JSON = "application/json"


@dataclass(frozen=True)
class Output:
    """How records and messages are printed."""

    json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False
    values: Annotated[
        bool, typer.Option("--values", help="Values only, as they are, one per line.")
    ] = False

    def __post_init__(self) -> None:
        if self.json and self.values:
            raise typer.BadParameter("--json or --values, not both")

    def print(self, one: Record | Message) -> None:
        """Print one of them."""
        if self.json:
            say(msgspec.json.encode(as_json(one)).decode())
        elif not self.values:
            say(_record_line(one) if isinstance(one, Record) else _message_line(one))
        elif sys.stdout.isatty():
            say(_shown(one))
        elif isinstance(one, Message) and one.damage:
            where = f"message {one.claim_id}, offset {one.offset} of log {one.log}"
            print(f"left out: {where}: {safe(one.reason)}", file=sys.stderr)
        else:
            sys.stdout.buffer.write((one.value or b"") + b"\n")


def as_json(one: Record | Message) -> dict[str, Any]:
    """One JSON object; `value_encoding` says how its value is to be read.

    Claim ids are text, for they are too large for a JavaScript number.
    """
    found: dict[str, Any] = {}
    if isinstance(one, Message):
        found = {
            "queue": one.queue,
            "claim": _claim(one),
            "claim_id": str(one.claim_id),
            "attempt": one.attempt,
            "until": one.until,
            "reason": one.reason,
            "damage": one.damage,
        }
    found |= {"log": one.log, "offset": one.offset, "timestamp": one.timestamp}
    if part := partition_of(one.log):
        found["partition"] = part[1]
    if isinstance(one, Record):
        found["appended"] = one.appended
    found |= {"key": None, "headers": one.headers.shown()}
    found["value"], found["value_encoding"] = _embedded(one)
    if one.key is not None:
        found["key"], found["key_encoding"] = _text_or_base64(one.key)
    return found


def _embedded(one: Record | Message) -> tuple[Any, str]:
    if one.value is None:
        return None, "null"
    if one.headers.get("content-type") == _JSON:
        try:
            return msgspec.json.decode(one.value), "json"
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass  # the header promises too much: show it as what it is
    return _text_or_base64(one.value)


def _text_or_base64(data: bytes) -> tuple[str, str]:
    try:
        return data.decode(), "text"
    except UnicodeDecodeError:
        return b64encode(data).decode(), "base64"


def _record_line(record: Record) -> str:
    part = partition_of(record.log)
    place = str(record.offset) if part is None else f"{part[1]}:{record.offset}"
    fields = place, time_of(record.timestamp), _key(record), _shown(record)
    if not sys.stdout.isatty():
        return "\t".join(fields)
    return f"{fields[0]:>8}  {fields[1]}  {fields[2]:<10}  {fields[3]}"


def _message_line(message: Message) -> str:
    fields = [_claim(message), _key(message), _shown(message)]
    if message.reason:
        fields.append(safe(message.reason.partition("\n")[0]))
    return ("  " if sys.stdout.isatty() else "\t").join(fields)


def _shown(one: Record | Message) -> str:
    if isinstance(one, Message) and one.damage:
        return "(damaged)"
    return "(null)" if one.value is None else safe(one.value)


def _claim(message: Message) -> str:
    return f"{message.claim_id}:{message.attempt}"


def _key(one: Record | Message) -> str:
    return "-" if one.key is None else safe(one.key)
