"""A crowd: clients of rooms in a process of their own, so that a bench does not measure itself.

`python -m millstream.bench.crowd` reads one JSON task from standard input, says `"ready"` once all
its clients are in, begins with the next line that it is sent, and prints what it has found.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import uvloop
from msgspec import Struct

from millstream.bench.measure import seconds
from millstream.bench.rawsocket import RawSocket, dial

FILES_MAX = 20_000
QUIET_S = 1.0
"""After so long without a message everything has come, or will not come."""

WAIT_S_MAX = 60.0
OPENING_AT_ONCE = 50
RECONNECT_S = 0.02

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class CrowdTask(Struct, kw_only=True):
    """What a crowd is to do."""

    kind: str
    host: str
    port: int
    rooms: list[str]
    clients: int
    """In each room."""
    prefix: str = "c"
    """The prefix of client ids."""
    rate: float = 0.0
    """Messages per second of all clients together."""
    total_s: float = 0.0
    messages: int = 0
    """How many are expected of each sender, or sent at once."""
    reconnecting: int = 0
    frame: int = 1
    """Messages per frame."""
    in_flight: int = 4
    bytes: int = 100


class Member:
    """A client that records messages, senders and order."""

    def __init__(self, task: CrowdTask, room: str, name: str) -> None:
        self.room, self.name = room, name
        self.received: dict[str, int] = {}
        """Senders → how many of their messages came."""
        self.disorder = 0
        self.gaps = 0
        self.latencies: list[tuple[str, float]] = []
        self.offset: int | None = None
        self.sent = 0
        self.acked = 0
        self.last_s = 0.0
        self._next: dict[str, int] = {}
        self._last_offset = -1
        self._task = task
        self._socket: RawSocket | None = None
        self._welcome = asyncio.Event()

    async def connect(self) -> None:
        """Come in, or come back to where it was."""
        self._welcome.clear()
        back = "" if self.offset is None else f"&offset={self.offset}"
        target = f"/rooms/{self.room}?client={self.name}{back}"
        address = self._task.host, self._task.port
        self._socket = await dial(address, target, self._hear)
        async with asyncio.timeout(WAIT_S_MAX):
            await self._welcome.wait()

    def cut(self) -> None:
        """Lose the connection."""
        assert self._socket is not None
        self._socket.abort()

    def send(self, count: int = 1, kind: str = "chat") -> None:
        """Send a frame of messages with numbers and times."""
        pad = "x" * max(0, self._task.bytes - 60)
        messages = []
        for _ in range(count):
            data = {"s": self.name, "i": self.sent, "t": seconds(), "p": pad}
            messages.append({"type": kind, "data": data})
            self.sent += 1
        assert self._socket is not None
        self._socket.send(_encode({"send": messages, "n": self.sent}))

    def _hear(self, payload: bytes) -> None:
        now_s = seconds()
        frame: dict[str, Any] = _decode(payload)
        if "welcome" in frame:
            if self.offset is None:
                self.offset = frame["welcome"]["offset"]
            self._welcome.set()
            return
        if "sent" in frame:
            self.acked += 1
        for message in frame.get("messages", ()):
            self._note(message, now_s)
        if "gap" in frame:
            self.gaps += frame["gap"]["to"] - frame["gap"]["from"]
        if "messages" in frame or "gap" in frame:
            self.offset = frame["offset"]
        if "error" in frame:
            raise RuntimeError(f"the server refused: {frame['error']}")

    def _note(self, message: dict[str, Any], now_s: float) -> None:
        self.last_s = now_s
        if message["offset"] <= self._last_offset:
            self.disorder += 1
        self._last_offset = message["offset"]
        data = message["data"]
        sender, number = data["s"], data["i"]
        if number != self._next.get(sender, number):
            self.disorder += 1
        self._next[sender] = number + 1
        self.received[sender] = self.received.get(sender, 0) + 1
        self.latencies.append((sender, now_s - data["t"]))


async def gather_members(task: CrowdTask) -> list[Member]:
    """All clients, in their rooms, a few dozen coming in at a time."""
    members = [
        Member(task, room, f"{task.prefix}-{room}-{number}")
        for room in task.rooms
        for number in range(task.clients)
    ]
    for first in range(0, len(members), OPENING_AT_ONCE):
        await asyncio.gather(
            *(member.connect() for member in members[first : first + OPENING_AT_ONCE])
        )
    return members


async def quiet(members: list[Member], complete: Callable[[], bool] = lambda: False) -> None:
    """Wait until nothing comes any more, or everything has come."""
    began_s = seconds()
    while not complete() and seconds() - began_s < WAIT_S_MAX:
        last_s = max(began_s, max(member.last_s for member in members))
        if seconds() - last_s > QUIET_S:
            return
        await asyncio.sleep(0.02)


# Tasks.


async def talk(task: CrowdTask) -> dict[str, Any]:
    """Clients that send in turn at a steady rate, and note when messages of others come."""
    members = await gather_members(task)
    await ready()
    begun_s = due_s = seconds()
    turn = 0
    late_s = 0.0
    while (now_s := seconds()) < begun_s + task.total_s:
        if now_s < due_s:
            await asyncio.sleep(due_s - now_s)
            continue
        late_s = max(late_s, now_s - due_s)
        members[turn % len(members)].send()
        turn += 1
        due_s += 1 / task.rate
        if turn % 16 == 0:
            await asyncio.sleep(0)
    took_s = seconds() - begun_s
    await quiet(members)
    return {
        "took_s": took_s,
        "late_s": late_s,
        "sent": {member.name: member.sent for member in members},
        "received": {member.name: member.received for member in members},
        "rooms": {member.name: member.room for member in members},
        "disorder": sum(member.disorder for member in members),
        "gaps": sum(member.gaps for member in members),
        "latencies": _by_sender(members),
    }


def _by_sender(members: list[Member]) -> dict[str, list[float]]:
    latencies: dict[str, list[float]] = {}
    for member in members:
        for sender, latency_s in member.latencies:
            latencies.setdefault(sender.partition("-")[0], []).append(round(latency_s * 1000, 3))
    return latencies


async def stay(task: CrowdTask) -> dict[str, Any]:
    """Clients that say nothing, until they are told to go."""
    heard = 0

    def hear(payload: bytes) -> None:
        nonlocal heard
        heard += 1

    address, opened = (task.host, task.port), []
    for room in task.rooms:
        for first in range(0, task.clients, OPENING_AT_ONCE):
            numbers = range(first, min(task.clients, first + OPENING_AT_ONCE))
            targets = [f"/rooms/{room}?client={task.prefix}-{number}" for number in numbers]
            opened += await asyncio.gather(*(dial(address, target, hear) for target in targets))
    while heard < len(opened):
        await asyncio.sleep(0.02)
    await ready()
    lost = sum(connection.lost.done() for connection in opened)
    return {"heard": heard, "lost": lost}


async def hear_all(task: CrowdTask) -> dict[str, Any]:
    """A client sends as fast as its frames are stored, while the rest counts messages."""
    counted = 0

    def count(payload: bytes) -> None:
        nonlocal counted
        if payload.startswith(b'{"messages"'):
            counted += payload.count(b'"offset":') - 1

    room, address = task.rooms[0], (task.host, task.port)
    listeners = [
        await dial(address, f"/rooms/{room}?client=l-{number}", count)
        for number in range(task.clients)
    ]
    sender = Member(task, room, "sender")
    await sender.connect()
    await ready()
    frames = 0
    begun_s = seconds()
    while seconds() - begun_s < task.total_s:
        while frames - sender.acked < task.in_flight:
            sender.send(task.frame)
            frames += 1
        await asyncio.sleep(0.0005)
    expected = sender.sent * len(listeners)
    while counted < expected and seconds() - begun_s < task.total_s + WAIT_S_MAX:
        before = counted
        await asyncio.sleep(QUIET_S / 20)
        if counted == before and seconds() - begun_s > task.total_s + QUIET_S:
            break
    took_s = seconds() - begun_s
    return {"took_s": took_s, "counted": counted, "expected": expected}


async def hear_plain(task: CrowdTask) -> dict[str, Any]:
    """The same with a plain server that sends by itself: how many frames come in a time."""
    counted = 0

    def count(payload: bytes) -> None:
        nonlocal counted
        counted += 1

    address = task.host, task.port
    for _ in range(task.clients):
        await dial(address, "/", count)
    await ready()
    begun_s = seconds()
    await asyncio.sleep(task.total_s)
    return {"took_s": seconds() - begun_s, "counted": counted}


async def miss_nothing(task: CrowdTask) -> dict[str, Any]:
    """Send many messages to a crowded room at once; then again while clients reconnect."""
    members = await gather_members(task)
    sender = Member(task, task.rooms[0], "sender")
    await sender.connect()
    await ready()
    begun_s = seconds()
    rounds, reconnects = [], 0
    for unsteady in (0, task.reconnecting):
        over = asyncio.Event()
        going = [asyncio.create_task(come_and_go(member, over)) for member in members[:unsteady]]
        until_s = seconds() + task.total_s / 2
        while True:
            round_s = seconds()
            sender.send(task.messages)
            await quiet(members, have_all(members, sender.sent))
            rounds.append(round((seconds() - round_s) * 1000, 1))
            if seconds() >= until_s:
                break
        over.set()
        reconnects += sum(await asyncio.gather(*going))
        await quiet(members, have_all(members, sender.sent))
    got = [member.received.get("sender", 0) for member in members]
    return {
        "took_s": seconds() - begun_s,
        "sent": sender.sent,
        "missing": sum(max(0, sender.sent - received) for received in got),
        "twice": sum(max(0, received - sender.sent) for received in got),
        "disorder": sum(member.disorder for member in members),
        "gaps": sum(member.gaps for member in members),
        "reconnects": reconnects,
        "rounds_ms": rounds,
    }


async def come_and_go(member: Member, over: asyncio.Event) -> int:
    """Lose the connection and come back, again and again; answers how often."""
    count = 0
    while not over.is_set():
        member.cut()
        await member.connect()
        count += 1
        await asyncio.sleep(RECONNECT_S)
    return count


def have_all(members: list[Member], count: int) -> Callable[[], bool]:
    """Whether each has so many messages of the sender."""
    return lambda: all(member.received.get("sender", 0) >= count for member in members)


TASKS: dict[str, Callable[[CrowdTask], Coroutine[Any, Any, dict[str, Any]]]] = {
    "talk": talk,
    "stay": stay,
    "hear_all": hear_all,
    "hear_plain": hear_plain,
    "miss_nothing": miss_nothing,
}


async def ready() -> None:
    """Say that all is prepared, and wait for the word to begin."""
    sys.stdout.write('"ready"\n')
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)


def main() -> None:
    """Do the task that standard input names."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files_max = FILES_MAX if hard == resource.RLIM_INFINITY else min(FILES_MAX, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, hard))
    task = msgspec.json.decode(sys.stdin.readline(), type=CrowdTask)
    outcome = uvloop.run(TASKS[task.kind](task))
    with open(
        sys.stdout.fileno(), "wb", closefd=False
    ) as out:  # write everything, even to an unbuffered stream
        out.write(_encode(outcome) + b"\n")


if __name__ == "__main__":
    main()
