"""`millstream room`: what rooms there are, sending and listening, what they keep and who is there."""

from __future__ import annotations

import os
import sys
from fnmatch import fnmatchcase
from itertools import islice
from typing import Annotated, Any

import msgspec
import typer
from msgspec.structs import asdict

from millstream import InstanceInfo, Millstream, Room, RoomEvent, RoomInfo, RoomSettings
from millstream.cli.arguments import duration, parse_position
from millstream.cli.command import Consent, command
from millstream.cli.declared import Declared, Fields
from millstream.cli.display import (
    FactSheet,
    Printed,
    Table,
    offsets,
    rough,
    safe,
    say,
    size,
    span,
    time_of,
    when,
)
from millstream.cli.names import RoomName
from millstream.clock import SystemClock
from millstream.log.model.names import NUMBER_MAX
from millstream.worker.stopping import stopped_by_signals

room = typer.Typer(help="Send to rooms and listen to them.", no_args_is_help=True)

CHANGES = Declared(
    RoomSettings,
    {
        "ttl": "DURATION: how long messages can be read again; 0: unlimited.",
        "conflated": "TYPE: of this type only the latest of each sender counts. May be repeated.",
        "tick": "DURATION: how long messages of these types are collected.",
        "retained": "TYPE: of this type the latest value of each key is kept. May be repeated.",
        "priority": "TYPE: this type overtakes others on slow connections. May be repeated.",
        "messages_per_second": "messages that one connection may send; 0: unlimited.",
        "message_bytes_max": "the maximum of one message's data.",
        "waiting_bytes_max": "the maximum that may wait for one slow listener.",
    },
    show_defaults=False,
)

Types = Annotated[
    list[str] | None,
    typer.Option("--type", metavar="TYPE", help="Only this type. May be repeated."),
]


@command(
    room,
    'room send hall chat \'{"text": "hi"}\' --user ada',
    "room send canvas rect --key a --delete",
    create=True,
)
def send(
    room: RoomName,
    type: Annotated[str, typer.Argument(metavar="TYPE", help="The type of the message.")],
    ms: Millstream,
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="JSON; what is not JSON is sent as text.")
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="TEXT", help="The key of the message.")] = None,
    user: Annotated[str, typer.Option(metavar="NAME", help="Shown as the sender.")] = "",
    delete: Annotated[
        bool, typer.Option("--delete", help="Forget what is kept of the type and key.")
    ] = False,
) -> Printed:
    """Send one message to all listeners of a room."""
    found = ms.room(room, user=user)
    if delete and data is not None:
        raise typer.BadParameter("a message that deletes has no DATA")
    offset = found.delete(type, key) if delete else found.send(type, _data_of(data), key)
    return Printed({"room": room, "offset": offset}, f"{safe(room)} {offset}")


def _data_of(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return text


@command(room, "room listen hall", "room listen hall --from earliest --type chat --json")
def listen(
    room: RoomName,
    ms: Millstream,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="OFFSET", help="An offset, earliest, latest, or -10."),
    ] = None,
    type: Types = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=0, max=NUMBER_MAX, help="At most so many.")
    ] = None,
    timeout: Annotated[float | None, duration("End after so long without a message.")] = None,
) -> None:
    """Print messages as they come, until Ctrl-C. The room need not exist yet."""
    found = ms.room(room)
    offset = None
    if start is not None:
        bounds = found.log.start_offset(), found.log.end_offset()
        offset = parse_position(start, start=bounds[0], end=bounds[1])
    with stopped_by_signals(lambda: os._exit(0)):  # it only reads: it may leave wherever it is
        for event in islice(found.listen(offset, type or None, timeout=timeout), limit):
            say(msgspec.json.encode(_event_json(event)).decode() if json else _event_line(event))
            sys.stdout.flush()


def _event_json(event: RoomEvent) -> dict[str, Any]:
    if event.gap is not None:
        return {"gap": {"from": event.gap[0], "to": event.gap[1]}, "offset": event.offset}
    return {
        "offset": event.offset,
        "type": event.type,
        "from": event.sender,
        "key": event.key,
        "data": msgspec.Raw(event.data),
        "time": event.timestamp,
        "deleted": event.deleted,
    }


def _event_line(event: RoomEvent) -> str:
    if event.gap is not None:
        gone = offsets(*event.gap)
        fields = [str(event.offset), "-", "-", "gap", "-", f"{gone} can be read no more"]
    else:
        fields = [
            str(event.offset),
            time_of(event.timestamp),
            safe(event.sender) or "-",
            safe(event.type),
            "-" if event.key is None else safe(event.key),
            "deleted" if event.deleted else safe(event.data),
        ]
    return ("  " if sys.stdout.isatty() else "\t").join(fields)


@command(room, "room retained canvas", "room retained canvas --type rect --json")
def retained(room: Room, type: Types = None) -> Printed:
    """Show what a room keeps: the latest value of each type and key."""
    found = room.retained(type or None)
    rows = [
        (one.type, one.key or "", one.offset, one.sender, when(one.timestamp), safe(one.data))
        for one in found.values
    ]
    return Printed(
        {
            "offset": found.offset,
            "values": [{**asdict(one), "data": msgspec.Raw(one.data)} for one in found.values],
        },
        Table(("type", "key", "offset", "from", "sent", "data"), rows, none="nothing is retained"),
    )


@command(room, "room presence hall")
def presence(room: Room) -> Printed:
    """Show who is in a room: users who are connected to a server."""
    found = room.presence()
    now_ms = SystemClock().wall_ms()
    rows = [(one.user, rough(now_ms - one.since_ms), one.connections) for one in found]
    return Printed(
        [asdict(one) for one in found],
        Table(("user", "for", "connections"), rows, none="there is no user"),
    )


@command(
    room,
    "room settings canvas",
    "room settings canvas --retained rect --ttl 10m",
    create=True,
)
def settings(room: RoomName, ms: Millstream, given: Annotated[Fields, CHANGES]) -> Printed:
    """Show how a room is, or change some of its settings.

    What is not named stays as it is. An empty text takes all types away.
    """
    found = ms.room(room)
    now = found.specify(**given) if given else found.settings()
    pairs = [("room", room), *_facts(now)]
    return Printed({"room": room, "settings": asdict(now)}, FactSheet(pairs))


def _facts(now: RoomSettings) -> list[tuple[str, Any]]:
    return [
        ("time to live", span(now.ttl * 1000) if now.ttl else "unlimited"),
        ("conflated", ", ".join(now.conflated)),
        ("tick", span(now.tick * 1000)),
        ("retained", ", ".join(now.retained)),
        ("priority", ", ".join(now.priority)),
        ("messages per second", now.messages_per_second or "unlimited"),
        ("largest message", size(now.message_bytes_max)),
        ("may wait for a listener", size(now.waiting_bytes_max)),
    ]


@command(room, "room list", "room list 'team-*' --json", name="list")
def list_rooms(
    ms: Millstream,
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="Names such as 'team-*'.")
    ] = "*",
) -> Printed:
    """List the rooms of the store."""
    found = [info for info in ms.rooms() if fnmatchcase(info.name, pattern)]
    rows = [
        (info.name, len(info), size(info.bytes), info.retained, info.users, when(info.timestamp))
        for info in found
    ]
    return Printed(
        [room_json(info) for info in found],
        Table(
            ("room", "messages", "size", "retained", "users", "last message"),
            rows,
            none="no rooms" if pattern == "*" else f"no rooms like {safe(pattern)}",
        ),
    )


def room_json(info: RoomInfo) -> dict[str, Any]:
    """A room's facts as one JSON object, its settings included."""
    return {**asdict(info), "settings": asdict(info.settings)}


@command(room, "room instances", "room instances --json")
def instances(ms: Millstream) -> Printed:
    """List the servers that serve rooms, or did within a day.

    A silent one hangs, or is gone without having stopped.
    """
    found = ms.instances()
    rows = [(one.name, _standing(one), when(one.seen)) for one in found]
    return Printed(
        [{**asdict(one), "state": _standing(one)} for one in found],
        Table(("instance", "state", "last sign of life"), rows, none="no server serves rooms"),
    )


def _standing(one: InstanceInfo) -> str:
    return "alive" if one.is_alive else "silent" if one.is_silent else "stopped"


@command(room, "room remove-instance 10.0.0.7:8080")
def remove_instance(
    ms: Millstream,
    name: Annotated[str, typer.Argument(metavar="INSTANCE", help="Its name.")],
) -> Printed:
    """Forget a server that is gone for good, though it has not stopped.

    Then no message waits for it, and no other server warns of it.
    """
    gone = ms.remove_instance(name)
    text = "removed" if gone else "is not known, or has stopped"
    return Printed({"instance": name, "removed": gone}, f"instance {safe(name)} {text}")


@command(room, "room delete hall --yes")
def delete(room: Room, consent: Consent) -> Printed:
    """Delete a room with its messages and all that it keeps, permanently."""
    consent.ask(f"Delete room {room.name!r}, its messages and what it keeps?")
    gone = room.delete_room()
    return Printed({"room": room.name, "deleted": gone}, f"room {safe(room.name)} deleted")


@command(room, "room ticket hall ada --expires 5m", "room ticket hall ada --can read", create=True)
def ticket(
    room: RoomName,
    user: Annotated[str, typer.Argument(metavar="USER", help="Whom it is for.")],
    ms: Millstream,
    can: Annotated[str, typer.Option(metavar="read|write", help="What it allows.")] = "write",
    expires: Annotated[
        float | None, duration("How long it is good for, up to an hour.", default="1m")
    ] = None,
) -> Printed:
    """Make a ticket by which a browser enters a room as a user."""
    if can not in ("read", "write"):
        raise typer.BadParameter(f"--can is read or write, not {can!r}")
    made = ms.room(room).ticket(user, "read" if can == "read" else "write", expires or 60)
    return Printed(asdict(made), made.ticket)
