"""Many single messages go from a producer to a consumer: the memory of all processes stays flat.

The run takes `MILLSTREAM_STREAM_MESSAGES` messages: 60,000 by default, and ten million in `make faults`.
The first third is for warming up. The consumer is slower than the producer at first, so that a backlog
exists: neither the backlog nor the length of the run may be seen in the memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(3600)]

MESSAGES = int(os.environ.get("MILLSTREAM_STREAM_MESSAGES", "60000"))
GROWTH_MIB_MAX = 30.0

PROGRAM = """
import json, sys, threading
import millstream
from millstream.bench.measure import memory_mib

url, messages, server = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) or None
BACKLOG = 10_000
round_size = max(1, messages // 30)
room = threading.Semaphore(BACKLOG)
memory = []

def produce(ms):
    with ms.queue("jobs").producer() as producer, ms.log("orders").producer() as log:
        for number in range(messages):
            room.acquire()
            producer.put(b"%100d" % number)
            log.append(b"%100d" % number)

with millstream.open(url) as ms:
    ms.create_queue("jobs", lease=600)
    ms.log("orders").retain(count=20_000)
    producing = threading.Thread(target=produce, args=[ms])
    producing.start()
    count = 0
    with ms.queue("jobs").consumer() as consumer:
        for message in consumer:
            assert int(message.value) == count, (message.value, count)
            consumer.ack(message)
            room.release()
            count += 1
            if count % round_size == 0:
                memory.append([memory_mib(), memory_mib(server) if server else 0])
            if count == messages:
                break
    producing.join()
    info = ms.queue("jobs").info()
    assert (info.done, info.in_flight, info.available) == (messages, 0, 0), info
print(json.dumps(memory))
"""


@contextmanager
def served(path: Path) -> Iterator[tuple[str, int]]:
    """Run a server process on a file; its address, and the id of the process."""
    command = [sys.executable, "-m", "millstream", "serve", str(path), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["rest"], process.pid
        finally:
            process.terminate()


@pytest.mark.parametrize("place", ["file", "server"])
def test_memory_stays_flat_over_many_messages(tmp_path: Path, place: str) -> None:
    if place == "file":
        memory = run(str(tmp_path / "store.db"), 0)
    else:
        with served(tmp_path / "store.db") as (url, process_id):
            memory = run(url, process_id)
    warm = memory[len(memory) // 3 : len(memory) // 3 + 3]
    for process in (0, 1):
        before = max(figures[process] for figures in warm)
        after = min(figures[process] for figures in memory[-3:])
        assert after - before < GROWTH_MIB_MAX, memory


def run(url: str, server: int) -> list[list[float]]:
    """Run the program, and return the memory of client and server after each part of the run."""
    command = [sys.executable, "-c", PROGRAM, url, str(MESSAGES), str(server)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    memory: list[list[float]] = json.loads(ran.stdout)
    return memory
