"""A caller that is interrupted at any moment: its commit is finished first, and the handle lives on.

Signal handlers raise whatever they like on the main thread: Ctrl-C, an exit, a time limit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import millstream

pytestmark = pytest.mark.crash

INTERRUPTED = """
import collections, faulthandler, os, random, signal, sys, threading
import millstream

path, kind, number_of_threads, times, seed = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
faulthandler.dump_traceback_later(100, exit=True)

class TimeIsUp(Exception): ...

KINDS = {"ctrl-c": KeyboardInterrupt, "exit": SystemExit, "time limit": TimeIsUp}
raised = KINDS[kind]

def handle(*_):
    raise raised

signal.signal(signal.SIGINT, handle)
limits = millstream.Limits(tail_deltas_max=40, fold_slice_deltas=16)  # so that folds are hit too
ms = millstream.open(path, limits=limits)
log = ms.log("x")
acknowledged, failures = {}, []
stop, armed, caught = threading.Event(), threading.Event(), threading.Event()

def press():
    rng = random.Random(seed)
    for _ in range(times):
        armed.wait()
        armed.clear()
        if stop.wait(rng.uniform(0, 0.004)):  # at any moment, unless another has failed
            return
        os.kill(os.getpid(), signal.SIGINT)
        caught.wait()
        caught.clear()
    stop.set()

def append(name):
    number = 0
    try:
        while not stop.is_set():
            value = b"%s %d" % (name, number)
            acknowledged[log.append(value)] = value
            number += 1
    except BaseException as error:
        failures.append(repr(error))
        stop.set()

others = [threading.Thread(target=append, args=(b"t%d" % n,)) for n in range(number_of_threads)]
for thread in (*others, threading.Thread(target=press, daemon=True)):
    thread.start()
number = interrupts = 0
while not stop.is_set():
    try:
        armed.set()
        while not stop.is_set():
            value = b"main %d" % number
            number += 1
            if number % 7 == 0:
                acknowledged[log.append_many([value])[0]] = value
            else:
                acknowledged[log.append(value)] = value
    except raised:
        interrupts += 1
    except millstream.MillstreamError as error:
        failures.append(repr(error))
        break
    caught.set()
signal.signal(signal.SIGINT, signal.SIG_IGN)
for thread in others:
    thread.join()
assert not failures, failures
acknowledged[log.append(b"last")] = b"last"
found = {record.offset: record.value for record in log.read()}
missing = {k: (v, found.get(k)) for k, v in acknowledged.items() if found.get(k) != v}
assert not missing, list(missing.items())[:5]
assert collections.Counter(found.values()).most_common(1)[0][1] == 1, "stored twice"
assert sorted(found) == list(range(len(found)))
ms.fold()
assert {record.offset: record.value for record in log.read()} == found
ms.close()
print(interrupts, len(found))
"""


@pytest.mark.parametrize("threads", [0, 3], ids=["alone", "beside others"])
@pytest.mark.parametrize("kind", ["ctrl-c", "exit", "time limit"])
def test_whenever_a_caller_is_interrupted_its_handle_lives_on(
    tmp_path: Path, kind: str, threads: int
) -> None:
    times, seed = 150, 7
    path = tmp_path / "store.db"
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(path), kind, str(threads), str(times), str(seed)],
        env={**os.environ, "PYTHONPATH": str(Path(millstream.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"seed {seed}: {done.stdout}{done.stderr}"
    interrupts, records = map(int, done.stdout.split())
    assert interrupts == times
    with millstream.open(path) as ms:
        assert len(ms.log("x")) == records
