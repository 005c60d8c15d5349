"""Commands of the command line that are killed (`kill -9`) at every step that they take on the disk.

A step is a call of the operating system that changes a file, by Python or by SQLite. Promised, wherever
the kill comes: the store opens and is healthy, nothing is lost, and the next run completes.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec
import pytest

import millstream
from millstream import SqliteOptions, topology
from millstream.cli import main
from millstream.doctor import examine
from millstream.engine.sqlite.header import NONE
from millstream.engine.sqlite.pages import checksum_layer
from millstream.server.auth.register import Registrar

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1_800)]

PYTHON_STEPS = (
    "open",
    "mkdir",
    "rename",
    "replace",
    "link",
    "unlink",
    "write",
    "pwrite",
    "ftruncate",
)
SQLITE_STEPS = {
    "open": (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_int),
    "pwrite64": (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64),
    "ftruncate": (ctypes.c_int, ctypes.c_int, ctypes.c_int64),
    "unlink": (ctypes.c_int, ctypes.c_char_p),
}
"""The calls of SQLite's file layer, each with its result and its arguments."""

KILLS = int(os.environ.get("MILLSTREAM_COMMAND_KILLS", "12"))
"""How many steps of a command are tried, spread over all of its steps."""

RECORDS = [b"%d" % number * 50 for number in range(40)]

TOPOLOGY = """
[logs.orders]
metadata = { team = "shop" }
[logs.new]
partitions = 3
[queues.mail]
sources = ["orders"]
lease = "1m"
[rooms.hall]
ttl = "1h"
[schedules.nightly]
task = "shop:report"
every = "1h"
[tokens.billing]
permissions = ["log:read:orders"]
"""


def run_in_child(arguments: list[str], folder: Path, kill_at: int) -> tuple[bool, int]:
    """Run a command in a forked process; return whether it was killed, and the steps that it took."""
    heard, report = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.chdir(folder)
            sys.argv = ["millstream", *arguments]
            steps = _Steps(kill_at, report)
            steps.watch()
            try:
                main()
            except SystemExit as ended:
                if ended.code:
                    os._exit(1)
            steps.tell()
            os._exit(0)
        finally:
            os._exit(1)
    os.close(report)
    with open(heard, "rb") as told:
        count = told.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True, kill_at
    assert os.waitstatus_to_exitcode(status) == 0
    return False, int(count)


class _Steps:
    """Counts the steps of this process, and kills it before one of them."""

    def __init__(self, kill_at: int, report: int) -> None:
        self._kill_at, self._report, self._count = kill_at, report, 0
        self._write = os.write
        self._calls: list[Any] = []

    def watch(self) -> None:
        """Count the steps of Python and of SQLite from now on."""
        for name in PYTHON_STEPS:
            setattr(os, name, self._counted(getattr(os, name)))
        library, layer = ctypes.CDLL(None, use_errno=True), apsw.VFS("counted", base="")
        for name, types in SQLITE_STEPS.items():
            call = self._of_sqlite(getattr(library, name), types)
            self._calls.append(call)
            place = ctypes.cast(call, ctypes.c_void_p).value
            assert place is not None
            layer.xSetSystemCall(name, place)

    def tell(self) -> None:
        """Report the number of steps."""
        self._write(self._report, b"%d" % self._count)

    def _step(self) -> None:
        self._count += 1
        if self._count == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            self._step()
            return function(*arguments, **named)

        return run

    def _of_sqlite(self, function: Any, types: tuple[Any, ...]) -> Any:
        function.restype, function.argtypes = types[0], types[1:]

        def call(*arguments: Any) -> Any:
            self._step()
            result = function(*arguments)
            ctypes.set_errno(ctypes.get_errno())
            return result

        return ctypes.CFUNCTYPE(*types, use_errno=True)(call)


class Case(NamedTuple):
    """A command with the files that it finds."""

    arguments: list[str]
    prepare: Callable[[Path], None]
    check: Callable[[Path], None]
    """Looks at the store after a kill."""
    completed: Callable[[Path], None]
    """Looks at the store after the next run."""


def filled(folder: Path, **options: Any) -> None:
    """Make a store with records, messages and an application's table."""
    with millstream.open(folder / "s.db", **options) as ms:
        with ms.transaction() as tx:
            tx.sql("CREATE TABLE mine (id, text)")
            tx.sql("INSERT INTO mine VALUES (1, 'one')")
        ms.log("orders").append_many(RECORDS)
        ms.create_queue("jobs").put_many([{"n": n} for n in range(20)])
        (message,) = ms.queue("jobs").claim(1)
        ms.queue("jobs").ack([message])
        ms.fold()
        ms.log("orders").append(b"unfolded")


def check_store(path: Path) -> None:
    """The store opens, is healthy, and has what was acknowledged."""
    millstream.open(path).close()
    assert examine(path).healthy
    with millstream.open(path, mode="r") as ms:
        assert [record.value for record in ms.log("orders").read()] == [*RECORDS, b"unfolded"]
        assert ms.queue("jobs").info().done == 1
    with closing(apsw.Connection(str(path))) as connection:
        assert connection.execute("SELECT * FROM mine").get == (1, "one")


def check_own(folder: Path) -> None:
    check_store(folder / "s.db")


def with_topology(folder: Path) -> None:
    filled(folder)
    (folder / "t.toml").write_text(TOPOLOGY)


def all_or_nothing(folder: Path) -> None:
    """The topology is that of before or of after the commit."""
    check_own(folder)
    with millstream.open(folder / "s.db", mode="r") as ms:
        dump = topology.dump(ms)
    made = {"mail" in dump.get("queues", {}), "hall" in dump.get("rooms", {})}
    made |= {"nightly" in dump.get("schedules", {}), "billing" in dump.get("tokens", {})}
    assert len(made) == 1


def applied(folder: Path) -> None:
    all_or_nothing(folder)
    with millstream.open(folder / "s.db") as ms:
        assert topology.plan(ms, folder / "t.toml").changes == []
        (token,) = Registrar(ms).tokens()
    secrets = msgspec.json.decode((folder / "secrets.json").read_bytes())
    assert secrets["billing"].startswith(f"ms_{token.id}_")


def with_free_pages(folder: Path) -> None:
    filled(folder)
    with millstream.open(folder / "s.db") as ms:
        ms.log("gone").append_many([bytes(1_000)] * 500)
        ms.log("gone").truncate(before=500)
        ms.fold()


def without_free_pages(folder: Path) -> None:
    check_own(folder)
    with closing(apsw.Connection(str(folder / "s.db"))) as connection:
        assert connection.pragma("freelist_count") == 0


def of_an_earlier_mode(folder: Path) -> None:
    with_free_pages(folder)
    with closing(apsw.Connection(str(folder / "s.db"))) as connection:
        connection.pragma("auto_vacuum", NONE)
        connection.execute("VACUUM")


def with_export(folder: Path) -> None:
    filled(folder)
    lines = (f'{{"log":"in-{n % 3}","value":"{n}","key":"{n}"}}\n' for n in range(12_000))
    (folder / "in.jsonl").write_text("".join(lines))


def imported_in_part(folder: Path) -> None:
    check_own(folder)
    with millstream.open(folder / "s.db", mode="r") as ms:
        for number in range(3):
            stored = [int(record.text) for record in ms.log(f"in-{number}").read()]
            assert stored == list(range(number, 12_000, 3))[: len(stored)]


def imported(folder: Path) -> None:
    imported_in_part(folder)
    with millstream.open(folder / "s.db", mode="r") as ms:
        assert sum(len(ms.log(f"in-{number}")) for number in range(3)) == 12_000


def with_page_checksums(folder: Path) -> None:
    filled(folder, options=SqliteOptions(page_checksums=True))


def old_or_new(folder: Path) -> None:
    check_own(folder)
    if (copy := folder / "s.db.before-migration").exists():
        check_store(copy)


def migrated(folder: Path) -> None:
    old_or_new(folder)
    with millstream.open(folder / "s.db", mode="r") as ms:
        assert not ms.stats()["page_checksums"]


def restorable(folder: Path) -> None:
    check_own(folder)
    restored = folder / "restored.db"
    assert run_in_child(["restore", "place", str(restored)], folder, 0)[0] is False
    check_store(restored)


def with_backup(folder: Path) -> None:
    filled(folder)
    assert run_in_child(["backup", "s.db", "place"], folder, 0)[0] is False
    with millstream.open(folder / "s.db") as ms:
        ms.log("later").append(b"later")


def restored_or_not(folder: Path) -> None:
    """The later record is in the store, or in the store that was put aside."""
    check_own(folder)
    stores = [path for path in folder.glob("s.db*") if path.name[-4:] not in ("-wal", "-shm")]
    assert any(has_later(path) for path in stores)


def has_later(path: Path) -> bool:
    if path.read_bytes()[:16] != b"SQLite format 3\0":
        return False
    with millstream.open(path, mode="r") as ms:
        return any(log.name == "later" for log in ms.logs())


def restored(folder: Path) -> None:
    restored_or_not(folder)
    assert not has_later(folder / "s.db")


CASES = {
    "apply": Case(
        ["apply", "t.toml", "--store", "s.db", "--secrets", "secrets.json"],
        with_topology,
        all_or_nothing,
        applied,
    ),
    "compact": Case(["compact", "s.db"], with_free_pages, check_own, without_free_pages),
    "compact --rewrite": Case(
        ["compact", "s.db", "--rewrite"], of_an_earlier_mode, check_own, without_free_pages
    ),
    "import": Case(
        ["import", "in.jsonl", "--store", "s.db"], with_export, imported_in_part, imported
    ),
    "migrate": Case(["migrate", "s.db"], with_page_checksums, old_or_new, migrated),
    "backup": Case(["backup", "s.db", "place", "--keep", "1"], filled, check_own, restorable),
    "restore": Case(
        ["restore", "place", "s.db", "--replace"], with_backup, restored_or_not, restored
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_command_that_is_killed_at_every_step(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    if name == "migrate" and checksum_layer() is None:
        pytest.skip("apsw came without the checksum layer")
    before = tmp_path / "before"
    before.mkdir()
    case.prepare(before)
    steps = run_whole(case, before, tmp_path / "whole")
    assert steps > 5
    for kill_at in spread(steps):
        folder = tmp_path / f"killed-{kill_at}"
        shutil.copytree(before, folder)
        was_killed, _ = run_in_child(case.arguments, folder, kill_at)
        case.check(folder)
        was_killed_again, _ = run_in_child(case.arguments, folder, 0)
        assert not was_killed_again
        case.completed(folder)
        shutil.rmtree(folder)
        assert was_killed or kill_at > steps // 2, f"{name} ended before step {kill_at} of {steps}"


def run_whole(case: Case, before: Path, folder: Path) -> int:
    """Run the command without a kill; return the number of its steps."""
    shutil.copytree(before, folder)
    was_killed, steps = run_in_child(case.arguments, folder, 0)
    assert not was_killed
    case.completed(folder)
    return steps


def spread(steps: int) -> Iterator[int]:
    """Yield the first steps, the last steps, and some between."""
    if steps <= KILLS:
        yield from range(1, steps + 1)
    else:
        yield from sorted({1 + index * (steps - 1) // (KILLS - 1) for index in range(KILLS)})
