"""Promise: a store whose file was removed, renamed or replaced acknowledges nothing any more.

On POSIX the file stays open, and whatever were written to it would be gone with the process.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import millstream
from millstream import Millstream
from millstream.errors import StoreGone
from millstream.server.observe.health import check_store
from millstream.testing import Probe, SimulatedClock

LATER_S = 1
"""Long enough for the next call to look again."""


class Opened:
    """A store of two commits, and the clock by which it looks after its file."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock = path, SimulatedClock()
        self.log_path = Path(f"{path}-wal")
        self.ms: Millstream = millstream.open(path, clock=self.clock)
        self.ms.log("a").append(b"one")
        self.later()
        self.ms.log("a").append(b"two")
        self.later()

    def later(self) -> None:
        self.clock.advance(LATER_S)

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.ms.log("a").read()]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    found = Opened(tmp_path / "s.db")
    with Probe(found.ms).pause_keeper():
        yield found
    found.ms.close()


def remove(opened: Opened) -> None:
    opened.path.unlink()


def remove_all(opened: Opened) -> None:
    for path in opened.path.parent.iterdir():
        path.unlink()


def remove_log(opened: Opened) -> None:
    opened.log_path.unlink()


def rename(opened: Opened) -> None:
    opened.path.rename(opened.path.with_name("moved.db"))


def replace(opened: Opened) -> None:
    other = opened.path.with_name("other.db")
    millstream.open(other).close()
    os.replace(other, opened.path)


def replace_log(opened: Opened) -> None:
    copy = opened.path.with_name("copy")
    shutil.copy(opened.log_path, copy)
    os.replace(copy, opened.log_path)


@pytest.mark.parametrize("change", [remove, remove_all, remove_log, rename, replace, replace_log])
def test_what_would_be_lost_is_refused(opened: Opened, change: Callable[[Opened], None]) -> None:
    queue = opened.ms.create_queue("q")
    queue.put(b"work")
    change(opened)
    opened.later()

    for call in (lambda: opened.ms.log("a").append(b"three"), lambda: queue.put(b"more")):
        with pytest.raises(StoreGone, match="removed, renamed or replaced") as refused:
            call()
        assert (refused.value.path, refused.value.retry) == (str(opened.path), False)
    assert opened.ms.stats()["missing"] in (str(opened.path), str(opened.log_path))
    health = check_store(Probe(opened.ms).store, opened.ms.stats())
    assert health.status == "critical"


@pytest.mark.parametrize("change", [remove, remove_all, remove_log, rename])
def test_what_is_open_can_be_read(opened: Opened, change: Callable[[Opened], None]) -> None:
    change(opened)
    opened.later()
    assert opened.values() == [b"one", b"two"]


def test_another_store_under_the_name_is_not_read_as_if_it_were_this_one(opened: Opened) -> None:
    replace(opened)
    opened.later()
    with pytest.raises(StoreGone, match="is another file now"):
        opened.values()


def test_a_file_that_is_put_back_is_written_again(opened: Opened) -> None:
    rename(opened)
    opened.later()
    with pytest.raises(StoreGone, match="is gone"):
        opened.ms.log("a").append(b"three")
    opened.path.with_name("moved.db").rename(opened.path)
    opened.later()
    assert opened.ms.log("a").append(b"three") == 2
    assert opened.ms.stats()["missing"] is None
    assert opened.values() == [b"one", b"two", b"three"]


def test_the_store_that_took_the_place_keeps_what_it_was_given(tmp_path: Path) -> None:
    opened = Opened(tmp_path / "s.db")
    Probe(opened.ms).pause_keeper()
    remove_all(opened)
    with millstream.open(opened.path) as successor:
        successor.log("b").append(b"new")
        opened.later()
        with pytest.raises(StoreGone):
            opened.ms.log("a").append(b"three")
        opened.ms.close()
        assert opened.log_path.exists(), "closing the old one must not remove the new one's log"
        successor.log("b").append(b"newer")
    with millstream.open(opened.path) as again:
        assert [record.value for record in again.log("b").read()] == [b"new", b"newer"]


def test_a_removed_log_is_saved_by_closing(opened: Opened) -> None:
    remove_log(opened)
    opened.later()
    with pytest.raises(StoreGone, match="-wal is gone"):
        opened.ms.log("a").append(b"three")
    opened.ms.close()
    with millstream.open(opened.path) as again:
        assert [record.value for record in again.log("a").read()] == [b"one", b"two"]


def test_a_link_to_the_file_may_lead_elsewhere_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    link = tmp_path / "current"
    link.symlink_to("one")
    opened = Opened(link / "s.db")
    link.unlink()
    link.symlink_to("two")
    opened.later()
    engine = Probe(opened.ms).store.engine
    with engine.read() as first, engine.read() as second:  # one connection at least is new
        assert first.last_seq() == second.last_seq() > 0
    assert opened.ms.log("a").append(b"three") == 2
    opened.ms.close()
    with millstream.open(tmp_path / "one" / "s.db") as again:
        assert len(again.log("a")) == 3
