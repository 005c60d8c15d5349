"""The workloads of SQS: raw HTTP clients against a server process, moto's server and fauxqs.

Every message that our server has answered for is durable. moto keeps messages in memory. The run
measures an installed `fauxqs` 2 (`npm install --global`) with Node.js 22 or later: its program
`server.js` keeps messages in a file, and its command keeps them in memory. The servers work in turns,
under the same load.
"""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

import millstream
from millstream.bench.measure import PAYLOAD_BYTES, ReportRow, StepMeter, seconds
from millstream.bench.served import Bench
from millstream.bench.sqs_load import Ask, SqsAddress, ask_once, load
from millstream.bench.suite import Suite
from millstream.threads.queue import Queue

BATCH = 10
CONNECTIONS = 16
BACKLOG_PER_S = 16_000
"""The messages that wait per second of receiving: more than a server hands out."""

DEEP = 200_000
GROUPS = 10_000
FILLED_AT_ONCE = 1_000
ROUTED_S_MAX = 60.0
"""How long to wait at most until the messages of the deep queue are routed."""

TOLD_EVERY_S = 5.0

TURNS = 3
"""How often each server works. moto needs seconds for the last requests of each turn."""

START_S = 30.0
TIMES_MOTO = 10.0
TIMES_FAUXQS = 4.0

_MOTO = """
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print(server.server_port, flush=True)
server.serve_forever()
"""

Load = Callable[[SqsAddress, float], StepMeter]
"""Loads a server for a while, and measures the messages."""


def body_text() -> str:
    """Return a body of the length of all payloads, without repetitions."""
    return base64.b64encode(os.urandom(PAYLOAD_BYTES)).decode()[:PAYLOAD_BYTES]


def sqs_send(bench: Bench) -> ReportRow:
    """SendMessageBatch of ten messages over sixteen connections."""

    async def step(ask: Ask, server: SqsAddress) -> int:
        await _send(ask, server.queue)
        return BATCH

    row = _beside_peers(bench, lambda server, length_s: load(server, step, CONNECTIONS, length_s))
    return row.require_rate(15_000)


def sqs_receive(bench: Bench) -> ReportRow:
    """ReceiveMessage of ten messages, and DeleteMessageBatch of them, over sixteen connections."""

    def work(server: SqsAddress, length_s: float) -> StepMeter:
        waiting, ours = round(BACKLOG_PER_S * length_s), SqsAddress.of_url(bench.url)

        async def send(ask: Ask, server: SqsAddress) -> int:
            nonlocal waiting
            waiting -= BATCH
            await _send(ask, server.queue)
            return BATCH if waiting >= CONNECTIONS * BATCH else 0

        async def receive(ask: Ask, server: SqsAddress) -> int:
            return await _receive_and_delete(ask, server.queue, is_ours=server.port == ours.port)

        load(server, send, CONNECTIONS, length_s)
        return load(server, receive, CONNECTIONS, length_s)

    return _beside_peers(bench, work).require_rate(10_000)


def sqs_fifo_deep(bench: Bench) -> ReportRow:
    """Send, receive and delete by ten on a FIFO queue: deep with half of its groups blocked, and empty."""
    deep, empty = (_fifo_queue(bench, name) for name in ("deep.fifo", "empty.fifo"))
    with millstream.open(bench.url) as ms:
        _fill_deep(ms.queue("deep.fifo"))
    numbers = iter(range(DEEP, sys.maxsize))

    async def step(ask: Ask, server: SqsAddress) -> int:
        await _send(ask, server.queue, groups=[next(numbers) for _ in range(BATCH)])
        return await _receive_and_delete(ask, server.queue, is_ours=True)

    meters = _in_turns(
        [(each, lambda server, s: load(server, step, CONNECTIONS, s)) for each in (deep, empty)],
        bench.seconds,
    )
    row = meters[0].row(beside=meters[1], batch=BATCH, details={"waiting": DEEP, "groups": GROUPS})
    return row.require_ratio(0.8)


def _fill_deep(queue: Queue) -> None:
    """Put the messages of a deep queue, wait until all are routed, and block half of its groups."""
    body, began_s = body_text().encode(), seconds()
    for first in range(0, DEEP, FILLED_AT_ONCE):
        numbers = range(first, min(DEEP, first + FILLED_AT_ONCE))
        headers = [_fifo_headers(number % GROUPS, number) for number in numbers]
        queue.put_many([body] * len(headers), headers=headers)
    unrouted, told_s = DEEP, began_s
    while unrouted and (now_s := seconds()) - began_s < ROUTED_S_MAX:
        queue.peek(1)  # a peek routes some messages
        unrouted = queue.info().unrouted
        if now_s - told_s >= TOLD_EVERY_S or not unrouted:
            told_s = now_s
            passed_s = round(now_s - began_s)
            _tell(f"{DEEP:,} put, {unrouted:,} unrouted, {passed_s} s")
    blocked = 0
    while blocked < GROUPS // 2:
        claimed = queue.claim(min(500, GROUPS // 2 - blocked), lease=3_600)
        assert claimed, "the deep queue has a message of each group"
        blocked += len(claimed)


def _fifo_queue(bench: Bench, name: str) -> SqsAddress:
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    return _created(SqsAddress.of_url(bench.url), name, attributes)


def _fifo_headers(group: int, number: int) -> dict[str, str]:
    return {"AWS.MessageGroupId": f"g{group}", "AWS.MessageDeduplicationId": f"d{number}"}


async def _send(ask: Ask, queue: str, groups: list[int] | None = None) -> None:
    entries: list[dict[str, Any]] = [
        {"Id": str(number), "MessageBody": body_text()} for number in range(BATCH)
    ]
    for entry, group in zip(entries, groups or (), strict=False):
        entry["MessageGroupId"] = f"g{group}"
    answer = await ask("SendMessageBatch", {"QueueUrl": queue, "Entries": entries})
    assert len(answer["Successful"]) == BATCH, answer


async def _receive_and_delete(ask: Ask, queue: str, *, is_ours: bool) -> int:
    answer = await ask("ReceiveMessage", {"QueueUrl": queue, "MaxNumberOfMessages": BATCH})
    messages = answer.get("Messages") or []
    if not messages:
        return 0
    entries = [
        {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
        for number, message in enumerate(messages)
    ]
    answer = await ask("DeleteMessageBatch", {"QueueUrl": queue, "Entries": entries})
    deleted = len(answer.get("Successful") or ())
    assert deleted == len(messages) or not is_ours, answer
    return len(messages)


def _beside_peers(bench: Bench, work: Load) -> ReportRow:
    """Measure our server and its peers in turns, each on a queue of its own."""
    with ExitStack() as stack:
        peers = {
            "moto": stack.enter_context(_moto_server()),
            "fauxqs": stack.enter_context(_fauxqs_server(bench.directory / "fauxqs")),
        }
        present = {name: address for name, address in peers.items() if address is not None}
        servers = [SqsAddress.of_url(bench.url), *present.values()]
        queues = [_created(server, "bench") for server in servers]
        before_s = bench.server_cpu_s()
        ours, *beside = _in_turns([(queue, work) for queue in queues], bench.seconds)
        spent_us = (bench.server_cpu_s() - before_s) * 1e6 / max(1, ours.messages)
    details = {"connections": CONNECTIONS, "server_cpu_us": round(spent_us, 1)}
    row = ours.row(batch=BATCH, details=details)
    for name, minimum in (("moto", TIMES_MOTO), ("fauxqs", TIMES_FAUXQS)):
        if name not in present:
            row.details[f"{name}_measured"] = 0
            continue
        rate = beside[[*present].index(name)].per_second()
        times = ours.per_second() / rate if rate else 0.0
        row.details |= {f"{name}_per_second": round(rate), f"times_{name}": round(times, 1)}
        row.require(f"≥ {minimum:g} × {name}", times >= minimum)
    return row


def _in_turns(contenders: list[tuple[SqsAddress, Load]], total_s: float) -> list[StepMeter]:
    """Let contenders work in turns; each works for `total_s` seconds."""
    meters = [StepMeter() for _ in contenders]
    for turn in range(1, TURNS + 1):
        for (server, work), meter in zip(contenders, meters, strict=True):
            measured = work(server, total_s / TURNS)
            meter.messages += measured.messages
            meter.elapsed_s += measured.elapsed_s
            meter.step_s += measured.step_s
        rates = ", ".join(f"{meter.per_second():,.0f}/s" for meter in meters)
        _tell(f"turn {turn} of {TURNS}: {rates}")
    return meters


def _tell(progress: str) -> None:
    sys.stderr.write(f"  {progress}\n")


def _created(server: SqsAddress, name: str, attributes: dict[str, str] | None = None) -> SqsAddress:
    """Create a queue on a server; return the server with the queue's address."""
    parameters: dict[str, Any] = {"QueueName": name}
    if attributes:
        parameters["Attributes"] = attributes
    return server.with_queue(ask_once(server, "CreateQueue", parameters)["QueueUrl"])


@contextmanager
def _moto_server() -> Iterator[SqsAddress | None]:
    """Run moto's server while the block runs; yield None if moto is not installed."""
    with subprocess.Popen(
        [sys.executable, "-c", _MOTO], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            yield SqsAddress("127.0.0.1", int(port)) if port else None
        finally:
            process.kill()


@contextmanager
def _fauxqs_server(directory: Path) -> Iterator[SqsAddress | None]:
    """Run fauxqs with a file while the block runs; yield None if fauxqs does not start."""
    command, node = shutil.which("fauxqs"), shutil.which("node")
    program = Path(command or "").resolve().with_name("server.js")
    if node is None or not program.is_file():
        yield None
        return
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    directory.mkdir(exist_ok=True)
    variables = {
        "FAUXQS_PORT": str(port),
        "FAUXQS_HOST": "127.0.0.1",
        "FAUXQS_DATA_DIR": str(directory),
        "FAUXQS_PERSISTENCE": "true",
    }
    with subprocess.Popen(
        [node, program],
        env={**os.environ, **variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            server = SqsAddress("127.0.0.1", port)
            yield server if _answers(server, process) else None
        finally:
            process.kill()


def _answers(server: SqsAddress, process: subprocess.Popen[bytes]) -> bool:
    """Wait until a server answers; False if its process ends, or takes too long."""
    began = seconds()
    while process.poll() is None and seconds() - began < START_S:
        try:
            ask_once(server, "ListQueues", {})
        except (OSError, msgspec.MsgspecError):
            continue
        return True
    return False


SUITE = Suite(Bench, sqs_send, sqs_receive, sqs_fifo_deep, apart=True)
