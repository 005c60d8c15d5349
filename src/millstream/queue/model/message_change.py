"""The record of a change of a message's state, as the log of changes of a queue keeps it."""

from __future__ import annotations

from typing import Final, Literal, get_args

from msgspec import Struct

from millstream.schema.model import (
    EnumType,
    IntegerType,
    SchemaField,
    StructType,
    TextType,
    TimestampType,
)

ChangeName = Literal[
    "put",
    "claimed",
    "done",
    "released",
    "expired",
    "failed",
    "cancelled",
    "redriven",
    "removed",
]
"""What happened to a message."""

ChangedState = Literal["available", "in_flight", "done", "failed", "cancelled", "removed"]
"""The state after a change. A message that waits for its time or its retry is available, with `until`."""


class MessageChange(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A change of the state of one message."""

    queue: str
    message: int
    """The claim id. A redriven message gets another id."""
    log: str
    """The log of the record that the message is."""
    log_offset: int
    change: ChangeName
    state: ChangedState
    attempt: int = 0
    """The number of claims so far; of a redriven message, since it was redriven."""
    at: int
    """Milliseconds since the epoch: of `put` when the record was appended, however late it was routed."""
    until: int | None = None
    """The end of the lease, or the time from which the message can be claimed, in milliseconds."""
    consumer: str = ""
    """Who claimed the message; only of `claimed`."""
    reason: str = ""
    """Why an attempt ended; not of `done`."""


def _field(name: str, kind: TextType | IntegerType | TimestampType | EnumType) -> SchemaField:
    is_required = name not in _OMITTED
    default = "" if isinstance(kind, TextType) and not is_required else None
    return SchemaField(
        name=name, type=kind, required=is_required, default=0 if name == "attempt" else default
    )


_OMITTED = ("attempt", "until", "consumer", "reason")

CHANGE_SCHEMA: Final = StructType(
    name="MessageChange",
    fields=(
        _field("queue", TextType()),
        _field("message", IntegerType()),
        _field("log", TextType()),
        _field("log_offset", IntegerType()),
        _field("change", EnumType(values=get_args(ChangeName))),
        _field("state", EnumType(values=get_args(ChangedState))),
        _field("attempt", IntegerType(bits=32)),
        _field("at", TimestampType(written="ms")),
        _field("until", TimestampType(written="ms", nullable=True)),
        _field("consumer", TextType()),
        _field("reason", TextType()),
    ),
)
"""The schema of a log of changes."""
