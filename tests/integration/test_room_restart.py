"""Servers of one file that are killed or stopped while users are in their rooms.

what a dead or restarted server has not delivered keeps no message from expiring, and makes no other
server ill
its users have left a few seconds later, also if no client enters any room, and if only a program
without a server has the store open
a server that hangs stays visible at the others until it goes on
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

import millstream
from millstream.aio import open as open_async
from millstream.testing import Probe
from tests.integration.programs import program

PATIENCE_S = 60.0
SWEPT = ("--rooms-sweep", "200ms")
MESSAGES = 5_500
"""So many undelivered ones are critical at once."""


async def enter(url: str, user: str) -> ClientConnection:
    """Be in the room, and read whatever comes."""
    socket = await connect(
        f"ws{url.removeprefix('http')}/rooms/hall?{urlencode({'user': user})}", open_timeout=60
    )
    assert "welcome" in json.loads(await socket.recv())
    return socket


async def read(socket: ClientConnection) -> None:
    with suppress(ConnectionClosed):
        async for _ in socket:
            pass


async def send(asking: httpx.AsyncClient, url: str, count: int) -> None:
    for first in range(0, count, 500):
        messages = [{"type": "chat", "data": n} for n in range(first, min(first + 500, count))]
        answer = await asking.post(f"{url}/rooms/hall/messages", json={"messages": messages})
        assert answer.status_code == 200, answer.text


async def health(asking: httpx.AsyncClient, url: str) -> tuple[int, dict[str, Any]]:
    answer = await asking.get(f"{url}/health")
    checks = {one["name"]: one for one in answer.json().get("checks", [])}
    return answer.status_code, checks


async def presence(asking: httpx.AsyncClient, url: str) -> list[str]:
    found = (await asking.get(f"{url}/rooms/hall/presence")).json()["presence"]
    return [one["user"] for one in found]


async def bounds(asking: httpx.AsyncClient, url: str) -> tuple[int, int]:
    found = (await asking.get(f"{url}/logs/room:hall")).json()
    return found["start_offset"], found["end_offset"]


async def expired(asking: httpx.AsyncClient, url: str) -> float:
    """How many expired messages this server removed."""
    lines = (await asking.get(f"{url}/metrics")).text.splitlines()
    name = "millstream_room_expired_messages_total "
    (value,) = [line.removeprefix(name) for line in lines if line.startswith(name)]
    return float(value)


def told(place: Path) -> list[tuple[str, str]]:
    """Who came and who left, by the room's log."""
    with millstream.open(place) as ms:
        records = list(ms.log("room:hall").read())
    return [(str(one.headers["type"]), one.json()["user"]) for one in records]


def run(story: Callable[[], Any]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await story()

    asyncio.run(bounded())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
@pytest.mark.parametrize("returns", [True, False], ids=["started again", "gone"])
def test_a_server_that_went_neither_delays_nor_alarms_the_others(
    tmp_path: Path, number: int, returns: bool
) -> None:
    with millstream.open(tmp_path / "store.db") as ms:
        ms.room("hall").specify(ttl=1.0)
    with ExitStack() as stack:
        _, here = stack.enter_context(program(tmp_path, "--instance", "a", *SWEPT))
        doomed, there = stack.enter_context(program(tmp_path, "--instance", "b", *SWEPT))

        async def story() -> None:
            serving = [here]
            ann, bob = await enter(here, "ann"), await enter(there, "bob")
            reading = [asyncio.create_task(read(one)) for one in (ann, bob)]
            async with httpx.AsyncClient(timeout=30) as asking:
                log = f"{here}/logs/room:hall/cursors"
                while len((await asking.get(log)).json()["cursors"]) < 2:
                    pass  # both have noted how far they are
                doomed.send_signal(number)
                doomed.wait(30)
                if returns:
                    again = program(tmp_path, "--instance", "b", *SWEPT)
                    _, url = await asyncio.to_thread(stack.enter_context, again)
                    serving.append(url)
                await send(asking, here, MESSAGES)
                start, end = await bounds(asking, here)
                while start < end:  # until all have expired
                    assert (await health(asking, here))[0] == 200
                    start, end = await bounds(asking, here)
                assert end >= MESSAGES
                while await presence(asking, here) != ["ann"]:
                    pass
                status, checks = await health(asking, here)
                assert (status, checks["rooms"]["status"]) == (200, "healthy")
                assert checks["instances"]["status"] == "healthy"
                # Each server counts what it removed itself, and any of them may remove all.
                counts = [await expired(asking, url) for url in serving]
                assert sum(counts) >= MESSAGES, counts
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
            await ann.close()

        run(story)


def kill_with_ann_inside(folder: Path) -> None:
    with program(folder) as (doomed, url):

        async def story() -> None:
            await enter(url, "ann")
            doomed.kill()
            doomed.wait(30)

        run(story)


@pytest.mark.slow
def test_users_of_a_killed_server_leave_though_nobody_enters_a_room(tmp_path: Path) -> None:
    kill_with_ann_inside(tmp_path)
    with program(tmp_path) as (_, url):

        async def story() -> None:
            async with httpx.AsyncClient(timeout=30) as asking:
                while (await asking.get(f"{url}/logs/room:hall")).json()["end_offset"] < 2:
                    pass
                assert await presence(asking, url) == []

        run(story)
    assert told(tmp_path / "store.db") == [("joined", "ann"), ("left", "ann")]


@pytest.mark.slow
@pytest.mark.parametrize("surface", ["threads", "coroutines", "idle"])
def test_users_of_a_killed_server_leave_for_programs_without_a_server(
    tmp_path: Path, surface: str
) -> None:
    place = tmp_path / "store.db"
    if surface == "threads":
        with millstream.open(place) as ms:  # before there is a room
            heard = ms.room("hall").listen(0, types=["left"], timeout=PATIENCE_S)
            kill_with_ann_inside(tmp_path)
            assert next(heard).json() == {"user": "ann"}
            assert ms.room("hall").presence() == []
    elif surface == "coroutines":

        async def story() -> None:
            async with await open_async(place) as ms:
                await asyncio.to_thread(kill_with_ann_inside, tmp_path)
                async for event in ms.room("hall").listen(0, types=["left"]):
                    assert event.json() == {"user": "ann"}
                    break
                assert await ms.room("hall").presence() == []

        run(story)
    else:
        kill_with_ann_inside(tmp_path)
        with millstream.open(place) as ms:
            # This only looks: nothing is written here but by the background.
            Probe(ms).until(lambda: len(ms.log("room:hall")) == 2)
            assert ms.room("hall").presence() == []
    assert told(place) == [("joined", "ann"), ("left", "ann")]


@pytest.mark.slow
def test_a_server_that_hangs_stays_visible_until_it_goes_on(tmp_path: Path) -> None:
    lease = ("--instance-lease", "1s")
    with (
        program(tmp_path, "--instance", "a", *lease) as (_, here),
        program(tmp_path, "--instance", "b", *lease) as (stuck, there),
    ):

        async def story() -> None:
            bob = await enter(there, "bob")
            reading = asyncio.create_task(read(bob))
            async with httpx.AsyncClient(timeout=30) as asking:
                stuck.send_signal(signal.SIGSTOP)
                try:
                    await send(asking, here, MESSAGES)
                    while (await health(asking, here))[1]["instances"]["status"] != "warning":
                        pass
                    while await presence(asking, here):
                        pass  # long after the lease
                    status, checks = await health(asking, here)
                    assert (status, checks["instances"]["status"]) == (200, "warning")
                    assert "'b'" in checks["instances"]["detail"]
                finally:
                    stuck.send_signal(signal.SIGCONT)
                for url in (here, there):
                    while (await health(asking, url))[1]["instances"]["status"] != "healthy":
                        pass
                    while (await health(asking, url))[0] != 200:
                        pass
                while await presence(asking, here) != ["bob"]:
                    pass
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await bob.close()

        run(story)
