"""Waits: what they look at, what they sleep for, and that both ways of taking their steps agree."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.command import Command
from millstream.embedded.rules import WAITS
from millstream.embedded.session import EmbeddedSession
from millstream.errors import Closed
from millstream.format import keys
from millstream.log.commands import WaitForOffset
from millstream.replica.sync.follow import WATCHED, WaitForChange
from millstream.store.sleep import Done, Sleep, step_of, wait
from millstream.store.watch import Watch
from millstream.testing import SimulatedClock, memory_store
from tests.unit.surfaces import SURFACES, bare, surface_of


def steps(ms: millstream.Millstream, command: Command[Any]) -> Callable[[], Any]:
    """A function that gives the next step of a command's wait."""
    store = ms.session.store  # type: ignore[attr-defined]
    waiting = WAITS[type(command)](store, command)  # type: ignore[index]
    return lambda: step_of(waiting)


def test_a_wait_for_an_offset_step_by_step() -> None:
    clock = SimulatedClock()
    with memory_store(clock=clock) as ms:
        next_step = steps(ms, WaitForOffset("x", 1, 5_000))
        asleep = next_step()
        assert (asleep.keys, asleep.seconds) == ((keys.log_name("x"),), 5.0)
        assert not asleep.is_over()
        ms.log("x").append(b"0")
        assert asleep.is_over()  # the log exists: its head is to be watched
        clock.advance(2.0)
        asleep = next_step()
        assert (asleep.keys, asleep.seconds) == ((keys.head(1),), 3.0)
        assert not asleep.is_over()
        ms.log("x").append(b"1")
        assert asleep.is_over()
        assert next_step() == Done(True)


def test_a_wait_whose_time_is_up_ends_with_false() -> None:
    clock = SimulatedClock()
    with memory_store(clock=clock) as ms:
        next_step = steps(ms, WaitForOffset("x", 0, 5_000))
        clock.advance(1.0)  # the time runs from when it was asked for
        assert next_step().seconds == 4.0
        clock.advance(4.0)
        assert next_step() == Done(False)


def test_a_wait_without_a_limit_sleeps_without_one() -> None:
    with memory_store() as ms:
        assert steps(ms, WaitForOffset("x", 0, None))().seconds is None


def test_a_wait_for_any_change_step_by_step() -> None:
    with memory_store() as ms:
        ms.log("x").append(b"0")
        now = steps(ms, WaitForChange(0, 1_000))()
        assert isinstance(now, Done)
        next_step = steps(ms, WaitForChange(now.answer, 300))
        asleep = next_step()
        assert (asleep.keys, asleep.seconds) == (WATCHED, 0.3)
        assert not asleep.is_over()
        ms.log("x").append(b"1")
        assert asleep.is_over()
        assert next_step() == Done(now.answer + 1)


# By threads, with a watch and nothing else.


def test_a_change_before_the_watch_began_is_seen() -> None:
    def waiting() -> Iterator[Sleep]:
        yield Sleep((b"key",), lambda: True, None)  # would sleep for ever
        return "seen"

    assert wait(Watch(None), waiting()) == "seen"


def test_a_wake_ends_the_sleep_of_any_of_its_keys() -> None:
    watch = Watch(None)
    looked: list[str] = []

    def is_over(key: bytes) -> bool:
        threading.Thread(target=watch.notify, args=([key],)).start()
        return False

    def waiting() -> Iterator[Sleep]:
        for key in (b"one", b"two"):
            yield Sleep((b"one", b"two"), lambda key=key: is_over(key), None)  # type: ignore[misc]
            looked.append("again")
        return len(looked)

    assert wait(watch, waiting()) == 2
    assert watch.waiters == {}


def test_a_sleep_ends_when_its_time_is_up() -> None:
    def waiting() -> Iterator[Sleep]:
        yield Sleep((b"key",), lambda: False, 0.0)
        return "up"

    assert wait(Watch(None), waiting()) == "up"


@pytest.mark.parametrize("in_look", [True, False])
def test_an_error_ends_the_wait_and_its_watch(in_look: bool) -> None:
    watch = Watch(None)

    def fail() -> bool:
        raise Closed("the store was closed")

    def waiting() -> Iterator[Sleep]:
        yield Sleep((b"key",), fail if in_look else lambda: True, None)
        fail()

    with pytest.raises(Closed):
        wait(watch, waiting())
    assert watch.waiters == {}


# Both surfaces, over a store.


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", SURFACES)
def test_a_change_between_the_look_and_the_watch_is_not_slept_over(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with surface_of(name) as surface, surface.open(tmp_path / "a.db") as ms:
        embedded = millstream.Millstream(EmbeddedSession(bare(ms).session.store))
        add, appended = Watch.add, []

        def append_first(watch: Watch, key: bytes, wake: Callable[[], None]) -> None:
            if not appended:
                appended.append(embedded.log("x").append(b"late"))
            add(watch, key, wake)

        monkeypatch.setattr(Watch, "add", append_first)
        assert ms.log("x").wait(0, timeout=3_600)
        assert appended == [0]
