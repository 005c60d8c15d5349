"""What `open` takes for a store: a file, memory, a server; and what it says to everything else."""

from __future__ import annotations

import asyncio
import gc
import os
import stat
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import aio
from millstream.engine.sqlite.neighbour import is_open_here
from millstream.errors import CannotOpen, CorruptionError, InvalidInput


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_store_in_memory_leaves_no_file(here: Path) -> None:
    with millstream.open(":memory:") as ms, millstream.open(":memory:") as other:
        ms.log("x").append(b"v")
        ms.queue("jobs", max_attempts=2).put({"n": 1})
        assert [m.json() for m in ms.queue("jobs").claim(1)] == [{"n": 1}]
        assert ms.stats()["engine"] == "memory"
        assert list(other.logs()) == []
    assert list(here.iterdir()) == []


def test_a_store_in_memory_for_coroutines(here: Path) -> None:
    async def use() -> int:
        async with await aio.open(":memory:") as ms:
            await ms.log("x").append(b"v")
            return await ms.log("x").end_offset()

    assert asyncio.run(use()) == 1
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["127.0.0.1:8091", "localhost:8091", "[::1]:80", "db.example.org:443/"]
)
def test_an_address_without_its_scheme_is_no_file(here: Path, name: str) -> None:
    with pytest.raises(CannotOpen, match=r"write http://") as refused:
        millstream.open(name)
    assert name in str(refused.value)
    with pytest.raises(CannotOpen, match=r"write http://"):
        asyncio.run(aio.open(name))
    assert list(here.iterdir()) == []


def test_another_scheme_is_no_file(here: Path) -> None:
    with pytest.raises(CannotOpen, match="http://"):
        millstream.open("tcp://somebody:secret@localhost:1")
    assert list(here.iterdir()) == []


def test_a_file_may_have_such_a_name_if_it_is_meant(here: Path) -> None:
    with millstream.open("./localhost:8091") as ms:
        ms.log("x").append(b"v")
    with millstream.open("localhost:8091") as ms:
        assert len(ms.log("x")) == 1


def test_a_sync_makes_no_file_unless_it_is_asked_to(here: Path) -> None:
    with millstream.open("a.db") as ms:
        ms.log("x").append(b"v")
        with pytest.raises(CannotOpen, match="create=True"):
            ms.sync("typo.db")
        with pytest.raises(CannotOpen, match="create=True"):
            next(ms.follow("typo.db"))
        assert not Path("typo.db").exists()
        assert ms.sync("b.db", create=True).pushed == 1
    assert Path("b.db").exists()


def test_a_sync_of_coroutines_makes_none_either(here: Path) -> None:
    async def use() -> None:
        async with await aio.open("a.db") as ms:
            with pytest.raises(CannotOpen, match="create=True"):
                await ms.sync("typo.db")
            await ms.sync("b.db", create=True)

    asyncio.run(use())
    assert not Path("typo.db").exists()


def damaged_store(path: Path) -> Path:
    """One whose file can be opened, and whose newest commit cannot be read."""
    import apsw

    with millstream.open(path) as ms:
        ms.log("x").append(b"v")
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE millstream_delta SET value = x'00'")
    connection.close()
    return path


def open_serving(path: Path) -> Any:
    from millstream.server.serving import Serving
    from millstream.server.settings import Settings

    return Serving(path, Settings(port=0)).run()


@pytest.mark.parametrize(
    "open_it",
    [millstream.open, lambda path: asyncio.run(aio.open(path)), open_serving],
    ids=["threads", "coroutines", "server"],
)
def test_a_store_that_cannot_be_opened_is_let_go_of(here: Path, open_it: Any) -> None:
    path = damaged_store(here / "store.db")
    with pytest.raises(CorruptionError):
        open_it(path)
    gc.collect()
    assert not is_open_here(path)


# Modes.


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("wanted", [None, 0o600, 0o640, 0o666])
def test_a_new_store_is_for_its_owner_alone(here: Path, umask: int, wanted: int | None) -> None:
    before = os.umask(umask)
    try:
        with millstream.open("s.db", file_mode=wanted) as ms:
            ms.log("x").append(b"v")
            found = {path.name: mode(path) for path in here.iterdir()}
    finally:
        os.umask(before)
    assert found == dict.fromkeys(("s.db", "s.db-wal", "s.db-shm"), wanted or 0o600)


def test_an_existing_store_keeps_its_mode(here: Path) -> None:
    millstream.open("s.db").close()
    Path("s.db").chmod(0o640)
    with millstream.open("s.db", file_mode=0o600) as ms:
        ms.log("x").append(b"v")
        assert mode(Path("s.db")) == mode(Path("s.db-wal")) == 0o640


def test_coroutines_choose_the_mode_too(here: Path) -> None:
    async def use() -> None:
        async with await aio.open("s.db", file_mode=0o660):
            pass

    asyncio.run(use())
    assert mode(Path("s.db")) == 0o660


@pytest.mark.parametrize("wrong", [0o400, 0o777, 0o066, "640", -1])
def test_a_mode_that_will_not_do_is_refused(here: Path, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="file_mode"):
        millstream.open("s.db", file_mode=wrong)
    assert list(here.iterdir()) == []


def test_loss_is_accepted_only_if_it_is_asked_for(here: Path) -> None:
    with millstream.open("s.db") as ms:
        ms.log("x").append(b"kept")
    with millstream.open("s.db") as ms:
        ms.log("x").append(b"lost")
        for side in ("", "-wal"):
            Path(f"copy.db{side}").write_bytes(Path(f"s.db{side}").read_bytes())
    wal = bytearray(Path("copy.db-wal").read_bytes())
    wal[100] ^= 4
    Path("copy.db-wal").write_bytes(wal)
    with pytest.raises(CorruptionError, match="accept_loss=True"):
        millstream.open("copy.db")
    with millstream.open("copy.db", accept_loss=True) as ms:
        assert [record.value for record in ms.log("x").read()] == [b"kept"]
