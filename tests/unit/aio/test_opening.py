"""How a store is opened: made or not, to be written or only read, awaited or entered at once."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import aio
from millstream.errors import CannotOpen, InvalidInput
from millstream.server.serving import running
from millstream.server.settings import Settings
from millstream.testing import Probe
from tests.unit.surfaces import SURFACES, Surface, surface_of

pytestmark = pytest.mark.embedded


@pytest.fixture(params=SURFACES)
def surface(request: pytest.FixtureRequest) -> Iterator[Surface]:
    with surface_of(request.param) as found:
        yield found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a log, a queue and a table of the application's own."""
    found = tmp_path / "a.db"
    with millstream.open(found) as ms:
        Probe(ms).pause_keeper()  # closing places no message, so a reader finds one that is not
        ms.log("x").append_many([b"0", b"1"])
        ms.create_queue("q", priority_by="p").put(b"job")
        with ms.transaction() as tx:
            tx.sql("CREATE TABLE app (n)")
    return found


def files(folder: Path) -> dict[str, tuple[int, str]]:
    """Every file with its time and its bytes."""
    return {
        one.name: (one.stat().st_mtime_ns, hashlib.sha256(one.read_bytes()).hexdigest())
        for one in folder.iterdir()
    }


# Making a store, or not.


def test_a_missing_file_is_made_unless_that_is_not_wanted(surface: Surface, tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with pytest.raises(CannotOpen, match=r"there is no store at .*new.db; create=True makes one"):
        surface.open(path, create=False)
    with pytest.raises(CannotOpen, match=r"there is no store at .*new.db$"):
        surface.open(path, mode="r")
    assert files(tmp_path) == {}
    surface.open(path).close()
    surface.open(path, create=False).close()


def test_an_empty_file_is_no_store(surface: Surface, tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    for options in ({"create": False}, {"mode": "r"}):
        with pytest.raises(CannotOpen, match="there is no store"):
            surface.open(path, **options)
    assert path.stat().st_size == 0


@pytest.mark.parametrize("mode", ["w", "", None, True])
def test_a_mode_is_one_of_two(surface: Surface, path: Path, mode: Any) -> None:
    with pytest.raises(InvalidInput, match="mode is 'rw' or 'r', not"):
        surface.open(path, mode=mode)


@pytest.mark.parametrize("durability", ["Full", "none", "", None])
@pytest.mark.parametrize("place", ["file", ":memory:"])
def test_a_durability_is_one_of_two(
    surface: Surface, tmp_path: Path, place: str, durability: Any
) -> None:
    path = tmp_path / "new.db"
    with pytest.raises(InvalidInput, match="durability is 'full' or 'relaxed', not"):
        surface.open(path if place == "file" else place, durability=durability)
    assert not path.exists()


def test_memory_is_neither_read_only_nor_there_already(surface: Surface) -> None:
    for options in ({"create": False}, {"mode": "r"}):
        with pytest.raises(InvalidInput, match="memory begins empty"):
            surface.open(":memory:", **options)


# Only to read.


def test_what_is_only_read_leaves_every_file_as_it_was(surface: Surface, path: Path) -> None:
    before = files(path.parent)
    with surface.open(path, mode="r") as ms:
        assert [one.value for one in ms.log("x").read()] == [b"0", b"1"]
        assert [one.name for one in ms.logs()] == ["queue:q", "x"]
        assert [one.value for one in ms.queue("q").peek()] == [b"job"]
        assert ms.queue("q").message(0).state == "available"
        assert ms.queue("q").info().available == 1
        assert ms.sql("SELECT count(*) FROM app").rows == [(0,)]
        assert ms.stats()["engine"] == "sqlite"
    assert files(path.parent) == before


def test_every_write_is_refused_by_what_is_only_read(surface: Surface, path: Path) -> None:
    with surface.open(path, mode="r") as ms:
        log, queue = ms.log("x"), ms.queue("q")
        for ask in (
            lambda: log.append(b"2"),
            lambda: log.append_many([b"2"]),
            lambda: log.truncate(before=1),
            lambda: log.delete(),
            lambda: log.cursor("c"),
            lambda: log.stage(),
            lambda: log.fork(),
            lambda: log.metadata.set("k", 1),
            lambda: log.retain(count=1),
            lambda: log.enforce_retention(),
            lambda: ms.create_queue("new"),
            lambda: queue.put(b"x"),
            lambda: queue.put(b"x", delay=1, priority=1),
            lambda: queue.claim(),
            lambda: queue.pop(),
            lambda: queue.purge(),
            lambda: queue.pause(),
            lambda: queue.alter(lease=5),
            lambda: queue.delete(),
            lambda: ms.fold(),
            lambda: transact(ms),
        ):
            with pytest.raises(CannotOpen, match=r"mode='r'.*mode='rw'"):
                ask()
        assert len(log) == 2


def transact(ms: Any) -> None:
    with ms.transaction() as tx:
        tx.append("x", b"2")


def test_what_is_only_read_sees_what_others_commit(surface: Surface, path: Path) -> None:
    with surface.open(path, mode="r") as ms:
        assert len(ms.log("x")) == 2
        with millstream.open(path) as other:
            other.log("x").append(b"2")
            assert [one.value for one in ms.log("x").read()] == [b"0", b"1", b"2"]
            assert ms.log("x").wait(2, timeout=30)
            with millstream.open(path, mode="r") as third:
                assert len(third.log("x")) == 3
        assert len(ms.log("x")) == 3


def test_a_server_is_only_read_as_well(surface: Surface, path: Path) -> None:
    with running(path, Settings(port=0, stop_s=1.0)) as server:
        with surface.open(server.url, mode="r", create=False) as ms:
            assert len(ms.log("x")) == 2
            with pytest.raises(CannotOpen, match="mode='r'"):
                ms.log("x").append(b"2")
            assert [one.value for one in ms.queue("q").peek()] == [b"job"]
        with pytest.raises(InvalidInput, match="mode is"):
            surface.open(server.url, mode="w")


def test_a_peer_that_is_only_read_gives_and_takes_nothing(surface: Surface, path: Path) -> None:
    before = files(path.parent)
    with surface.open(path, mode="r") as peer, surface.open(":memory:") as ms:
        assert ms.sync(peer, direction="pull", logs="x").pulled == 2
        assert len(ms.log("x")) == 2
    assert files(path.parent) == before


# Coroutines.


def test_what_coroutines_open_is_awaited_or_entered_at_once(path: Path) -> None:
    async def test() -> None:
        async with millstream.aio.open(path) as ms:
            await ms.log("x").append(b"2")
        with pytest.raises(millstream.MillstreamError, match="closed"):
            await ms.log("x").len()
        opened = await aio.open(path)
        assert await opened.log("x").len() == 3
        await opened.close()
        async with await aio.open(path, mode="r") as ms:
            assert [record.value async for record in ms.log("x")] == [b"0", b"1", b"2"]
        task = asyncio.create_task(aio.open(path))
        await (await task).close()
        await (await asyncio.wait_for(aio.open(path), 60)).close()
        missing = path.with_name("none.db")
        with pytest.raises(CannotOpen):
            await aio.open(missing, create=False)
        with pytest.raises(CannotOpen):
            async with aio.open(missing, create=False):
                raise AssertionError

    asyncio.run(test())


def test_an_error_in_the_block_closes_the_store(path: Path) -> None:
    async def test() -> None:
        found = []
        with suppress(ZeroDivisionError):
            async with aio.open(path) as ms:
                found.append(ms)
                raise ZeroDivisionError
        with pytest.raises(millstream.MillstreamError, match="closed"):
            await found[0].log("x").len()

    asyncio.run(test())


def test_the_names_of_coroutines_are_there_once_they_are_asked_for() -> None:
    code = (
        "import sys, millstream; before = 'millstream.aio' in sys.modules; "
        "print(before, millstream.aio.open.__name__, hasattr(millstream, 'nothing'))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["False", "open", "False"]


def test_a_log_is_iterated(surface: Surface, path: Path) -> None:
    if surface.name == "threads":
        with surface.open(path) as ms:
            log = ms.log("x")
            assert [one.value for one in log] == [one.value for one in log.read()]
            assert list(ms.log("none")) == []
