"""The lease of a server on object storage: who has it, when it is free, and that one takes it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from millstream.errors import Fenced, StoreError
from millstream.objects.folder import StoredObject
from millstream.objects.lease import (
    LEASE_S,
    LeaseKeeper,
    LeaseNote,
    LeaseWatch,
    ObjectLease,
    call_holder,
    decoded,
    wait_for_lease,
)
from millstream.testing import SimulatedClock


class Objects:
    """Objects in a dict, with tags; calls fail while it is `away`, or lose their answers."""

    def __init__(self) -> None:
        self.found: dict[str, StoredObject] = {}
        self.number = 0
        self.away = False
        self.loses_answers = False

    def get(self, name: str) -> StoredObject | None:
        self._check()
        return self.found.get(name)

    def create(self, name: str, data: bytes) -> str | None:
        self._check()
        return None if name in self.found else self._put(name, data)

    def replace(self, name: str, data: bytes, tag: str) -> str | None:
        self._check()
        if name not in self.found or self.found[name].tag != tag:
            return None
        put = self._put(name, data)
        return None if self.loses_answers else put

    def _put(self, name: str, data: bytes) -> str:
        self.number += 1
        self.found[name] = StoredObject(data, str(self.number))
        return str(self.number)

    def _check(self) -> None:
        if self.away:
            raise StoreError("away")


def lease(objects: Any, holder: str) -> ObjectLease:
    return ObjectLease(objects, holder)


def note_of(objects: Objects) -> LeaseNote:
    return decoded(objects.found["lease"].data)


def test_of_two_that_see_the_same_one_takes_it() -> None:
    objects = Objects()
    first, second = lease(objects, "a"), lease(objects, "b")
    seen = first.look()
    assert first.take(seen)
    assert not second.take(seen)
    seen = second.look()
    assert second.take(seen)
    assert not first.renew()
    assert note_of(objects) == LeaseNote("b", 2, 0)


def test_a_holder_renews_until_another_seizes_it() -> None:
    objects = Objects()
    first, second = lease(objects, "a"), lease(objects, "b")
    first.seize()
    assert first.renew()
    assert first.renew()
    assert note_of(objects) == LeaseNote("a", 1, 2)
    second.seize()
    assert not first.renew()
    first.give_back()  # it is another's: nothing happens
    assert note_of(objects).holder == "b"


def test_a_renewal_whose_answer_was_lost_is_still_a_renewal() -> None:
    objects = Objects()
    first = lease(objects, "a")
    first.seize()
    objects.loses_answers = True
    assert first.renew()
    objects.loses_answers = False
    assert first.renew()


def test_it_is_free_once_it_has_stayed_the_same_for_long() -> None:
    watch = LeaseWatch()
    held = StoredObject(b'{"holder":"a","generation":1,"beat":0}', "1")
    renewed = StoredObject(b'{"holder":"a","generation":1,"beat":1}', "2")
    assert watch.is_free(None, 0.0)
    assert not watch.is_free(held, 10.0)
    assert not watch.is_free(held, 10.0 + LEASE_S / 2)
    assert not watch.is_free(renewed, 10.0 + LEASE_S)
    assert not watch.is_free(renewed, 10.0 + 1.9 * LEASE_S)
    assert watch.is_free(renewed, 10.0 + 2 * LEASE_S)


@pytest.mark.parametrize("jump", [10**6, -(10**6)])
def test_a_clock_that_is_set_anew_frees_no_lease(jump: int) -> None:
    clock, watch = SimulatedClock(), LeaseWatch()
    held = StoredObject(b'{"holder":"a","generation":1,"beat":0}', "1")
    assert not watch.is_free(held, clock.seconds())
    clock.advance(LEASE_S / 2)
    clock.jump(jump)
    assert not watch.is_free(held, clock.seconds())
    clock.advance(LEASE_S / 2)
    assert watch.is_free(held, clock.seconds())


def test_a_call_does_not_make_a_dead_holder_look_alive() -> None:
    objects: Any = Objects()
    watch = LeaseWatch()
    lease(objects, "a").seize()
    assert not watch.is_free(objects.get("lease"), 0.0)
    assert call_holder(objects)
    assert watch.is_free(objects.get("lease"), LEASE_S)


def test_a_holder_renews_beside_calls_and_hears_of_them() -> None:
    objects: Any = Objects()
    first = lease(objects, "a")
    first.seize()
    for calls in range(1, 4):
        assert call_holder(objects)
        assert first.renew()
        assert first.calls == calls
        assert note_of(objects).beat == calls  # so no standby believes it dead


def test_calls_are_counted_on_by_the_next_holder() -> None:
    objects: Any = Objects()
    assert not call_holder(objects)
    first, second = lease(objects, "a"), lease(objects, "b")
    first.seize()
    assert call_holder(objects)
    second.seize()
    assert second.calls == 1
    assert second.renew()
    second.give_back()
    assert not call_holder(objects)  # no server holds it


def test_a_keeper_tells_once_that_it_was_called() -> None:
    objects: Any = Objects()
    held = lease(objects, "a")
    held.seize()
    called = threading.Semaphore(0)
    keeper = LeaseKeeper(
        held,
        place="s3://shop",
        is_fenced=lambda: False,
        on_lost=lambda _: None,
        on_called=called.release,
    )
    assert call_holder(objects)
    assert called.acquire(timeout=60)
    keeper.close()
    assert not called.acquire(blocking=False)


@pytest.mark.parametrize("data", [b'{"holder":"","generation":4,"beat":9}', b"not ours", b""])
def test_what_was_given_back_or_cannot_be_read_is_free(data: bytes) -> None:
    assert LeaseWatch().is_free(StoredObject(data, "1"), 0.0)


class Passing(threading.Event):
    """An event whose wait lets a simulated clock go on instead."""

    def __init__(self, clock: SimulatedClock, then: Any) -> None:
        super().__init__()
        self._clock, self._then = clock, then

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.advance(timeout or 0)
        self._then()
        return self.is_set()


def test_a_standby_waits_while_the_holder_lives_and_the_store_answers() -> None:
    objects, clock = Objects(), SimulatedClock()
    holder = lease(objects, "a")
    holder.seize()
    looks = 0

    def happen() -> None:
        nonlocal looks
        looks += 1
        objects.away = 20 <= looks < 30  # nothing is taken while it does not answer
        if looks < 20:
            assert holder.renew()

    assert wait_for_lease(lease(objects, "b"), clock, Passing(clock, happen)) == "a"
    assert looks >= 30
    assert note_of(objects).holder == "b"


def test_a_standby_may_be_told_to_stop() -> None:
    objects, clock = Objects(), SimulatedClock()
    lease(objects, "a").seize()
    stop = Passing(clock, lambda: stop.set())
    assert wait_for_lease(lease(objects, "b"), clock, stop) is None


def test_a_take_whose_answer_was_lost_is_still_a_take() -> None:
    objects = Objects()
    first, second = lease(objects, "a"), lease(objects, "b")
    first.seize()
    objects.loses_answers = True
    assert second.take(second.look())
    objects.loses_answers = False
    assert second.renew()
    assert not first.renew()


def keeper(objects: Objects, holder: str) -> LeaseKeeper:
    held = lease(objects, holder)
    held.seize()
    return LeaseKeeper(held, place="s3://b/p", is_fenced=lambda: False, on_lost=print)


def test_a_holder_that_stood_still_is_told_that_its_lease_is_gone() -> None:
    objects = Objects()
    first = keeper(objects, "a")
    first.check()
    lease(objects, "b").seize()
    with pytest.raises(Fenced, match="s3://b/p"):
        first.check()
    with pytest.raises(Fenced):
        first.check()
    first.close()
    assert note_of(objects).holder == "b"


def test_a_keeper_that_is_closed_gives_the_lease_back() -> None:
    objects = Objects()
    first = keeper(objects, "a")
    first.close()
    assert not note_of(objects).holder
