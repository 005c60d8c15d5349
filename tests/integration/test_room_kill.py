"""Three servers on one file, fifty users in a room, and one server is killed.

nothing that a client was told to be stored is lost, and nothing comes twice
clients of the dead server resume on the others, and send again what was not stored
users that came back were never away; those that did not have left, told once
after the dead server's lease nobody of it is left
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus

from tests.integration.programs import program

USERS = 50
AWAY = 5
"""Users of the killed server that do not come back."""

EACH = 5
"""Messages that each user sends before the kill, and again while and after it happens."""

LEASE = "2s"
PATIENCE_S = 120


class Member:
    """A client that keeps its place in the room over lost connections."""

    def __init__(self, number: int, urls: list[str]) -> None:
        self.user = f"user {number}"
        self.urls = urls
        self.stays_away = False
        self.heard: list[Any] = []
        self.sent: set[int] = set()
        """Numbers that are known to be stored."""
        self.is_in = asyncio.Event()
        self.news = asyncio.Event()
        self._offset: int | None = None
        self._unconfirmed: dict[int, Any] = {}
        self._from: int | None = None
        self._socket: ClientConnection | None = None
        self._client = f"client-{number}"
        self.presence: list[tuple[str, str]] = []

    async def run(self) -> None:
        """Be in the room, on the first server that takes it in."""
        turn = 0
        while True:
            query = {"user": self.user, "client": self._client}
            if self._offset is not None:
                query["offset"] = str(self._offset if self._from is None else self._from)
            url = f"ws{self.urls[turn % len(self.urls)].removeprefix('http')}/rooms/canvas"
            turn += 1
            try:
                async with connect(f"{url}?{urlencode(query)}", open_timeout=60) as self._socket:
                    async for text in self._socket:
                        await self._take(json.loads(text))
            except (OSError, ConnectionClosed, InvalidMessage):
                pass  # also in the middle of a handshake
            except InvalidStatus as refusal:
                if refusal.response.status_code < 500:
                    raise  # else no node leads now: come again
            self._socket = None
            if self.stays_away:
                return

    async def _take(self, frame: dict[str, Any]) -> None:
        if "welcome" in frame:
            if self._offset is None:
                self._offset = frame["welcome"]["offset"]
            stored = frame["welcome"]["sent"] or 0
            assert not {*frame["welcome"]["missing"]} & {*self._unconfirmed}
            for number in [n for n in self._unconfirmed if n <= stored]:
                self._confirm(number)
            for number, data in self._unconfirmed.items():
                await self._say(number, data)
            self.is_in.set()
        assert "gap" not in frame
        assert "error" not in frame, frame
        for message in frame.get("messages", []):
            assert self._offset is not None
            if message["offset"] < self._offset:
                continue  # it was heard before the connection was lost
            if message["type"] in ("joined", "left"):
                self.presence.append((message["type"], message["data"]["user"]))
            else:
                self.heard.append(message["data"])
        if "messages" in frame:
            self._offset = max(self._offset or 0, frame["offset"])
        if "sent" in frame:
            self._confirm(frame["sent"])
        self.news.set()

    def _confirm(self, number: int) -> None:
        self.sent.add(number)
        self._unconfirmed.pop(number, None)
        if not self._unconfirmed:
            self._from = None

    async def send(self, number: int) -> None:
        if self._from is None:
            self._from = self._offset
        self._unconfirmed[number] = [self.user, number]
        await self._say(number, self._unconfirmed[number])

    async def _say(self, number: int, data: Any) -> None:
        if self._socket is not None:
            try:
                frame = {"send": [{"type": "draw", "data": data}], "n": number}
                await self._socket.send(json.dumps(frame))
            except ConnectionClosed:
                pass  # it is sent again, on another connection

    async def until(self, condition: Any) -> None:
        """Wait until something is so; looked at whenever a frame comes."""
        while not condition(self):
            self.news.clear()
            await self.news.wait()


async def presence(url: str) -> dict[str, int]:
    async with httpx.AsyncClient(timeout=60) as asking:
        found = (await asking.get(f"{url}/rooms/canvas/presence", timeout=30)).json()["presence"]
    return {one["user"]: one["connections"] for one in found}


async def story(servers: list[tuple[subprocess.Popen[bytes], str]]) -> None:
    (doomed, _), *_ = servers
    urls = [url for _, url in servers]
    members = [Member(n, urls[n % 3 :] + urls[: n % 3]) for n in range(USERS)]
    running = [asyncio.create_task(one.run()) for one in members]
    await asyncio.gather(*(one.is_in.wait() for one in members))
    lost = members[0 : 3 * AWAY : 3]
    for one in lost:
        one.stays_away = True
    for number in range(1, EACH + 1):
        for one in members:
            await one.send(number)
    sending = asyncio.gather(
        *(one.send(number) for number in range(EACH + 1, 2 * EACH + 1) for one in members)
    )
    doomed.send_signal(signal.SIGKILL)
    await sending
    stay = [one for one in members if one not in lost]
    everything = {*range(1, 2 * EACH + 1)}
    for one in stay:
        await one.until(lambda one: one.sent == everything)
    told = {(other.user, n) for other in stay for n in everything}
    told |= {(other.user, n) for other in lost for n in other.sent}
    for one in stay:
        wanted = {(user, n) for user, n in told if user != one.user}
        await one.until(lambda one, wanted=wanted: wanted <= {tuple(data) for data in one.heard})
        assert len(one.heard) == len({tuple(data) for data in one.heard}), "something came twice"
        for user in {user for user, _ in told}:
            numbers = [n for sender, n in one.heard if sender == user]
            assert numbers == sorted(numbers), "the order was broken"
    names = {one.user for one in lost}
    for one in stay:
        await one.until(
            lambda one: {user for kind, user in one.presence if kind == "left"} == names
        )
    while await presence(urls[1]) != {one.user: 1 for one in stay}:
        pass  # the rows of the dead server go a little later
    assert await presence(urls[2]) == await presence(urls[1])
    for one in stay:
        assert sorted(user for kind, user in one.presence if kind == "left") == sorted(names)
        came = [user for kind, user in one.presence if kind == "joined"]
        assert len(came) == len({*came})
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


@pytest.mark.slow
def test_clients_of_a_killed_server_resume_on_the_others(tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = [
            stack.enter_context(program(tmp_path, "--instance", name, "--instance-lease", LEASE))
            for name in ("a", "b", "c")
        ]

        async def run() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await story(servers)

        asyncio.run(run())
