"""The output of `read` and `claim`: a record or message per line, as text, JSON, or its value."""

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
    """The form in which records and messages are printed."""

    json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False
    values: Annotated[
        bool, typer.Option("--values", help="Print values only, unchanged, one per line.")
    ] = False

    def __post_init__(self) -> None:
        if self.json and self.values:
            raise typer.BadParameter("--json or --values, not both")

    def print(self, entry: Record | Message, *, is_delayed: bool = False) -> None:
        """Print a record or message; the line of a delayed message begins with id and due time."""
        if self.json:
            say(msgspec.json.encode(as_json(entry)).decode())
        elif is_delayed and isinstance(entry, Message) and not self.values:
            say(_delayed_line(entry))
        elif not self.values:
            say(_record_line(entry) if isinstance(entry, Record) else _message_line(entry))
        elif sys.stdout.isatty():
            say(_shown(entry))
        elif isinstance(entry, Message) and entry.damage:
            where = f"message {entry.claim_id}, offset {entry.offset} of log {entry.log}"
            print(f"left out: {where}: {safe(entry.reason)}", file=sys.stderr)
        else:
            sys.stdout.buffer.write((entry.value or b"") + b"\n")


def as_json(entry: Record | Message) -> dict[str, Any]:
    """Return a JSON object; `value_encoding` says how to read the value.

    Claim ids are text, because a JavaScript number cannot hold them.
    """
    fields: dict[str, Any] = {}
    if isinstance(entry, Message):
        fields = {
            "queue": entry.queue,
            "claim": _claim(entry),
            "claim_id": str(entry.claim_id),
            "id": entry.id,
            "attempt": entry.attempt,
            "until": entry.until,
            "reason": entry.reason,
            "damage": entry.damage,
        }
    fields |= {"log": entry.log, "offset": entry.offset, "timestamp": entry.timestamp}
    if partition := partition_of(entry.log):
        fields["partition"] = partition[1]
    if isinstance(entry, Record):
        fields["appended"] = entry.appended
    fields |= {"key": None, "headers": entry.headers.shown()}
    fields["value"], fields["value_encoding"] = _embedded(entry)
    if entry.key is not None:
        fields["key"], fields["key_encoding"] = _text_or_base64(entry.key)
    return fields


def _embedded(entry: Record | Message) -> tuple[Any, str]:
    if entry.value is None:
        return None, "null"
    if entry.headers.get("content-type") == _JSON:
        try:
            return msgspec.json.decode(entry.value), "json"
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass  # not JSON, against its header: show text or base64
    return _text_or_base64(entry.value)


def _text_or_base64(data: bytes) -> tuple[str, str]:
    try:
        return data.decode(), "text"
    except UnicodeDecodeError:
        return b64encode(data).decode(), "base64"


def _record_line(record: Record) -> str:
    partition = partition_of(record.log)
    place = str(record.offset) if partition is None else f"{partition[1]}:{record.offset}"
    fields = place, time_of(record.timestamp), _key(record), _shown(record)
    if not sys.stdout.isatty():
        return "\t".join(fields)
    return f"{fields[0]:>8}  {fields[1]}  {fields[2]:<10}  {fields[3]}"


def _message_line(message: Message) -> str:
    fields = [_claim(message), _key(message), _shown(message)]
    if message.reason:
        fields.append(safe(message.reason.partition("\n")[0]))
    return ("  " if sys.stdout.isatty() else "\t").join(fields)


def _delayed_line(message: Message) -> str:
    id = "-" if message.id is None else str(message.id)
    due = "-" if message.until is None else time_of(message.until)
    fields = [id, due, _key(message), _shown(message)]
    return ("  " if sys.stdout.isatty() else "\t").join(fields)


def _shown(entry: Record | Message) -> str:
    if isinstance(entry, Message) and entry.damage:
        return "(damaged)"
    return "(null)" if entry.value is None else safe(entry.value)


def _claim(message: Message) -> str:
    return f"{message.claim_id}:{message.attempt}"


def _key(entry: Record | Message) -> str:
    return "-" if entry.key is None else safe(entry.key)
