"""A room whose clients are at different nodes; one node is lost, and its clients go on at another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

import millstream
from tests.unit.server.cluster.electing import ServedNodes, serving_nodes

PATIENCE_S = 60


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[ServedNodes]:
    with serving_nodes(tmp_path, "a", "b", "c") as found:
        yield found


class Guest:
    """A client in the room, over one connection."""

    def __init__(self, socket: ClientConnection, welcome: dict[str, Any]) -> None:
        self.socket = socket
        self.welcome = welcome
        self.offset: int = welcome["offset"]
        self.drawn: list[Any] = []
        self.confirmed: set[int] = set()

    @classmethod
    async def enter(cls, url: str, user: str, offset: int | None = None) -> Guest:
        query = {"user": user, "client": f"client-{user}"}
        if offset is not None:
            query["offset"] = str(offset)
        address = f"ws{url.removeprefix('http')}/rooms/canvas?{urlencode(query)}"
        socket = await connect(address, open_timeout=60)
        frame = json.loads(await socket.recv())
        assert "welcome" in frame, frame
        return cls(socket, frame["welcome"])

    async def draw(self, number: int) -> None:
        frame = {"send": [{"type": "draw", "data": number}], "n": number}
        await self.socket.send(json.dumps(frame))

    async def hear(self, *, drawn: int = 0, confirmed: int = 0) -> None:
        """Until so much was heard."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.drawn) < drawn or len(self.confirmed) < confirmed:
                frame = json.loads(await self.socket.recv())
                assert "gap" not in frame, frame
                assert "error" not in frame, frame
                for message in frame.get("messages", []):
                    if message["type"] == "draw":
                        self.drawn.append(message["data"])
                if "messages" in frame:
                    self.offset = max(self.offset, frame["offset"])
                if "sent" in frame:
                    self.confirmed.add(frame["sent"])


def in_loop(work: Any) -> None:
    asyncio.run(work)


def test_clients_at_different_nodes_hear_each_other(nodes: ServedNodes) -> None:
    async def work() -> None:
        ada, bob, cyd = [
            await Guest.enter(url, user)
            for url, user in zip(nodes.urls, ("ada", "bob", "cyd"), strict=True)
        ]
        assert {one["user"] for one in cyd.welcome["presence"]} >= {"cyd"}
        for number, guest in enumerate((ada, bob, cyd), 1):
            await guest.draw(number)
            await guest.hear(confirmed=1)
        for guest, others in ((ada, {2, 3}), (bob, {1, 3}), (cyd, {1, 2})):
            await guest.hear(drawn=2)
            assert set(guest.drawn) == others
        found = await asyncio.to_thread(
            httpx.get, f"{nodes.urls[0]}/rooms/canvas/presence", timeout=30
        )
        users = {one["user"] for one in found.json()["presence"]}
        assert users == {"ada", "bob", "cyd"}
        for guest in (ada, bob, cyd):
            await guest.socket.close()

    in_loop(work())


def test_a_state_and_a_history_are_seen_at_every_node(nodes: ServedNodes) -> None:
    async def work() -> None:
        guests = [
            await Guest.enter(url, user)
            for url, user in zip(nodes.urls, ("ada", "bob", "cyd"), strict=True)
        ]
        for number, guest in enumerate(guests, 1):
            await guest.socket.send(json.dumps({"presence": {"number": number}}))
            await guest.draw(1)
            await guest.hear(confirmed=1)
        for url in nodes.urls:
            states: dict[str, Any] = {}
            async with asyncio.timeout(PATIENCE_S):
                while len(states) < 3 or not all(states.values()):
                    listed = await asyncio.to_thread(
                        httpx.get, f"{url}/rooms/canvas/presence", timeout=30
                    )
                    states = {one["user"]: one["state"] for one in listed.json()["presence"]}
            assert states == {"ada": {"number": 1}, "bob": {"number": 2}, "cyd": {"number": 3}}
            address = f"ws{url.removeprefix('http')}/rooms/canvas?history=3"
            async with connect(address, open_timeout=60) as socket:
                late = Guest(socket, json.loads(await socket.recv())["welcome"])
                await late.hear(drawn=3)
                assert {one["user"]: one["state"] for one in late.welcome["presence"]} == states
        for guest in guests:
            await guest.socket.close()

    in_loop(work())


@pytest.mark.parametrize("lost", ["leader", "follower"])
def test_clients_of_a_lost_node_go_on_at_another(nodes: ServedNodes, lost: str) -> None:
    leader = nodes.leader()
    name = leader if lost == "leader" else nodes.followers()[0]
    other = next(one for one in nodes.servers if one != name)

    async def work() -> None:
        ada = await Guest.enter(nodes.url(name), "ada")
        bob = await Guest.enter(nodes.url(other), "bob")
        for number in range(1, 6):
            await ada.draw(number)
        await ada.hear(confirmed=5)
        await bob.hear(drawn=5)
        await bob.draw(100)
        await ada.hear(drawn=1)
        await asyncio.to_thread(nodes.stop, name)
        back = await Guest.enter(nodes.url(other), "ada", ada.offset)
        assert back.welcome["sent"] in (None, 5)
        await back.draw(6)
        await back.hear(confirmed=1)
        await bob.hear(drawn=6)
        assert bob.drawn == [1, 2, 3, 4, 5, 6]
        await bob.draw(101)
        await back.hear(drawn=1)
        assert back.drawn == [101], "nothing comes twice, and nothing is missing"
        for guest in (back, bob):
            await guest.socket.close()

    in_loop(work())


def test_a_room_is_sent_to_by_any_client_of_any_node(nodes: ServedNodes) -> None:
    async def work() -> None:
        ada = await Guest.enter(nodes.urls[0], "ada")

        def send() -> None:
            for number, url in enumerate(nodes.urls):
                with millstream.open(url) as ms:
                    ms.room("canvas").send("draw", number)

        await asyncio.to_thread(send)
        await ada.hear(drawn=3)
        assert ada.drawn == [0, 1, 2]
        await ada.socket.close()

    in_loop(work())
