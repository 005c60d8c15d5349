"""Producers through kills and interrupts. After all of them:

- a message whose handle reported an offset is stored at that offset, once, in the order of the calls;
- a killed server costs no message: its producers go on with the next server;
- Ctrl-C at any moment costs no message that was handed in, stores none twice, and the producer goes on.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import millstream
from tests.unit.remote.proxy import proxied

pytestmark = [pytest.mark.crash, pytest.mark.slow]

SEED = int(os.environ["MILLSTREAM_SEED"])
KILLS = 5
ROUND = 2_000


class Server:
    """A server process on a file; it can be killed and started again."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-m", "millstream", "serve", str(path), "--port", "0", "--json"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.port = int(json.loads(self._process.stdout.readline())["rest"].rpartition(":")[2])

    def kill(self) -> None:
        """End the process by kill -9."""
        self._process.kill()
        self._process.communicate()


def test_a_producer_goes_on_through_killed_servers(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    server = Server(tmp_path / "store.db")
    handles: list[millstream.AppendHandle] = []
    try:
        with proxied(server.port) as proxy, millstream.open(proxy.url, retry_for=120) as ms:
            with ms.log("orders").producer(in_flight=500, retry_for=120) as producer:
                for _ in range(KILLS):
                    kill_at = chance.randrange(ROUND)
                    for number in range(ROUND):
                        handles.append(producer.append(b"%d" % len(handles)))
                        if number == kill_at:
                            server.kill()
                            server = Server(tmp_path / "store.db")
                            proxy.target = server.port
                            proxy.cut()
            values = [record.value for record in ms.log("orders").read()]
    finally:
        server.kill()
    assert values == [b"%d" % number for number in range(KILLS * ROUND)]
    assert [handle.offset() for handle in handles] == [*range(KILLS * ROUND)]


INTERRUPTED = """
import faulthandler, os, random, signal, sys, threading
import millstream

path, times, seed = sys.argv[1], *map(int, sys.argv[2:])
faulthandler.dump_traceback_later(100, exit=True)
signal.signal(signal.SIGINT, signal.default_int_handler)
ms = millstream.open(path)
log = ms.log("x")
stop, armed, caught = threading.Event(), threading.Event(), threading.Event()

def press():
    rng = random.Random(seed)
    for _ in range(times):
        armed.wait()
        armed.clear()
        stop.wait(rng.uniform(0, 0.004))
        os.kill(os.getpid(), signal.SIGINT)
        caught.wait()
        caught.clear()
    stop.set()

producer = log.producer(in_flight=50)
handles, number, interrupts = {}, 0, 0
pressing = threading.Thread(target=press, daemon=True)
pressing.start()
while not stop.is_set():
    try:
        armed.set()
        while not stop.is_set():
            value = b"%d" % number
            number += 1
            handles[value] = producer.append(value)
            if number % 100 == 0:
                handles[value].offset()
            if number % 777 == 0:
                producer.flush()
    except KeyboardInterrupt:
        interrupts += 1
        while True:
            try:
                caught.set()
                break
            except KeyboardInterrupt:
                pass
pressing.join()
producer.flush()
assert producer.append(b"last").offset() == log.end_offset() - 1
producer.close()
values = [record.value for record in log.read()]
assert len(set(values)) == len(values), "a message is stored twice"
numbers = [int(value) for value in values[:-1]]
assert numbers == sorted(numbers), "the order differs"
for value, handle in handles.items():
    assert values[handle.offset()] == value
assert interrupts == times, interrupts
ms.close()
print(len(values))
"""


def test_ctrl_c_at_any_moment_leaves_a_usable_producer(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "store.db"), "60", str(SEED)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 1


def test_a_killed_process_loses_no_message_whose_handle_reported_success(tmp_path: Path) -> None:
    program = """
import sys, millstream
with millstream.open(sys.argv[1]) as ms, ms.log("x").producer(in_flight=300) as producer:
    for number in range(10**9):
        producer.append(b"%d" % number, callback=lambda handle: print(handle.offset(), flush=True))
"""
    reported = -1
    for _ in range(3):
        command = [sys.executable, "-c", program, str(tmp_path / "store.db")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(500):
                reported = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            for line in process.stdout:
                if line.endswith("\n"):
                    reported = int(line)
    with millstream.open(tmp_path / "store.db") as ms:
        values = [int(record.value or b"") for record in ms.log("x").read()]
    assert len(values) > reported
    runs = [at for at, value in enumerate(values) if value == 0]
    for start, stop in zip(runs, [*runs[1:], len(values)], strict=True):
        assert values[start:stop] == [*range(stop - start)]
