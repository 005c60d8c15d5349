"""Servers of one file that come, stop, die, hang, return or never do, while others listen.

Hubs of servers on one file, in this process, without sockets; the process that holds an instance is a
real one, which is killed when the server dies. Time is simulated: living servers renew their leases,
hanging ones do not, and any living one does the upkeep. Promises, whatever happened before:

- A server that has delivered everything is healthy; of the others it says no more than that one hangs.
- Messages expire once every server with listeners has delivered them, is gone, or hangs for minutes.
- Within the lease, 5 s and a turn of the upkeep, exactly those users are there whose connections live.
  Each is told to have come and to have gone in turn: no ghost, and none forgotten.
- No watermark stays of a server that has no listener in the room.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millstream import RoomMessage
from millstream.embedded.session import open_file
from millstream.log.commands import ListCursors
from millstream.rooms import commands as c
from millstream.rooms.holder import make_holder
from millstream.rooms.settings import RoomSettings
from millstream.rooms.sweep import SEEN_MS
from millstream.server.auth.access import ANYONE_HERE
from millstream.server.core import Core
from millstream.server.rooms.entry import EntryRequest
from millstream.server.rooms.hub import Hub
from millstream.server.rooms.listener import RoomListener
from millstream.server.rooms.pushed_messages import PushedText
from millstream.server.settings import Settings
from millstream.testing import SimulatedClock

ROOMS = ("hall", "yard")
USERS = ("ann", "bob", "cid")
SERVERS = ("one", "two", "three")
TTL_S, LEASE_S, GRACE_S, TURN_S = 10, 30, 5, 5
PATIENCE_S = 60.0

WALKS, STEPS = 4, 50
WALKS_MAX = 40
"""Walks go on beyond `WALKS` until each of `WANTED` came about, whatever the seed."""
WANTED = {
    "started again",
    "stopped with listeners",
    "died with listeners",
    "hung with listeners",
    "emptied",
    "expired",
}
WEIGHTS = {
    "enter": 25,
    "leave": 8,
    "empty": 5,
    "send": 20,
    "start": 14,
    "stop": 6,
    "die": 8,
    "hang": 7,
    "go on": 6,
    "wait": 12,
    "settle": 5,
}
"""How often each thing happens."""


class Heard(RoomListener):
    """A listener that only notes that it was told something."""

    __slots__ = ("told",)

    def begin(self, told: asyncio.Event) -> None:
        self.told = told

    def push(self, text: PushedText) -> None:
        self.told.set()

    def tell(self, text: bytes, offset: int | None = None) -> None:
        self.told.set()

    def tell_part(self, text: bytes, offset: int, *, is_first: bool, is_last: bool) -> None:
        self.told.set()

    def close(self, code: int, reason: str) -> None:
        pass


@dataclass
class Server:
    """One life of a server: a hub, and the process that holds its name."""

    hub: Hub
    process: subprocess.Popen[bytes]
    listeners: list[Heard] = field(default_factory=list)
    hangs: bool = False

    async def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()  # type: ignore[union-attr]
        self.hub.core.closing.set()
        await self.hub.core.close()


class World:
    """The servers that run, and what should be so."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        self.path = path
        self.chance = chance
        self.clock = SimulatedClock()
        self.servers: dict[str, Server] = {}
        self.left_behind: set[str] = set()
        """Names of servers that died, and were not started again."""
        self.told = asyncio.Event()
        self.seen: Counter[str] = Counter()

    async def step(self) -> None:
        (name,) = self.chance.choices([*WEIGHTS], [*WEIGHTS.values()])
        await getattr(self, name.replace(" ", "_"))()

    def choose(self, *, hangs: bool = False) -> tuple[str, Server] | None:
        found = [(name, one) for name, one in self.servers.items() if one.hangs is hangs]
        return self.chance.choice(found) if found else None

    # What happens.

    async def start(self) -> None:
        """A server begins, under a new name or one that was used before."""
        name = self.chance.choice(SERVERS)
        if name in self.servers:
            return
        process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        store = open_file(self.path, clock=self.clock, durability="relaxed")
        store.pause_keeper()
        hub = Hub(Core(store, Settings(port=0)), name)
        hub.attendance.holder = holder_of(process, self.clock)
        self.servers[name] = Server(hub, process)
        if self.chance.random() < 0.5:
            hub.attendance.reclaim()
        self.seen["started again"] += name in self.left_behind
        self.left_behind.discard(name)

    async def enter(self) -> None:
        if (found := self.choose()) is None:
            return
        _, server = found
        user, room = self.chance.choice([*USERS, ""]), self.chance.choice(ROOMS)
        entered = await server.hub.enter(ANYONE_HERE, room, EntryRequest(user=user), Heard)
        assert isinstance(entered.listener, Heard)
        entered.listener.begin(self.told)
        server.hub.begin_listening(entered)
        server.listeners.append(entered.listener)

    async def leave(self) -> None:
        if (found := self.choose()) is not None and found[1].listeners:
            server = found[1]
            listener = server.listeners.pop(self.chance.randrange(len(server.listeners)))
            server.hub.leave(listener)

    async def empty(self) -> None:
        """All listeners of a server leave, after it has noted how far it is; it lives on."""
        if (found := self.choose()) is not None and found[1].listeners:
            server = found[1]
            await server.hub.attendance.keep_up(renews=True)
            while server.listeners:
                server.hub.leave(server.listeners.pop())
            self.seen["emptied"] += 1
            await self.send()

    async def send(self) -> None:
        if (found := self.choose()) is not None:
            messages = [RoomMessage("chat")] * self.chance.choice([1, 5])
            await found[1].hub.send(c.SendToRoom(self.chance.choice(ROOMS), messages))

    async def stop(self) -> None:
        """A server is told to stop, as by SIGTERM."""
        if (found := self.choose()) is not None:
            name, server = found
            del self.servers[name]
            self.seen["stopped with listeners"] += bool(server.listeners)
            await server.hub.close()
            await server.close()

    async def die(self) -> None:
        """A server is killed, also one that hangs."""
        hanging = self.chance.random() < 0.3
        if (found := self.choose(hangs=hanging)) is not None:
            name, server = found
            del self.servers[name]
            self.left_behind.add(name)
            self.seen["died with listeners"] += bool(server.listeners)
            await server.close()
            await server.hub.close()  # the store is closed: nothing is told to anybody

    async def hang(self) -> None:
        if len(self.servers) > 1 and (found := self.choose()) is not None:
            found[1].hangs = True
            self.seen["hung with listeners"] += bool(found[1].listeners)

    async def go_on(self) -> None:
        if (found := self.choose(hangs=True)) is not None:
            found[1].hangs = False

    async def wait(self) -> None:
        await self.advance(self.chance.choice([1, 7, 31, 61]))

    async def advance(self, seconds: float) -> None:
        """Let time pass: living servers renew their leases, and one of them does the upkeep."""
        while seconds > 0:
            self.clock.advance(min(TURN_S, seconds))
            seconds -= TURN_S
            for server in self.servers.values():
                if not server.hangs:
                    await server.hub.attendance.keep_up(renews=True)
            await self.tend()

    async def tend(self) -> None:
        if (found := self.choose()) is not None:
            core = found[1].hub.core
            await core.session.ask(core.store.tend)

    # What is right.

    async def settle(self) -> None:
        """Look at all promises, once there was time for them."""
        if self.choose() is None:
            await self.start()
        if self.choose() is None:
            return
        await self.heard()
        for server in [*self.servers.values()]:
            if not server.hangs:
                await server.hub.attendance.keep_up(renews=True)  # back, if it hung
            await server.hub.attendance.note_left()
        await self.advance(LEASE_S + GRACE_S + TURN_S)
        await self.heard()
        for room in ROOMS:
            await self.check_presence(room)
        for server in self.servers.values():
            if not server.hangs:
                await self.check_health(server)
        await self.advance(TTL_S + LEASE_S + TURN_S)
        if any(server.hangs for server in self.servers.values()):
            await self.advance(SEEN_MS / 1000)
        await self.heard()
        await self.advance(TTL_S + LEASE_S + TURN_S)
        for room in ROOMS:
            await self.check_expiry(room)

    async def heard(self) -> None:
        """Wait until every server that has listeners has delivered all, also those that hang."""
        while True:
            self.told.clear()
            behind = [one for one in self.servers.values() if await is_behind(one)]
            if not behind:
                return
            await asyncio.wait_for(self.told.wait(), PATIENCE_S)

    async def ask(self, command: Any) -> Any:
        found = self.choose()
        assert found is not None
        return await found[1].hub.session.execute(command)

    async def check_presence(self, room: str) -> None:
        expected = Counter(
            listener.user
            for server in self.servers.values()
            if not server.hangs
            for listener in server.listeners
            if listener.room.name == room and listener.user
        )
        found = (await self.ask(c.GetPresence(room))).users
        assert {one.user: one.connections for one in found} == expected, room

    async def check_health(self, server: Server) -> None:
        checks = {one.name: one for one in (await server.hub.core.checkup.health()).checks}
        rooms = checks.get("rooms")
        assert rooms is None or rooms.status == "healthy", rooms
        found = await self.ask(c.ListInstances())
        silent = {one.name for one in found if one.is_silent}
        hanging = {
            name for name, one in self.servers.items() if one.hangs and one.hub.attendance.is_taken
        }
        assert silent == hanging
        if found:
            assert checks["instances"].status == ("warning" if silent else "healthy")

    async def check_expiry(self, room: str) -> None:
        info = await self.ask(c.DescribeRoom(room))
        assert info is not None
        assert info.start_offset == info.end_offset, (room, info)
        self.seen["expired"] += info.end_offset > 0
        cursors = await self.ask(ListCursors(f"room:{room}"))
        with_listeners = {
            name
            for name, server in self.servers.items()
            if server.hangs or any(one.room.name == room for one in server.listeners)
        }
        """Or it hung before it could remove the watermark: that guards nothing after a while."""
        named = {one.name.removeprefix("instance:").rpartition("#")[0] for one in cursors}
        assert named <= with_listeners, (named, with_listeners)

    async def finish(self) -> None:
        for server in self.servers.values():
            server.hangs = False
        await self.settle()

    async def close(self) -> None:
        for server in self.servers.values():
            await server.hub.close()
            await server.close()


def holder_of(process: subprocess.Popen[bytes], clock: SimulatedClock) -> str:
    """The text of a holder that is another process."""
    boot, space, _, _, number = make_holder(clock).split("/")
    stat = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8")
    return "/".join([boot, space, str(process.pid), stat.rpartition(")")[2].split()[19], number])


async def is_behind(server: Server) -> bool:
    """Whether a server has yet to deliver something."""
    return any(one.unpassed for one in await server.hub.core.checkup.backlogs())


async def walk(chance: random.Random) -> Counter[str]:
    """One walk; answers what it came across."""
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory) / "model.db", chance)
        await world.start()
        try:
            for room in ROOMS:
                await world.ask(c.SpecifyRoom(room, RoomSettings(ttl=TTL_S)))
            for _ in range(STEPS):
                await world.step()
            await world.finish()
            return world.seen
        finally:
            await world.close()


def test_servers_that_come_and_go_neither_delay_nor_alarm_each_other() -> None:
    seed = os.environ["MILLSTREAM_SEED"]
    seen: Counter[str] = Counter()
    for number in range(WALKS_MAX):
        if number >= WALKS and seen.keys() == WANTED:
            break
        seen += asyncio.run(walk(random.Random(f"{seed}/{number}")))
    assert seen.keys() == WANTED
