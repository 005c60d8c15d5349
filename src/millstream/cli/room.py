"""`millstream room`: send to rooms, listen, and manage rooms and their servers."""

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
from millstream.worker.stop_signals import stopped_by_signals

room = typer.Typer(help="Send to rooms and listen to them.", no_args_is_help=True)

CHANGES = Declared(
    RoomSettings,
    {
        "ttl": "DURATION: how long messages can be read again; 0: unlimited.",
        "conflated": "TYPE: of this type only the latest message of each sender counts. May be repeated.",
        "tick": "DURATION: how long messages of conflated types are collected.",
        "retained": "TYPE: of this type the latest value of each key is retained. May be repeated.",
        "priority": "TYPE: this type overtakes others on slow connections. May be repeated.",
        "messages_per_second": "most messages per second of one connection; 0: unlimited.",
        "message_bytes_max": "the maximum size of a message's data.",
        "waiting_bytes_max": "the maximum that may wait for a slow listener.",
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
        str | None, typer.Argument(metavar="DATA", help="JSON; other text is sent as a string.")
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="TEXT", help="The key of the message.")] = None,
    user: Annotated[str, typer.Option(metavar="NAME", help="The user shown as the sender.")] = "",
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the retained value of the type and key.")
    ] = False,
) -> Printed:
    """Send a message to all listeners of a room."""
    noun = ms.room(room, user=user)
    if delete and data is not None:
        raise typer.BadParameter("a message with --delete has no DATA")
    offset = noun.delete(type, key) if delete else noun.send(type, _data_of(data), key)
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
        int | None, typer.Option(metavar="N", min=0, max=NUMBER_MAX, help="Most messages.")
    ] = None,
    timeout: Annotated[float | None, duration("End after this long without a message.")] = None,
) -> None:
    """Print new messages of a room, until Ctrl-C. The room need not exist yet."""
    noun = ms.room(room)
    offset = None
    if start is not None:
        bounds = noun.log.start_offset(), noun.log.end_offset()
        offset = parse_position(start, start=bounds[0], end=bounds[1])
    with stopped_by_signals(lambda: os._exit(0)):  # the command only reads: it may end anywhere
        for event in islice(noun.listen(offset, type or None, timeout=timeout), limit):
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
        gap = offsets(*event.gap)
        fields = [str(event.offset), "-", "-", "gap", "-", f"{gap} can no longer be read"]
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
    """Show the retained values of a room. It keeps the latest of each type and key."""
    page = room.retained(type or None)
    rows = [
        (
            value.type,
            value.key or "",
            value.offset,
            value.sender,
            when(value.timestamp),
            safe(value.data),
        )
        for value in page.values
    ]
    return Printed(
        {
            "offset": page.offset,
            "values": [{**asdict(value), "data": msgspec.Raw(value.data)} for value in page.values],
        },
        Table(("type", "key", "offset", "from", "sent", "data"), rows, none="nothing is retained"),
    )


@command(room, "room presence hall")
def presence(room: Room) -> Printed:
    """List the users in a room who are connected to a server."""
    users = room.presence()
    now_ms = SystemClock().wall_ms()
    rows = [
        (user.user, rough(now_ms - user.since_ms), user.connections, safe(user.state_json))
        for user in users
    ]
    return Printed(
        [
            {
                "user": user.user,
                "since_ms": user.since_ms,
                "connections": user.connections,
                "state": user.state,
            }
            for user in users
        ],
        Table(("user", "for", "connections", "state"), rows, none="no users"),
    )


@command(
    room,
    "room settings canvas",
    "room settings canvas --retained rect --ttl 10m",
    create=True,
)
def settings(room: RoomName, ms: Millstream, fields: Annotated[Fields, CHANGES]) -> Printed:
    """Show the settings of a room, or change some of them.

    A setting that is not named stays. An empty text removes all types.
    """
    noun = ms.room(room)
    now = noun.specify(**fields) if fields else noun.settings()
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
    infos = [info for info in ms.rooms() if fnmatchcase(info.name, pattern)]
    rows = [
        (info.name, len(info), size(info.bytes), info.retained, info.users, when(info.timestamp))
        for info in infos
    ]
    return Printed(
        [room_json(info) for info in infos],
        Table(
            ("room", "messages", "size", "retained", "users", "last message"),
            rows,
            none="no rooms" if pattern == "*" else f"no rooms like {safe(pattern)}",
        ),
    )


def room_json(info: RoomInfo) -> dict[str, Any]:
    """Return a room's facts as a JSON object, with its settings."""
    return {**asdict(info), "settings": asdict(info.settings)}


@command(room, "room instances", "room instances --json")
def instances(ms: Millstream) -> Printed:
    """List the servers that serve rooms, or did within a day.

    A silent server hangs, or vanished without having stopped.
    """
    servers = ms.instances()
    rows = [(server.name, _state(server), when(server.seen)) for server in servers]
    return Printed(
        [{**asdict(server), "state": _state(server)} for server in servers],
        Table(("instance", "state", "last sign of life"), rows, none="no server serves rooms"),
    )


def _state(server: InstanceInfo) -> str:
    return "alive" if server.is_alive else "silent" if server.is_silent else "stopped"


@command(room, "room remove-instance 10.0.0.7:8080")
def remove_instance(
    ms: Millstream,
    name: Annotated[str, typer.Argument(metavar="INSTANCE", help="The server's name.")],
) -> Printed:
    """Remove a server that is gone for good, but never stopped.

    No message waits for the server any more, and other servers no longer warn.
    """
    removed = ms.remove_instance(name)
    text = "removed" if removed else "is unknown, or has stopped"
    return Printed({"instance": name, "removed": removed}, f"instance {safe(name)} {text}")


@command(room, "room delete hall --yes")
def delete(room: Room, consent: Consent) -> Printed:
    """Delete a room with its messages and values, permanently."""
    consent.ask(f"Delete room {room.name!r}, its messages and its retained values?")
    deleted = room.delete_room()
    return Printed({"room": room.name, "deleted": deleted}, f"room {safe(room.name)} deleted")


@command(room, "room ticket hall ada --expires 5m", "room ticket hall ada --can read", create=True)
def ticket(
    room: RoomName,
    user: Annotated[str, typer.Argument(metavar="USER", help="The user of the ticket.")],
    ms: Millstream,
    can: Annotated[str, typer.Option(metavar="read|write", help="What the user may do.")] = "write",
    expires: Annotated[
        float | None, duration("How long the ticket is valid, up to an hour.", default="1m")
    ] = None,
) -> Printed:
    """Create a ticket that lets a browser enter a room as a user."""
    if can not in ("read", "write"):
        raise typer.BadParameter(f"--can must be read or write, not {can!r}")
    room_ticket = ms.room(room).ticket(user, "read" if can == "read" else "write", expires or 60)
    return Printed(asdict(room_ticket), room_ticket.ticket)
