"""A mixed load on one server for a long time, and how much memory the server holds meanwhile.

    python tools/soak.py --minutes 60 --log /tmp/soak.jsonl

It starts a server of its own on a free port of 127.0.0.1, and drives it at fixed rates: appends to a
log with retention, puts in 500 groups with nacks and delays, messages to a room, and listeners by
server-sent events that connect again and again. Once per minute it writes one line of JSON: minutes,
resident memory, threads, open files, what was done so far. It fails if the memory of the last quarter
of the run lies more than `--growth-mib` above that of the second quarter.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from millstream import aio

APPENDS_PER_S = 170
PUTS_PER_S = 110
ROOM_MESSAGES_PER_S = 35
LISTENERS = 15
GROUPS = 500
NACKED = 0.02
DELAYED = 0.05
CLAIMERS = 4

Counts = Counter[str]


def start_server(path: Path) -> tuple[subprocess.Popen[str], str]:
    """Start a server process; the process, and its address."""
    command = [sys.executable, "-m", "millstream", "serve", str(path), "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["rest"]


def memory_of(pid: int) -> dict[str, Any]:
    """Resident memory in MiB, threads and open files of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return {
        "rss_mib": round(int(fields["VmRSS"].split()[0]) / 1024, 1),
        "threads": int(fields["Threads"]),
        "files": len(os.listdir(f"/proc/{pid}/fd")),
    }


async def at_rate(per_s: float, until_s: float, act: Callable[[], Awaitable[object]]) -> None:
    """Run `act` so many times per second; no faster after a delay than the rate allows."""
    next_s = time.monotonic()
    while next_s < until_s:
        await asyncio.sleep(max(0.0, next_s - time.monotonic()))
        await act()
        next_s = max(next_s + 1 / per_s, time.monotonic() - 1)


async def append(ms: aio.Millstream, counts: Counts) -> None:
    """Append one record."""
    await ms.log("events").append(os.urandom(200), key=f"k{random.randrange(10_000)}")
    counts["appends"] += 1


async def put(ms: aio.Millstream, counts: Counts) -> None:
    """Put one message into one of many groups; a few of them for later."""
    delay = random.uniform(1, 30) if random.random() < DELAYED else None
    queue = await ms.queue("work")
    await queue.put({"n": counts["puts"]}, group=f"g{random.randrange(GROUPS)}", delay=delay)
    counts["puts"] += 1


async def consume(ms: aio.Millstream, until_s: float, counts: Counts) -> None:
    """Claim and finish messages; some of them are tried again."""
    queue = await ms.queue("work")
    while time.monotonic() < until_s:
        for message in await queue.claim(20, wait=1):
            if random.random() < NACKED:
                await queue.nack(message, delay=random.uniform(0.1, 2))
                counts["nacks"] += 1
            else:
                await queue.ack(message)
                counts["acks"] += 1


async def send(ms: aio.Millstream, counts: Counts) -> None:
    """Send one message to the room."""
    key = f"v{random.randrange(200)}"
    await ms.room("hall", user="soak").send("move", {"x": random.random()}, key=key)
    counts["sends"] += 1


async def listen(address: str, number: int, until_s: float, counts: Counts) -> None:
    """Listen by server-sent events for a few seconds, and connect again."""
    host, port = address.removeprefix("http://").split(":")
    while time.monotonic() < until_s:
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"GET /rooms/hall?live=sse&user=u{number} HTTP/1.1\r\nHost: {host}\r\n\r\n"
        writer.write(head.encode())
        end_s = time.monotonic() + random.uniform(2, 20)
        try:
            async with asyncio.timeout(end_s - time.monotonic()):
                while piece := await reader.read(65_536):
                    counts["heard_bytes"] += len(piece)
        except TimeoutError:
            pass
        writer.close()
        counts["entries"] += 1


async def watch(pid: int, began_s: float, until_s: float, counts: Counts, log: Path) -> list[float]:
    """Write one line per minute; the memory in each."""
    found: list[float] = []
    while time.monotonic() < until_s:
        await asyncio.sleep(min(60.0, max(0.1, until_s - time.monotonic())))
        facts = memory_of(pid)
        found.append(facts["rss_mib"])
        line = {"minutes": round((time.monotonic() - began_s) / 60, 2), **facts, **counts}
        with log.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)
    return found


async def soak(pid: int, address: str, minutes: float, log: Path) -> list[float]:
    """Drive the whole load; the memory of each minute."""
    counts: Counts = Counter()
    began_s = time.monotonic()
    until_s = began_s + minutes * 60
    async with await aio.open(address) as ms:
        await ms.log("events").append(b"first")
        await ms.log("events").retain(count=20_000)
        await ms.create_queue("work", group_by="group", max_attempts=5, lease=30)
        await ms.room("hall").specify(retained=["move"])
        rates = {APPENDS_PER_S: append, PUTS_PER_S: put, ROOM_MESSAGES_PER_S: send}
        async with asyncio.TaskGroup() as tasks:
            for per_s, act in rates.items():
                for _ in range(4):
                    tasks.create_task(at_rate(per_s / 4, until_s, partial(act, ms, counts)))
            for _ in range(CLAIMERS):
                tasks.create_task(consume(ms, until_s, counts))
            for number in range(LISTENERS):
                tasks.create_task(listen(address, number, until_s, counts))
            watching = tasks.create_task(watch(pid, began_s, until_s, counts, log))
    return watching.result()


def growth_mib(memory: list[float]) -> float:
    """How far the last quarter of a run lies above its second quarter."""
    quarter = len(memory) // 4
    if not quarter:
        return 0.0
    return median(memory[-quarter:]) - median(memory[quarter : 2 * quarter])


def main() -> int:
    """Run it; 1 if the memory grew too much."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--log", type=Path, default=Path("soak.jsonl"))
    parser.add_argument("--growth-mib", type=float, default=16.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        process, address = start_server(Path(folder) / "soak.db")
        try:
            memory = asyncio.run(soak(process.pid, address, given.minutes, given.log))
        finally:
            process.terminate()
            process.wait(30)
    grown = growth_mib(memory)
    print(f"memory of the last quarter over the second: {grown:+.1f} MiB", flush=True)
    return int(grown > given.growth_mib)


if __name__ == "__main__":
    sys.exit(main())
