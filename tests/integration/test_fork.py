"""Handles that cross a fork, as under a pre-forking server: every process goes on with its own.

Each case is a script in a process of its own: pytest itself should not be forked, and a script
that hangs ends by its alarm, with the stack of every thread.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import millstream

pytestmark = pytest.mark.slow

HANGS_S = 120

OPENING = f"""
import faulthandler, os, signal, sys, threading, traceback
import millstream
from millstream import Limits, SqliteOptions
from millstream.testing import Probe

faulthandler.register(signal.SIGALRM, chain=True)
signal.alarm({HANGS_S - 10})
path = sys.argv[1]
FOLDS_ALWAYS = Limits(
    inline_bytes_max=300, tail_deltas_max=12, fold_deltas_min=3, fold_slice_deltas=2,
)
COPIES_OFTEN = SqliteOptions(wal_bytes_checkpoint=100_000, wal_bytes_reset=200_000)

def fork(work, leave=os._exit):
    child = os.fork()
    if child:
        return child
    signal.alarm({HANGS_S - 15})
    code = 1
    try:
        work()
        code = 0
    except Exception:
        traceback.print_exc()
    sys.stderr.flush()
    leave(code)

def join(children):
    for child in children:
        status = os.waitpid(child, 0)[1]
        assert status == 0, f"child {{child}} ended with {{status}}"

def append(log, name, count):
    for i in range(count):
        log.append(f"{{name}}:{{i}}")
        if i % 10 == 9:
            log.append_many([f"{{name}}:{{i}}:{{k}}" for k in range(5)])

def check(ms, log, names, count):
    found = [record.text for record in log.read()]
    assert len(found) == len(set(found)) == log.end_offset()
    for name in names:
        own = [text for text in found if text.split(":")[0] == str(name)]
        wanted = []
        for i in range(count):
            wanted.append(f"{{name}}:{{i}}")
            if i % 10 == 9:
                wanted += [f"{{name}}:{{i}}:{{k}}" for k in range(5)]
        assert own == wanted, (name, len(own), len(wanted))
    with Probe(ms).store.engine.read() as rows:
        assert rows.connection.execute("PRAGMA integrity_check").get == "ok"

def check_again(names, count):
    with millstream.open(path) as ms:
        check(ms, ms.log("x"), names, count)
        ms.fold()
        check(ms, ms.log("x"), names, count)
"""


def run_script(tmp_path: Path, script: str) -> None:
    source = str(Path(millstream.__file__).parents[1])
    done = subprocess.run(
        [
            sys.executable,
            *("-W", "ignore::DeprecationWarning"),  # of forking with threads: that is the test
            *("-c", OPENING + script, str(tmp_path / "a.db")),
        ],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    assert done.stdout.split() == ["fine"], done.stderr[-4_000:]
    assert "Error" not in done.stderr, done.stderr[-4_000:]


@pytest.mark.parametrize("leave", ["os._exit", "sys.exit"])
def test_children_and_parent_use_the_inherited_handle_at_once(tmp_path: Path, leave: str) -> None:
    run_script(
        tmp_path,
        f"""
ms = millstream.open(path, limits=FOLDS_ALWAYS, options=COPIES_OFTEN)
log = ms.log("x")
append(log, "before", 20)
children = [fork(lambda n=n: append(log, n, 60), {leave}) for n in range(4)]
append(log, "parent", 60)
join(children)
check(ms, log, [*range(4), "parent"], 60)
ms.close()
check_again([*range(4), "parent"], 60)
print("fine")
""",
    )


def test_a_child_starts_from_what_is_on_disk(tmp_path: Path) -> None:
    """Also what was committed after the fork is seen, by child and parent alike."""
    run_script(
        tmp_path,
        """
ms = millstream.open(path, limits=FOLDS_ALWAYS, options=COPIES_OFTEN)
log, cursor = ms.log("x"), ms.log("x").cursor("c")
append(log, "before", 20)
go, went = os.pipe(), os.pipe()

def child():
    os.read(go[0], 1)
    assert log.last().text == "after the fork"
    assert cursor.info().floor == 7
    cursor.ack_up_to(9)
    log.append("from the child")
    os.write(went[1], b"x")

children = [fork(child)]
log.append("after the fork")
cursor.ack_up_to(7)
end = log.end_offset()
os.write(go[1], b"x")
assert log.wait(end, timeout=60)
os.read(went[0], 1)
assert log.last().text == "from the child" and cursor.info().floor == 9
join(children)
print("fine")
""",
    )


def test_forks_under_load_harm_nothing(tmp_path: Path) -> None:
    """Threads write, read and wait in the parent while it forks twenty times."""
    run_script(
        tmp_path,
        """
ms = millstream.open(path, limits=FOLDS_ALWAYS, options=COPIES_OFTEN)
log = ms.log("x")
stop, failures, counts = threading.Event(), [], {}

def guarded(work):
    def run():
        try:
            work()
        except BaseException:
            failures.append(traceback.format_exc())
    return run

def write(name):
    i = 0
    while not stop.is_set():
        log.append(f"{name}:{i}")
        i += 1
    counts[name] = i

def read():
    while not stop.is_set():
        for place, record in enumerate(log.read()):
            assert record.offset == place

def wait():
    while not stop.is_set():
        log.wait(log.end_offset(), timeout=0.05)

work = [lambda: write("a"), lambda: write("b"), read, wait]
threads = [threading.Thread(target=guarded(one)) for one in work]
for thread in threads:
    thread.start()
children = []
for n in range(20):
    assert log.wait(n * 10, timeout=60)
    children.append(fork(lambda n=n: append(log, n, 5), (os._exit, sys.exit)[n % 2]))
    if n % 4 == 3:
        join(children)
        children = []
join(children)
stop.set()
for thread in threads:
    thread.join()
assert not failures, failures[0]
check(ms, log, range(20), 5)
found = [record.text for record in log.read()]
for name, count in counts.items():
    assert [t for t in found if t.startswith(name)] == [f"{name}:{i}" for i in range(count)]
ms.close()
check_again(range(20), 5)
print("fine")
""",
    )


def test_a_pool_of_forked_workers_shares_the_handle(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        """
import multiprocessing

ms = millstream.open(path, limits=FOLDS_ALWAYS, options=COPIES_OFTEN)
log = ms.log("x")
append(log, "before", 20)

def work(name):
    append(log, name, 20)
    return log.end_offset()

with multiprocessing.get_context("fork").Pool(3) as pool:
    ends = pool.map(work, range(9), chunksize=1)
    pool.close()
    pool.join()
assert max(ends) <= log.end_offset()
check(ms, log, range(9), 20)
process = multiprocessing.get_context("fork").Process(target=work, args=(9,))
process.start()
append(log, "parent", 20)
process.join()
assert process.exitcode == 0
check(ms, log, [*range(10), "parent"], 20)
print("fine")
""",
    )


def test_grandchildren_and_closing_in_any_order(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        """
ms = millstream.open(path, limits=FOLDS_ALWAYS, options=COPIES_OFTEN)
log = ms.log("x")

def grandchild():
    append(log, "grandchild", 20)
    ms.close()

def child():
    append(log, "child", 10)
    children = [fork(grandchild), fork(lambda: append(log, "other", 20), sys.exit)]
    ms.close()
    try:
        log.append("late")
    except millstream.errors.Closed:
        join(children)
        return
    raise AssertionError("a closed handle took an append")

children = [fork(child)]
append(log, "parent", 20)
join(children)
check(ms, log, ["grandchild", "other", "parent"], 20)
check(ms, log, ["child"], 10)

ms.close()
def late():
    try:
        log.append("late")
    except millstream.errors.Closed:
        return
    raise AssertionError("a closed handle took an append")
join([fork(late)])
check_again(["grandchild", "other", "parent"], 20)
print("fine")
""",
    )


def test_several_stores_and_forking_threads(tmp_path: Path) -> None:
    """Two threads fork at once, with three stores open and another being opened and closed."""
    run_script(
        tmp_path,
        """
stores = [millstream.open(f"{path}.{i}", limits=FOLDS_ALWAYS, options=COPIES_OFTEN) for i in range(3)]
logs = [ms.log("x") for ms in stores]
failures, stop = [], threading.Event()

def forker(name):
    try:
        for n in range(6):
            join([fork(lambda: [append(log, f"{name}{n}", 3) for log in logs])])
    except BaseException:
        failures.append(traceback.format_exc())

def opener():
    try:
        while not stop.is_set():
            with millstream.open(f"{path}.0") as ms:
                ms.log("y").append("z")
    except BaseException:
        failures.append(traceback.format_exc())

threads = [threading.Thread(target=forker, args=(name,)) for name in "ab"]
other = threading.Thread(target=opener)
for thread in (*threads, other):
    thread.start()
for thread in threads:
    thread.join()
stop.set()
other.join()
assert not failures, failures[0]
for ms, log in zip(stores, logs):
    check(ms, log, [f"{name}{n}" for name in "ab" for n in range(6)], 3)
print("fine")
""",
    )


def test_an_application_that_starts_programs_is_not_disturbed(tmp_path: Path) -> None:
    """`subprocess` forks too, but runs another program at once; no handle may leak into it."""
    run_script(
        tmp_path,
        """
import subprocess
ms = millstream.open(path)
log = ms.log("x")
append(log, "before", 10)
listed = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True)
assert path not in listed.stdout, listed.stdout
append(log, "after", 10)
check(ms, log, ["before", "after"], 10)
print("fine")
""",
    )
