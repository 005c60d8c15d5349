"""Forks and copies in a store that is stopped, or fails, at every single step of a workload.

Promised, wherever the stop comes:
- a fork, a merge, a hand-over and blocks that were adopted are wholly there or wholly absent;
- every log reads as it should, whichever log its records lie in;
- the hash that a log keeps is that of its records;
- what no log needs any more is gone once everything was done, and nothing else is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millstream.embedded.session import EmbeddedSession, open_store
from millstream.errors import CorruptionError, MillstreamError, StoreError, WriteFailed
from millstream.format import keys
from millstream.log.rules.retention import tend
from millstream.replica import commands as r
from millstream.replica.chain import ZERO, Chain, Mark
from millstream.replica.forks import fork, setting_aside, transfer
from millstream.store.store import Store
from millstream.testing import Crash, Faults, MemoryEngine, Probe, SimulatedClock, memory_store
from millstream.threads.database import Millstream
from tests.crash.tight import LARGE, LIMITS

pytestmark = pytest.mark.faults

Held = tuple[int, list[bytes], str, int]
"""Start, values, owner (empty for the store itself) and epoch of a log."""
Model = dict[str, Held]
Do = Callable[[Millstream], Any]

ASIDE = "a~fork-0-00000000"


@pytest.fixture(autouse=True)
def the_same_names_in_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setting_aside.secrets, "token_hex", lambda _: "0" * 8)


def origin() -> r.Parcel:
    """Blocks of another store, and the hash with them."""
    with memory_store(clock=SimulatedClock(7_000)) as ms:
        log = ms.log("copy")
        log.append(b"0")
        log.append_many([b"1", LARGE, b"3"])
        return ms.session.execute(r.SendBlocks("copy", 0, 99, 10**6))


PARCEL = origin()


def store_of(ms: Millstream) -> Store:
    return Probe(ms).store


def drop_bytes(ms: Millstream) -> None:
    store = store_of(ms)
    start, stop = keys.range_of(keys.prefix(keys.HEAD))
    for _ in range(3):
        heads = store.look(lambda state, snap: state.find(start, stop, snap, limit=99))
        for key in heads:
            while tend(store, keys.number(key)):
                pass


def asked(command: Any) -> Do:
    return lambda ms: ms.session.execute(command)


def forked(parent: str, name: str) -> Do:
    def do(ms: Millstream) -> None:
        if ms.log(name).info() is None:  # the outcome of an earlier try may have been unknown
            ms.log(parent).fork(name)

    return do


def appended(log: str, *values: bytes) -> Do:
    if len(values) == 1:
        return lambda ms: ms.log(log).append(values[0])
    return lambda ms: ms.log(log).append_many(values)


WORKLOAD: list[Do] = [
    appended("a", b"0", LARGE, b"2"),
    appended("a", b"3"),
    forked("a", "b"),
    appended("b", b"b4"),
    appended("b", LARGE, b"b6"),
    appended("a", b"a4"),
    lambda ms: ms.fold(),
    asked(r.SummarizeLog("a")),
    asked(r.SetAside("a", 4, 0)),
    lambda ms: ms.log("b").merge(),
    forked("b", "c"),
    appended("c", b"c7"),
    appended("b", b"b7"),
    lambda ms: ms.log("b").merge(),
    lambda ms: ms.fold(),
    lambda ms: ms.log("c").merge(on_fork="rebase"),
    asked(r.SetAside("c", 1, 0)),
    lambda ms: ms.log("a").truncate(before=5, past_end=True),
    drop_bytes,
    asked(r.StartReplica("copy", Mark(0, ZERO), "elsewhere", 2)),
    asked(r.AdoptParcel("copy", PARCEL, 0, 2)),
    lambda ms: ms.log("b").hand_over("elsewhere"),
    lambda ms: ms.log("copy").take_over(),
    appended("copy", b"4"),
    lambda ms: ms.fold(),
    lambda ms: ms.log("a").delete(),
    drop_bytes,
    lambda ms: ms.log(ASIDE).delete(),
    lambda ms: ms.log("b").truncate(before=7, past_end=True),
    drop_bytes,
    lambda ms: ms.fold(),
    drop_bytes,
]


def holdings(ms: Millstream) -> Model:
    """What a store holds, as readers see it."""
    found: Model = {}
    for info in ms.logs():
        log = ms.log(info.name)
        records = list(log.read())
        assert [one.offset for one in records] == [*range(info.start_offset, info.end_offset)]
        owner = log.owner()
        found[info.name] = (
            info.start_offset,
            [one.value for one in records],
            "" if owner.here else owner.store,
            owner.epoch,
        )
    return found


def open_over(engine: MemoryEngine) -> Millstream:
    """A store whose background thread never starts: every step is taken by the test."""
    store = open_store(engine, limits=LIMITS, clock=SimulatedClock())
    Probe(store).pause_keeper()
    return Millstream(EmbeddedSession(store))


def check_hashes(ms: Millstream) -> None:
    """What a store says of its logs' hashes is what their records give."""
    for info in ms.logs():
        found = ms.session.execute(r.SummarizeLog(info.name))
        assert found is not None
        chain = Chain(found.base)
        while chain.end < found.end:
            command = r.SendBlocks(info.name, chain.end, found.end, 10**6)
            for block in ms.session.execute(command).blocks:
                chain.extend(block)
        assert chain.digest() == found.digest


def rows_left(engine: MemoryEngine) -> Counter[int]:
    kinds = (
        *(keys.PAYLOAD, keys.PAYLOAD_BLOCK, keys.HEAD, keys.NAME),
        *(keys.FORK, keys.FORKS, keys.FORMER),
    )
    return Counter(key[1] for key, _ in engine.survivors() if key[1] in kinds)


@pytest.fixture
def models() -> list[Model]:
    """What a store holds before the first operation, and after each of them."""
    ms = open_over(MemoryEngine())
    found = [holdings(ms)]
    for do in WORKLOAD:
        do(ms)
        found.append(holdings(ms))
    return found


@pytest.fixture
def steps() -> list[str]:
    faults = Faults()
    ms = open_over(MemoryEngine(faults=faults))
    for do in WORKLOAD:
        do(ms)
    return faults.steps


def finish(ms: Millstream, *, done: int, models: list[Model]) -> None:
    for do in WORKLOAD[done:]:
        do(ms)
    drop_bytes(ms)
    ms.fold()
    assert holdings(ms) == models[-1]


def test_the_workload_does_what_it_should(models: list[Model]) -> None:
    assert models[9]["a"] == (0, [b"0", LARGE, b"2", b"3"], "", 0)
    assert models[9][ASIDE][1][4:] == [b"a4"]
    assert models[10]["a"] == models[10]["b"] == (0, [b"0", LARGE, b"2", b"3", b"b4", LARGE, b"b6"], "", 0)  # fmt: skip
    assert models[16]["b"][1][7:] == [b"b7", b"c7"]
    assert models[17]["c"][1] == [b"0"]
    assert models[21]["copy"] == (0, [b"0", b"1", LARGE, b"3"], "elsewhere", 2)
    assert models[24]["copy"] == (0, [b"0", b"1", LARGE, b"3", b"4"], "", 3)
    assert models[-1]["b"] == (7, [b"b7", b"c7"], "elsewhere", 1)
    assert "a" not in models[-1]


def crashes(steps: list[str]) -> Iterator[tuple[int, bool]]:
    for index, step in enumerate(steps):
        yield index, False
        if step == "sent":
            yield index, True


def test_whatever_step_it_is_stopped_at_forks_are_whole(
    models: list[Model], steps: list[str]
) -> None:
    untouched = MemoryEngine()
    finish(open_over(untouched), done=0, models=models)
    assert len(steps) > 300

    for index, kept in crashes(steps):
        faults = Faults()
        faults.at(index, Crash(kept=kept))
        engine = MemoryEngine(faults=faults)
        done = 0
        try:
            ms = open_over(engine)
            for done, do in enumerate(WORKLOAD):  # noqa: B007
                do(ms)
        except Crash:
            pass
        where = f"step {index} ({steps[index]}, kept={kept}), in operation {done}"
        again = engine.reopen()
        ms = open_over(again)
        held = holdings(ms)
        assert held in (models[done], models[done + 1]), where
        if held == models[done + 1] and held != models[done]:
            done += 1
        if index % 7 == 0:
            check_hashes(open_over(again.reopen()))
        if index % 3 == 0 or kept:  # every third, for the sake of time
            finish(ms, done=done, models=models)
            assert rows_left(again) == rows_left(untouched), where


def run_watched(
    faults: Faults, models: list[Model], failure: type[MillstreamError] | tuple[type, ...] = ()
) -> int:
    """Run the workload, looking at the store where it fails, and repeating that; how often."""
    engine = MemoryEngine(faults=faults)
    ms = open_over(engine)
    failed = 0
    for at, do in enumerate(WORKLOAD):
        where = f"operation {at}, {len(faults.steps)} steps"
        try:
            do(ms)
        except failure:
            failed += 1
            assert quietly(engine, ms) == models[at], f"something is left of {where}"
            do(ms)
            assert quietly(engine, ms) == models[at + 1], where
    assert holdings(open_over(engine.reopen())) == models[-1]
    return failed


def quietly(engine: MemoryEngine, ms: Millstream) -> Model:
    """What a store holds, asked without faults and without counting steps."""
    faults, engine.faults = engine.faults, None
    held = holdings(ms)
    engine.faults = faults
    return held


@pytest.mark.parametrize(
    ("names", "failure", "caught"),
    [
        (("begin", "put", "delete", "commit"), WriteFailed("the disk is full"), WriteFailed),
        (
            ("read", "get", "scan"),
            CorruptionError("a bit was read wrongly", what="row", where=0),
            (CorruptionError, StoreError),
        ),
    ],
    ids=["write", "read"],
)
def test_a_step_that_fails_once_harms_nothing(
    models: list[Model], names: tuple[str, ...], failure: Exception, caught: Any
) -> None:
    counted = Faults()
    run_watched(counted, models)
    made = counted.steps.index("committed") + 1
    failed = 0
    for index, step in enumerate(counted.steps):
        if step in names and index >= made and (index % 2 or step in ("commit", "put")):
            faults = Faults()
            faults.at(index, failure)
            failed += run_watched(faults, models, caught)
    assert failed > 50


# Merges of several commits.


@pytest.mark.parametrize("rule", ["refuse", "rebase", "longest"])
def test_a_merge_that_is_stopped_between_its_commits_is_finished_by_another_one(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each commit both logs are whole, and nothing is appended twice."""
    monkeypatch.setattr(transfer, "ENTRIES_PER_SLICE", 1)
    monkeypatch.setattr(fork, "REBASE_BYTES", 1)
    before = [b"0", b"1"]
    own = [b"b2", LARGE, b"b4", b"b5", b"b6"]
    parents = [] if rule == "refuse" else [b"a2"]
    final = before + (own if rule == "longest" else [*parents, *own])

    def prepare(engine: MemoryEngine) -> Millstream:
        ms = open_over(engine)
        ms.log("a").append_many(before)
        ms.log("a").fork("b")
        for value in (own[:1], own[1:3], own[3:4], own[4:]):
            ms.log("b").append_many(value)
        for value in parents:
            ms.log("a").append(value)
        return ms

    counted = MemoryEngine()
    ms = prepare(counted)
    faults = counted.faults = Faults()
    ms.log("b").merge(on_fork=rule)
    assert faults.steps.count("committed") >= 4

    for index, step in enumerate(faults.steps):
        engine = MemoryEngine()
        ms = prepare(engine)
        engine.faults = Faults()
        engine.faults.at(index, Crash(kept=step == "sent"))
        with pytest.raises(Crash):
            ms.log("b").merge(on_fork=rule)
        ms = open_over(engine.reopen())
        held = holdings(ms)
        assert held["b"][1] == before + own
        assert held["a"][1] in (before + parents, *(final[:n] for n in range(2, len(final) + 1)))
        ms.log("b").merge(on_fork=rule)
        held = holdings(ms)
        assert (held["a"][1], held["b"][1]) == (final, before + own)
        aside = [name for name in held if name not in ("a", "b")]
        assert [held[name][1] for name in aside] == [before + parents] * (rule == "longest")
        check_hashes(ms)


# Readers of a log that is set aside.


def readings(ms: Millstream) -> list[Any]:
    """What the readers of the log "a" and of a room see, without what depends on the log's id."""
    queue, cursor = ms.queue("q"), ms.log("a").cursors()[0]
    info = queue.info()
    return [
        sorted((one.log, one.offset, one.value) for one in queue.peek(9, state="done")),
        (info.available, info.in_flight, info.done, info.set_back, info.withdrawn),
        (cursor.floor, cursor.ranges, cursor.set_back),
        dict(ms.log("a").metadata),
        [one.json() for one in ms.room("r").retained().values],
    ]


def test_whatever_step_setting_aside_is_stopped_at_all_readers_moved_or_none() -> None:
    def prepare(engine: MemoryEngine) -> Millstream:
        ms = open_over(engine)
        log = ms.log("a")
        log.append_many([b"0", LARGE, b"2", b"3"])
        log.metadata["k"] = 1
        cursor, queue = log.cursor("c"), ms.queue("q", sources=["a"], start="earliest")
        cursor.ack([0, 2])
        queue.ack([one for one in queue.claim(4) if one.offset in (0, 3)])
        ms.room("r").specify(retained=("t",))
        ms.room("r").send("t", 1)
        return ms

    def set_aside(ms: Millstream) -> None:
        ms.session.execute(r.SetAside("a", 2, 0))
        ms.session.execute(r.SetAside("room:r", 0, 0))

    counted = MemoryEngine()
    ms = prepare(counted)
    faults = counted.faults = Faults()
    before, ids = readings(ms), [ms.log(name).extent().id for name in ("a", "room:r")]
    faults.steps.clear()
    set_aside(ms)
    steps, after = list(faults.steps), readings(ms)
    assert after != before

    for index, kept in crashes(steps):
        engine = MemoryEngine()
        ms = prepare(engine)
        engine.faults = Faults()
        engine.faults.at(index, Crash(kept=kept))
        with pytest.raises(Crash):
            set_aside(ms)
        ms = open_over(engine.reopen())
        moved = ms.log("a").extent().id != ids[0]
        assert readings(ms) == (after if moved else before), index
        assert ms.log("a").extent(ids[0]).equal_below == (2 if moved else None)
        if not moved:
            ms.session.execute(r.SetAside("a", 2, 0))
        if ms.log("room:r").extent().id == ids[1]:
            ms.session.execute(r.SetAside("room:r", 0, 0))
        assert readings(ms) == after, index
        check_hashes(ms)
