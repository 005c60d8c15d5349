"""What a server pushes to listeners of a room, against a model: resume, retained values, gaps.

Two servers' hubs on one file, in this process, without sockets. Clients join anew or resume at the
offset that they have come to, on either hub; they drop out, stop reading and read on; they and requests
send, put and delete retained values, one after the other or at once; messages expire; the store folds.
Promises:

- A client gets every message of others from where it joined on, in the order of offsets, once; what it
  does not get is told as a gap. A gap is told only of what has expired, or to a client that did not read.
- The values that a joiner is given, and the messages and gaps behind them, give what the room retains.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from millstream import Limits, RoomMessage
from millstream.embedded.session import open_file
from millstream.rooms import commands as c
from millstream.rooms.settings import RoomSettings
from millstream.server.auth.access import ANYONE_HERE
from millstream.server.core import Core
from millstream.server.rooms.entry import EntryRequest
from millstream.server.rooms.hub import Hub
from millstream.server.rooms.listener import RoomListener
from millstream.server.rooms.pushed_messages import PushedText
from millstream.server.settings import Settings
from millstream.testing import SimulatedClock

ROOM = "hall"
CLIENTS = 4
TTL_S = 60
WAITING_BYTES = 800
"""What may wait for a client that does not read: a few messages of these."""

PATIENCE_S = 30.0

WALKS, STEPS = 8, 120
WEIGHTS = {
    "send": 30,
    "request": 25,
    "resume": 16,
    "join": 5,
    "drop": 5,
    "stop reading": 7,
    "read on": 9,
    "expire": 4,
    "fold": 6,
    "settle": 3,
}
"""How often each thing happens."""

LARGE = "x" * 200


def random_step(chance: random.Random) -> list[Any]:
    """Some things that happen at once."""
    names = chance.choices([*WEIGHTS], [*WEIGHTS.values()], k=chance.choice([1, 1, 2, 4]))
    return [_random_action(chance, name) for name in names]


def _random_action(chance: random.Random, name: str) -> Any:
    client, hub = chance.randrange(CLIENTS), chance.randrange(2)
    if name in ("send", "request"):
        place = client if name == "send" else hub
        return name, place, [_random_message(chance) for _ in range(chance.choice([1, 1, 3]))]
    if name in ("join", "resume"):
        return name, client, hub
    if name == "expire":
        return name, chance.choice([20, 61])
    if name == "fold":
        return name, hub
    return (name,) if name == "settle" else (name, client)


def _random_message(chance: random.Random) -> RoomMessage:
    kind, key = chance.choice(["chat", "shape"]), chance.choice(["a", "b", None])
    deleted = kind == "shape" and chance.random() < 0.3
    data = json.dumps(chance.choice([1, 2, LARGE])).encode()
    return RoomMessage(kind, b"null" if deleted else data, key, deleted)


@dataclass
class Sent:
    """A message as the model knows it."""

    origin: str
    type: str
    key: str | None
    data: Any
    deleted: bool


@dataclass
class Client:
    """What one client was told, and what it makes of it."""

    name: str
    listener: Heard | None = None
    hub: int = 0
    position: int | None = None
    """The first offset that it has not processed; None before it joined."""
    number: int = 0
    may_miss: bool = False
    """Whether it did not read for a while since it was last told of a gap."""
    values: dict[tuple[str, str | None], tuple[int, Any]] = field(default_factory=dict)
    """The retained values that it knows, with their offsets; None for one that is gone."""
    as_of: int = 0
    """Messages before it are older than these values."""
    frames: list[dict[str, Any]] = field(default_factory=list)
    """What it has not looked at yet."""
    told: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    """Set whenever there is a frame."""


class Heard(RoomListener):
    """A listener whose bytes go to a client of the model."""

    __slots__ = ("closed", "parts", "to")

    def begin(self, client: Client) -> None:
        self.to = client
        self.closed: str | None = None
        self.parts = b""
        """Of a long frame, what has come so far."""

    def push(self, text: PushedText) -> None:
        self.tell(text.text)

    def tell(self, text: bytes, offset: int | None = None) -> None:
        if self.deferred_frames is not None:
            self.deferred_frames.append((text, offset))
            return
        self.to.frames.append(json.loads(text))
        self.to.told.set()

    def tell_part(self, text: bytes, offset: int, *, is_first: bool, is_last: bool) -> None:
        assert is_first == (not self.parts)
        self.parts += text
        if is_last:
            whole, self.parts = self.parts, b""
            self.to.frames.append(json.loads(whole))
            self.to.told.set()

    def close(self, code: int, reason: str) -> None:
        self.closed = reason


class Rooms:
    """Two hubs, the clients, and the model."""

    def __init__(self, hubs: list[Hub], clock: SimulatedClock) -> None:
        self.hubs = hubs
        self.clock = clock
        self.clients = [Client(f"client-{n}") for n in range(CLIENTS)]
        self.sent: dict[int, Sent] = {}
        self.start = self.end = 0
        """The offsets that can be read, as far as the model knows all before."""
        self.seen: Counter[str] = Counter()
        """How often something came about that the walk is for."""

    # What happens.

    async def step(self, actions: list[Any]) -> None:
        """Do some things at once; none of them twice with the same client."""
        chosen: dict[Any, Any] = {}
        for action in actions:
            name, *more = action
            with_client = name in ("send", "join", "resume", "drop", "stop reading", "read on")
            chosen.setdefault(("client", more[0]) if with_client else name, action)
        await asyncio.gather(*(self.act(*one) for one in chosen.values()))
        for client in self.clients:
            self.look_through(client)

    async def act(self, name: str, *more: Any) -> None:
        await getattr(self, name.replace(" ", "_"))(*more)

    async def send(self, index: int, messages: list[RoomMessage]) -> None:
        client = self.clients[index]
        listener = client.listener
        if listener is None:
            return
        client.number += 1
        stored = await listener.room.send_for(listener, messages, client.number)
        self.note(client.name, stored.offset, messages)
        for place, one in enumerate(messages):
            self.apply(client, stored.offset + place, one.type, one.key, _shown(one))

    async def request(self, hub: int, messages: list[RoomMessage]) -> None:
        self.note("", await self.hubs[hub].send(c.SendToRoom(ROOM, messages)), messages)

    def note(self, origin: str, offset: int, messages: list[RoomMessage]) -> None:
        for place, one in enumerate(messages):
            assert offset + place not in self.sent
            data = _shown(one)
            self.sent[offset + place] = Sent(origin, one.type, one.key, data, one.deleted)
        while self.end in self.sent:
            self.end += 1

    async def join(self, index: int, hub: int) -> None:
        await self.drop(index)
        self.clients[index].position = None
        await self.enter(index, hub)

    async def resume(self, index: int, hub: int) -> None:
        if self.clients[index].position is not None:
            await self.enter(index, hub)

    async def enter(self, index: int, hub: int) -> None:
        client = self.clients[index]
        await self.drop(index)
        asked = EntryRequest(client=client.name, offset=client.position)
        entered = await self.hubs[hub].enter(ANYONE_HERE, ROOM, asked, Heard)
        assert isinstance(entered.listener, Heard)
        client.listener, client.hub, client.may_miss = entered.listener, hub, False
        entered.listener.begin(client)
        self.hubs[hub].begin_listening(entered)

    async def drop(self, index: int) -> None:
        client = self.clients[index]
        if client.listener is not None:
            self.hubs[client.hub].leave(client.listener)
            client.listener = None
        self.look_through(client)
        client.frames.clear()  # what it had not processed is lost

    async def stop_reading(self, index: int) -> None:
        client = self.clients[index]
        if client.listener is not None:
            client.may_miss = True
            client.listener.pause()

    async def read_on(self, index: int) -> None:
        client = self.clients[index]
        if client.listener is not None and not client.listener.is_ready:
            client.listener.resume()

    async def expire(self, seconds: float) -> None:
        self.clock.advance(seconds)
        session = self.hubs[0].session
        await session.execute(c.SweepRooms())
        info = await session.execute(c.DescribeRoom(ROOM))
        assert info is not None
        self.start = info.start_offset

    async def fold(self, hub: int) -> None:
        await self.hubs[hub].session.ask(self.hubs[hub].core.store.fold)

    async def settle(self) -> None:
        """Wait until every client that reads has all that there is, and look whether that is right."""

    async def finish(self) -> None:
        """All that read have come to the end."""
        for index in range(CLIENTS):
            await self.read_on(index)
        reading = [one for one in self.clients if one.listener is not None]
        for client in reading:
            await self.until_it_has_all(client)
            assert client.listener is not None
            assert client.listener.closed is None, client.listener.closed
            assert self.known(client) == self.retained(), client

    async def until_it_has_all(self, client: Client) -> None:
        """Look again after each frame."""
        while not self.has_all(client):
            client.told.clear()
            try:
                await asyncio.wait_for(client.told.wait(), PATIENCE_S)
            except TimeoutError:
                pytest.fail(f"heard nothing more: {client}")

    def has_all(self, client: Client) -> bool:
        self.look_through(client)
        return client.position is not None and self.is_own(client, client.position, self.end)

    # What clients were told.

    def look_through(self, client: Client) -> None:
        """Process frames whose messages the model knows; the rest later."""
        while client.frames and client.frames[0].get("offset", 0) <= self.end:
            self.take(client, client.frames.pop(0))

    def take(self, client: Client, frame: dict[str, Any]) -> None:
        if "welcome" in frame:
            self.greeted(client, frame)
        elif "gap" in frame:
            self.missed(client, frame)
        elif "messages" in frame:
            for message in frame["messages"]:
                self.heard(client, message)
            assert self.is_own(client, client.position, frame["offset"]), (client, frame)
            client.position = max(client.position or 0, frame["offset"])
        else:
            assert "sent" in frame, frame

    def greeted(self, client: Client, frame: dict[str, Any]) -> None:
        offset = frame["welcome"]["offset"]
        assert client.position in (None, offset), (client, frame)
        assert ("retained" in frame) is (client.position is None)
        if client.position is None:
            assert frame["welcome"]["as_of"] == offset
            self.replace_values(client, frame["retained"], offset)
        elif offset < self.end:
            self.seen["resumed"] += 1
        client.position = offset

    def missed(self, client: Client, frame: dict[str, Any]) -> None:
        first, stop = frame["gap"]["from"], frame["gap"]["to"]
        assert client.position is not None
        assert client.position <= first < stop == frame["offset"], (client, frame)
        assert self.is_own(client, client.position, first), (client, frame)
        assert client.may_miss or stop <= self.start, (client, frame, self.start)
        self.seen["expired" if stop <= self.start else "not read"] += 1
        assert frame["as_of"] >= stop
        client.position = stop
        self.replace_values(client, frame["retained"], frame["as_of"])

    def replace_values(self, client: Client, retained: list[dict[str, Any]], as_of: int) -> None:
        """Take a snapshot over; what this client has stored later stays."""
        client.as_of = as_of
        client.values = {place: one for place, one in client.values.items() if one[0] >= as_of}
        for one in retained:
            place = one["type"], one.get("key")
            client.values.setdefault(place, (one["offset"], one["data"]))

    def heard(self, client: Client, message: dict[str, Any]) -> None:
        offset = message["offset"]
        assert client.position is not None
        assert offset >= client.position, ("twice, or out of order", client, message)
        assert self.is_own(client, client.position, offset), ("left out", client, message)
        sent = self.sent[offset]
        told = message["type"], message.get("key"), message["data"]
        assert told == (sent.type, sent.key, sent.data), (client, message)
        assert sent.origin != client.name, ("an echo", client, message)
        client.position = offset + 1
        self.apply(client, offset, sent.type, sent.key, sent.data)

    def apply(self, client: Client, offset: int, kind: str, key: str | None, data: Any) -> None:
        known = client.values.get((kind, key))
        is_later = offset >= client.as_of and (known is None or known[0] < offset)
        if kind == "shape" and is_later:
            client.values[kind, key] = offset, data

    def is_own(self, client: Client, start: int | None, stop: int) -> bool:
        """Whether the client has sent all that is in a range."""
        assert start is not None
        return all(self.sent[one].origin == client.name for one in range(start, stop))

    # What is right.

    def known(self, client: Client) -> dict[Any, Any]:
        return {place: one for place, one in client.values.items() if one[1] is not None}

    def retained(self) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for offset in range(self.end):
            one = self.sent[offset]
            if one.type == "shape":
                found[one.type, one.key] = offset, one.data
        return {place: one for place, one in found.items() if one[1] is not None}


def _shown(message: RoomMessage) -> Any:
    return None if message.deleted else json.loads(message.data)


async def walk(chance: random.Random) -> Counter[str]:
    """One walk; answers what it came across."""
    clock = SimulatedClock()
    limits = Limits(
        inline_bytes_max=chance.choice([0, 100, 2_048]),
        fold_deltas_min=chance.choice([1, 10_000]),
        tail_deltas_max=chance.choice([3, 10_000]),
    )
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.db"
        hubs = []
        for name in ("one", "two"):
            store = open_file(path, limits=limits, clock=clock, durability="relaxed")
            store.pause_keeper()
            hubs.append(Hub(Core(store, Settings(port=0)), name))
        settings = RoomSettings(
            ttl=TTL_S, retained=("shape",), priority=(), waiting_bytes_max=WAITING_BYTES
        )
        try:
            await hubs[0].session.execute(c.SpecifyRoom(ROOM, settings))
            rooms = Rooms(hubs, clock)
            for _ in range(STEPS):
                step = random_step(chance)
                await rooms.step(step)
                if ("settle",) in step:
                    await rooms.finish()
            await rooms.finish()
            return rooms.seen
        finally:
            for hub in hubs:
                hub.core.closing.set()
                await hub.close()
                await hub.core.close()


def test_listeners_of_two_servers_hear_what_the_model_says() -> None:
    seed = os.environ["MILLSTREAM_SEED"]
    seen: Counter[str] = Counter()
    for number in range(WALKS):
        seen += asyncio.run(walk(random.Random(f"{seed}/{number}")))
    assert seen.keys() == {"expired", "not read", "resumed"}
