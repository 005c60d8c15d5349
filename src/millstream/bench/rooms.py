"""The workloads of rooms: server processes on one file, and crowds of clients in other processes.

Everything that is delivered is durable. Clients and servers share this machine's processors, so
what a client costs is part of every figure.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from time import sleep
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

import millstream
from millstream.bench.crowd_process import CrowdProcess
from millstream.bench.measure import ReportRow, StepMeter, memory_mib, seconds
from millstream.bench.suite import Suite
from millstream.embedded.loop.feed_reads import fetch, look_at
from millstream.embedded.session import EmbeddedSession, open_file
from millstream.rooms.commands import SendToRoom, SpecifyRoom
from millstream.rooms.model import RoomMessage
from millstream.rooms.names import log_of
from millstream.rooms.settings import RoomSettings
from millstream.threads.database import Millstream

LOOKS_PER_SECOND = 20
WRITES_PER_SECOND = 100
FANOUT_FRAME = 20
"""Messages per frame of a sender."""
FANOUT_IN_FLIGHT = 64
"""Frames of a single message that are on their way."""

_ANY = ("--connections-max", "20000", "--connections-per-token-max", "20000")


class RoomSizes(Struct, frozen=True, kw_only=True):
    """How large the workloads are; a test makes them small."""

    cross_rooms: int = 10
    cross_clients: int = 5
    """Clients per server and room."""
    cross_rate: int = 1_000
    fanout_clients: int = 100
    writers: int = 10
    poll_rooms: int = 50
    loss_clients: int = 400
    loss_messages: int = 101
    loss_reconnecting: int = 50
    idle_clients: int = 5_000
    idle_rooms: int = 50
    settle_s: float = 2.0
    """How long a server is left alone before its memory is read."""


class RoomsBench:
    """One run: a store of its own, and the servers on it, until it is closed."""

    def __init__(
        self, directory: Path, *, seconds_each: float, sizes: RoomSizes | None = None
    ) -> None:
        self.seconds = seconds_each
        self.sizes = sizes or RoomSizes()
        self.file = directory / "rooms.db"
        self._processes: list[subprocess.Popen[bytes]] = []

    def serve(self, *options: str) -> tuple[dict[str, Any], int]:
        """Start a server, and return its address and process id."""
        process = self._start(
            "millstream", "serve", str(self.file), "--port", "0", "--json", *options
        )
        assert process.stdout is not None
        at = urlsplit(msgspec.json.decode(process.stdout.readline())["rest"])
        return {"host": at.hostname, "port": at.port}, process.pid

    def serve_plain(self, size: int) -> dict[str, Any]:
        """Start the reference."""
        process = self._start("millstream.bench.plainroom", str(size))
        assert process.stdout is not None
        return {"host": "127.0.0.1", "port": int(process.stdout.readline())}

    def opened(self) -> Millstream:
        """The store itself."""
        return millstream.open(self.file)

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._processes.append(process)
        return process

    def stop_last(self) -> None:
        """Stop the server that was started last."""
        process = self._processes.pop()
        process.terminate()
        process.communicate(timeout=30)

    def close(self) -> None:
        """Stop all servers."""
        while self._processes:
            with suppress(subprocess.TimeoutExpired):
                self.stop_last()


def rooms_cross(bench: RoomsBench) -> ReportRow:
    """Clients of two servers on one file talk in shared rooms."""
    places = [bench.serve()[0] for _ in range(2)]
    rooms = [f"room-{number}" for number in range(bench.sizes.cross_rooms)]
    crowds = [
        CrowdProcess(
            kind="talk",
            rooms=rooms,
            clients=bench.sizes.cross_clients,
            prefix=prefix,
            rate=bench.sizes.cross_rate / 2,
            total_s=bench.seconds,
            **place,
        )
        for prefix, place in zip("ab", places, strict=True)
    ]
    for crowd in crowds:
        crowd.go()
    outcomes = [crowd.found() for crowd in crowds]
    same_server, cross = StepMeter(), StepMeter()
    for prefix_here, outcome in zip("ab", outcomes, strict=True):
        for prefix, latencies in outcome["latencies"].items():
            meter = same_server if prefix == prefix_here else cross
            meter.step_s += [ms / 1000 for ms in latencies]
    lost = sum(lost_messages(outcomes))
    sent = sum(sum(outcome["sent"].values()) for outcome in outcomes)
    row = ReportRow(
        per_second=round(sent / max(outcome["took_s"] for outcome in outcomes)),
        p50_ms=cross.percentile_ms(0.5),
        p99_ms=cross.percentile_ms(0.99),
        details={
            "cross_p95_ms": cross.percentile_ms(0.95),
            "same_p50_ms": same_server.percentile_ms(0.5),
            "same_p95_ms": same_server.percentile_ms(0.95),
            "deliveries": len(same_server.step_s) + len(cross.step_s),
            "lost": lost,
            "disorder": sum(outcome["disorder"] for outcome in outcomes),
            "gaps": sum(outcome["gaps"] for outcome in outcomes),
        },
    )
    row.require("cross p50 ≤ 10 ms", row.p50_ms <= 10)
    row.require("cross p95 ≤ 50 ms", row.details["cross_p95_ms"] <= 50)
    row.require("same p95 ≤ 10 ms", row.details["same_p95_ms"] <= 10)
    return row.require("none lost, none disordered", not (lost or row.details["disorder"]))


def lost_messages(outcomes: list[Any]) -> list[int]:
    """Of each pair of clients in one room, how many messages of one did not reach the other."""
    sent = {name: count for outcome in outcomes for name, count in outcome["sent"].items()}
    rooms = {name: room for outcome in outcomes for name, room in outcome["rooms"].items()}
    received = {name: got for outcome in outcomes for name, got in outcome["received"].items()}
    return [
        sent[sender] - got.get(sender, 0)
        for name, got in received.items()
        for sender in sent
        if sender != name and rooms[sender] == rooms[name]
    ]


def rooms_fanout(bench: RoomsBench) -> ReportRow:
    """Measure a sender and many listeners of a server, beside a plain loop over `websockets`.

    Run once with many messages per frame, and once with a message per frame.
    """
    listeners = bench.sizes.fanout_clients
    shared: dict[str, Any] = {
        "rooms": ["fan"],
        "clients": listeners,
        "total_s": bench.seconds / 3,
    }
    with bench.opened() as ms:
        wide = RoomSettings(messages_per_second=0, waiting_bytes_max=64 * 1024 * 1024)
        ms.session.execute(SpecifyRoom("fan", wide))
    place, _ = bench.serve()
    together = _heard(kind="hear_all", frame=FANOUT_FRAME, **shared, **place)
    singly = _heard(kind="hear_all", frame=1, in_flight=FANOUT_IN_FLIGHT, **shared, **place)
    bench.stop_last()
    plain = _heard(kind="hear_plain", **shared, **bench.serve_plain(100))
    rate, beside = together["per_second"], plain["per_second"]
    lost = sum(outcome["expected"] - outcome["counted"] for outcome in (together, singly))
    row = ReportRow(
        batch=FANOUT_FRAME,
        payload_bytes=100,
        per_second=round(rate),
        beside_per_second=round(beside),
        ratio=round(rate / beside, 3) if beside else 0.0,
        details={
            "listeners": listeners,
            "singly_per_second": round(singly["per_second"]),
            "lost": lost,
        },
    )
    return row.require_rate(80_000).require("none lost", not lost)


def _heard(**task: Any) -> dict[str, Any]:
    """What a crowd has counted, and how fast."""
    crowd = CrowdProcess(**task)
    crowd.go()
    outcome: dict[str, Any] = crowd.found()
    return {**outcome, "per_second": outcome["counted"] / outcome["took_s"]}


def rooms_write(bench: RoomsBench) -> ReportRow:
    """Threads that each send to a room of theirs at a steady rate."""
    meters = [StepMeter() for _ in range(bench.sizes.writers)]
    with bench.opened() as ms:

        def write(number: int) -> None:
            command = SendToRoom(f"room-{number}", [RoomMessage("chat", b'{"text": "hello"}')])
            began_s = due_s = seconds()
            while (now_s := seconds()) - began_s < bench.seconds:
                if now_s < due_s:
                    sleep(due_s - now_s)
                    now_s = seconds()
                ms.session.execute(command)
                meters[number].step_s.append(seconds() - now_s)
                due_s += 1 / WRITES_PER_SECOND

        threads = [
            threading.Thread(target=write, args=(number,)) for number in range(bench.sizes.writers)
        ]
        began_s = seconds()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        total = StepMeter()
        total.elapsed_s = seconds() - began_s
    for meter in meters:
        total.step_s += meter.step_s
    total.messages = len(total.step_s)
    p95_ms = total.percentile_ms(0.95)
    row = total.row(details={"threads": bench.sizes.writers, "p95_ms": p95_ms})
    required_rate = bench.sizes.writers * WRITES_PER_SECOND * 0.98
    return row.require("p95 < 100 ms", p95_ms < 100).require(
        f"{bench.sizes.writers * WRITES_PER_SECOND:,}/s kept up", row.per_second >= required_rate
    )


def rooms_poll(bench: RoomsBench) -> ReportRow:
    """Poll many rooms at a steady rate; then as fast as possible."""
    rooms = [f"room-{number}" for number in range(bench.sizes.poll_rooms)]
    with bench.opened() as ms:
        for room in rooms:
            ms.session.execute(SendToRoom(room, [RoomMessage("chat")] * 10))
    store = open_file(bench.file)
    writing = threading.Event()
    writer = threading.Thread(target=_write_now_and_then, args=(bench, rooms, writing))
    try:
        before_mib = memory_mib()
        positions = {room: look_at(store, log_of(room), 0).end for room in rooms}
        writer.start()
        steady = _look_steadily(store, positions, bench.seconds / 2)
        memory = memory_mib() - before_mib
        fast = StepMeter()
        turns = cycle(rooms)

        def look() -> int:
            look_at(store, log_of(next(turns)), 0)
            return 1

        fast.run(look, bench.seconds / 4)
    finally:
        writing.set()
        writer.join()
        store.close()
    p95_ms = steady.percentile_ms(0.95)
    row = steady.row(
        details={
            "rooms": bench.sizes.poll_rooms,
            "p95_ms": p95_ms,
            "messages_found": steady.messages,
            "looks_per_second_max": round(fast.per_second()),
            "memory_mib": round(memory, 1),
        }
    )
    row.per_second = round(len(steady.step_s) / steady.elapsed_s)
    row.require("p95 < 5 ms", p95_ms < 5)
    row.require("≥ 10,000 looks/s possible", fast.per_second() >= 10_000)
    return row.require("< 10 MiB", memory < 10)


def _look_steadily(store: Any, positions: dict[str, int], total_s: float) -> StepMeter:
    """Look into every room so many times per second, and read what is new."""
    meter = StepMeter()
    began_s = due_s = seconds()
    turns = cycle(positions)
    while (now_s := seconds()) - began_s < total_s:
        if now_s < due_s:
            sleep(due_s - now_s)
            now_s = seconds()
        room = next(turns)
        end = look_at(store, log_of(room), 0).end
        if end > positions[room]:
            fetch(store, log_of(room), positions[room], end)
            meter.messages += end - positions[room]
            positions[room] = end
        meter.step_s.append(seconds() - now_s)
        due_s += 1 / (len(positions) * LOOKS_PER_SECOND)
    meter.elapsed_s = seconds() - began_s
    return meter


def _write_now_and_then(bench: RoomsBench, rooms: list[str], over: threading.Event) -> None:
    """Send to rooms in no order, from another handle of the store, until that is over."""
    second_handle = Millstream(EmbeddedSession(open_file(bench.file)))
    chance = random.Random(1)
    with second_handle:
        while not over.wait(0.01):
            second_handle.session.execute(SendToRoom(chance.choice(rooms), [RoomMessage("chat")]))


def rooms_loss(bench: RoomsBench) -> ReportRow:
    """Send many messages to a crowded room at once; then again while clients reconnect."""
    with bench.opened() as ms:
        ms.session.execute(SpecifyRoom("crowded", RoomSettings(messages_per_second=0)))
    place, _ = bench.serve(*_ANY)
    crowd = CrowdProcess(
        kind="miss_nothing",
        rooms=["crowded"],
        clients=bench.sizes.loss_clients,
        messages=bench.sizes.loss_messages,
        reconnecting=bench.sizes.loss_reconnecting,
        total_s=bench.seconds,
        **place,
    )
    crowd.go()
    outcome = crowd.found()
    rounds = sorted(outcome.pop("rounds_ms"))
    deliveries = outcome["sent"] * bench.sizes.loss_clients - outcome["missing"]
    row = ReportRow(
        batch=bench.sizes.loss_messages,
        per_second=round(deliveries / outcome["took_s"]),
        p50_ms=rounds[len(rounds) // 2],
        p99_ms=rounds[-1],
        details={
            "clients": bench.sizes.loss_clients,
            **outcome,
            "took_s": round(outcome["took_s"], 1),
        },
    )
    wrong = sum(outcome[name] for name in ("missing", "twice", "disorder", "gaps"))
    return row.require("none missing, twice or disordered", not wrong)


def rooms_idle(bench: RoomsBench) -> ReportRow:
    """A server's memory for clients on which nothing happens."""
    place, server = bench.serve(*_ANY)
    sleep(bench.sizes.settle_s)
    before = memory_mib(server)
    crowd = CrowdProcess(
        kind="stay",
        rooms=[f"room-{number}" for number in range(bench.sizes.idle_rooms)],
        clients=bench.sizes.idle_clients // bench.sizes.idle_rooms,
        **place,
    )
    sleep(bench.sizes.settle_s)
    each_kib = (memory_mib(server) - before) * 1024 / bench.sizes.idle_clients
    crowd.go()
    lost = crowd.found()["lost"]
    details = {"clients": bench.sizes.idle_clients, "kib_each": round(each_kib, 1), "lost": lost}
    row = ReportRow(details=details)
    return row.require("≤ 40 KiB each", each_kib <= 40).require("none lost", not lost)


SUITE = Suite(
    RoomsBench,
    rooms_cross,
    rooms_fanout,
    rooms_write,
    rooms_poll,
    rooms_loss,
    rooms_idle,
    apart=True,
)
