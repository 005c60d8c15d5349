"""Store time: what leases and delays are measured by."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.clock import StoreTime, SystemClock
from millstream.embedded.session import open_store
from millstream.store.store import Store
from millstream.testing import MemoryEngine, Probe, SimulatedClock


def start(engine: MemoryEngine, clock: SimulatedClock) -> Store:
    store = open_store(engine, clock=clock)
    Probe(store).pause_keeper()
    return store


def commit(store: Store) -> int:
    """Commit something; the store time of the commit."""
    return store.run(lambda tx: (tx.take_ids(1), tx.store_ms)[1])


def test_it_advances_with_the_boot_clock() -> None:
    clock = SimulatedClock()
    store = start(MemoryEngine(), clock)
    first = commit(store)
    clock.advance(1.5)
    assert commit(store) == first + 1_500


def test_a_wall_clock_that_jumps_moves_it_neither_way() -> None:
    clock = SimulatedClock()
    store = start(MemoryEngine(), clock)
    first = commit(store)
    clock.jump(+86_400)
    assert commit(store) == first
    clock.jump(-2 * 86_400)
    clock.advance(1)
    assert commit(store) == first + 1_000


def test_a_restart_within_one_boot_goes_on_by_the_boot_clock() -> None:
    clock = SimulatedClock()
    engine = MemoryEngine()
    first = commit(start(engine, clock))
    clock.jump(-3_600)
    clock.advance(10)
    assert commit(start(engine.reopen(), clock)) == first + 10_000


def test_a_reboot_advances_it_by_what_the_wall_clock_says_has_passed() -> None:
    clock = SimulatedClock()
    engine = MemoryEngine()
    store = start(engine, clock)
    clock.advance(100)
    first = commit(store)
    clock.reboot(off=60)
    clock.advance(5)
    assert commit(start(engine.reopen(), clock)) == first + 65_000


def test_a_reboot_with_a_wall_clock_that_went_back_does_not_turn_it_back() -> None:
    clock = SimulatedClock()
    engine = MemoryEngine()
    first = commit(start(engine, clock))
    clock.reboot()
    clock.jump(-86_400)
    store = start(engine.reopen(), clock)
    assert commit(store) == first
    clock.advance(1)
    assert commit(store) == first + 1_000


def test_processes_of_one_machine_agree() -> None:
    clock = SimulatedClock()
    engine = MemoryEngine(shared=True)
    a = start(engine, clock)
    clock.advance(7)
    b = start(engine, clock)
    clock.jump(99)
    times = [commit(a), commit(b), commit(a)]
    assert len(set(times)) == 1


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("advance"), st.integers(0, 10_000)),
        st.tuples(st.just("jump"), st.integers(-100_000, 100_000)),
        st.tuples(st.just("reboot"), st.integers(0, 1_000)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("fold"), st.just(0)),
        st.tuples(st.just("commit"), st.just(0)),
    ),
    max_size=25,
)


@given(EVENTS)
def test_no_commit_is_earlier_than_the_one_before(events: list[tuple[str, int]]) -> None:
    clock = SimulatedClock()
    engine = MemoryEngine()
    store = start(engine, clock)
    last = commit(store)
    for event, seconds in events:
        if event == "advance":
            clock.advance(seconds)
        elif event == "jump":
            clock.jump(seconds)
        elif event == "fold":
            store.fold()
        elif event in {"reboot", "restart"}:
            if event == "reboot":
                clock.reboot(off=seconds)
            engine = engine.reopen()
            store = start(engine, clock)
        now = commit(store)
        assert now >= last
        last = now


def test_the_machines_clocks_can_be_read() -> None:
    clock = SystemClock()
    assert clock.wall_ms() > 1_700_000_000_000
    assert clock.boot_ms() > 0
    assert clock.boot_id() == SystemClock().boot_id()
    before = clock.seconds()
    assert clock.seconds() >= before
    boot_ms, store_ms = StoreTime(clock).now()
    assert boot_ms > store_ms >= 0
