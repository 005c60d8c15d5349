"""Ctrl-C at random moments ends event loops with producers and consumers. After each end:

- every handle has an outcome, and a record with an offset is stored there, once, in the order of the
  calls;
- a message that the loop acknowledged is done and does not come again; the others wait, unclaimed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from tests.crash.test_producer_kill import Server

pytestmark = [pytest.mark.crash, pytest.mark.slow]

SEED = int(os.environ["MILLSTREAM_SEED"])
TIMES = 15
WAITING = 100_000
"""More messages than the loops consume."""

ROUNDS = """
import asyncio, faulthandler, os, random, signal, sys, threading
from millstream import aio

place, times, seed = sys.argv[1], *map(int, sys.argv[2:])
faulthandler.dump_traceback_later(100, exit=True)
signal.signal(signal.SIGINT, signal.default_int_handler)
rng, never = random.Random(seed), threading.Event()

def press(after_s):
    never.wait(after_s)
    os.kill(os.getpid(), signal.SIGINT)

def press_soon():
    threading.Thread(target=press, args=[rng.uniform(0, 0.02)]).start()

def run_rounds(work):
    for _ in range(times):
        try:
            asyncio.run(work())
        except KeyboardInterrupt:
            continue
        raise AssertionError("the loop ended without Ctrl-C")
"""

PRODUCING = (
    ROUNDS
    + """
number, handles = 0, []

async def produce():
    global number
    async with await aio.open(place) as ms, ms.log("orders").producer(in_flight=200) as producer:
        press_soon()
        while True:
            number += 1
            handles.append((number, await producer.append(number)))
            if number % 100 == 0:
                await handles[-1][1].offset()
            if number % 777 == 0:
                await producer.flush()

run_rounds(produce)
assert all(handle.done for _, handle in handles)
print([[number, handle.result()] for number, handle in handles])
"""
)

CONSUMING = (
    ROUNDS
    + """
acknowledged = []

async def consume():
    async with await aio.open(place) as ms, (await ms.queue("jobs")).consumer(prefetch=64) as jobs:
        press_soon()
        async for message in jobs:
            await jobs.ack(message)
            acknowledged.append(message.json())
            if len(acknowledged) % 50 == 0:
                await asyncio.sleep(0)
            if len(acknowledged) % 333 == 0:
                await jobs.flush()

run_rounds(consume)
print(acknowledged)
"""
)


@pytest.fixture(params=["file", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the address of a new store."""
    if request.param == "file":
        yield str(tmp_path / "store.db")
        return
    server = Server(tmp_path / "store.db")
    yield f"http://127.0.0.1:{server.port}"
    server.kill()


def run(program: str, place: str) -> Any:
    """Run a program whose event loops are ended by Ctrl-C, and return what it has printed."""
    command = [sys.executable, "-c", program, place, str(TIMES), str(SEED)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_every_handle_of_an_interrupted_event_loop_tells_the_truth(place: str) -> None:
    handles = run(PRODUCING, place)
    with millstream.open(place) as ms:
        numbers = [record.json() for record in ms.log("orders").read()]
    assert numbers == sorted(set(numbers)), "a record is stored twice, or the order differs"
    assert handles == [[numbers[offset], offset] for _, offset in handles]


def test_an_interrupted_event_loop_leaves_nothing_claimed(place: str) -> None:
    with millstream.open(place) as ms:
        jobs = ms.create_queue("jobs", lease=3600, max_attempts=1_000, backoff=0)
        jobs.put_many(range(WAITING))
        acknowledged = run(CONSUMING, place)
        info = jobs.info()
    assert len(set(acknowledged)) == len(acknowledged), "an acknowledged message has come again"
    assert info.done == len(acknowledged)
    assert (info.in_flight, info.failed) == (0, 0)
    assert info.available + info.delayed == WAITING - len(acknowledged)
