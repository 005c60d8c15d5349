"""Clients of rooms for tests: plain WebSockets, and what they were told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from millstream.server.serving import Serving

PATIENCE_S = 60.0


class Client:
    """One connection to a room."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.welcome: dict[str, Any] = {}
        self.retained: list[dict[str, Any]] | None = None
        self.offset = 0
        self.messages: list[dict[str, Any]] = []
        self.gaps: list[dict[str, Any]] = []
        self.sent: list[dict[str, Any]] = []
        self.errors: list[dict[str, Any]] = []
        self.pongs = 0

    def take(self) -> dict[str, Any]:
        """Read the next frame, and note what it says."""
        frame: dict[str, Any] = json.loads(self.socket.recv(PATIENCE_S))
        self.offset = frame.get("offset", self.offset) if "sent" not in frame else self.offset
        if "welcome" in frame:
            self.welcome, self.retained = frame["welcome"], frame.get("retained")
            self.offset = self.welcome["offset"]
        self.messages += frame.get("messages", [])
        if "gap" in frame:
            self.gaps.append(frame["gap"])
            self.retained = frame["retained"]
        if "sent" in frame:
            self.sent.append(frame)
        if "error" in frame:
            self.errors.append(frame)
        self.pongs += "pong" in frame
        return frame

    def say(self, frame: Any) -> None:
        self.socket.send(json.dumps(frame))

    def send(self, *messages: tuple[Any, ...], n: int | None = None) -> None:
        """Send messages: (type, data) or (type, data, key)."""
        sent = [
            dict(zip(("type", "data", "key", "deleted"), one, strict=False)) for one in messages
        ]
        self.say({"send": sent} if n is None else {"send": sent, "n": n})

    def heard(self, *types: str) -> list[Any]:
        """The data of all messages of some types; without, of those that are no presence."""
        return [
            one["data"]
            for one in self.messages
            if (one["type"] in types if types else one["type"] not in ("joined", "left"))
        ]

    def until_heard(self, count: int, *types: str) -> list[Any]:
        while len(self.heard(*types)) < count:
            self.take()
        return self.heard(*types)

    def until_sent(self, n: int) -> int:
        """Wait until a frame is stored: the offset of its first message."""
        while not (found := [one["offset"] for one in self.sent if one["sent"] == n]):
            self.take()
        return int(found[0])

    def until_closed(self) -> int:
        """Read until the server ends the connection: with which code."""
        while self.socket.close_code is None:
            try:
                self.take()
            except ConnectionClosed:
                break
        return self.socket.close_code or 0

    def settle(self) -> None:
        """Read everything that was sent to it so far."""
        pongs = self.pongs
        self.say({"ping": 1})
        while self.pongs == pongs:
            self.take()


def address(server: Serving, room: str, **query: Any) -> str:
    given = {name: value for name, value in query.items() if value is not None}
    return f"ws{server.url.removeprefix('http')}/rooms/{quote(room, safe='')}?{urlencode(given)}"


@contextmanager
def joined(
    server: Serving,
    room: str = "canvas",
    *,
    headers: dict[str, str] | None = None,
    options: dict[str, Any] | None = None,
    **query: Any,
) -> Iterator[Client]:
    """A client that was greeted."""
    where = address(server, room, **query)
    with connect(
        where, additional_headers=headers, open_timeout=PATIENCE_S, **(options or {})
    ) as socket:
        client = Client(socket)
        client.take()
        assert client.welcome
        yield client
