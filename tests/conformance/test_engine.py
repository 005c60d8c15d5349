"""One suite for the Engine protocol: what holds for every engine, asked of each of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import pytest

from millstream.engine.commit import Commit, Row, Spool, SpooledRows, Value
from millstream.engine.protocol import Ability, Engine, WouldWait
from millstream.errors import Closed, CorruptionError
from millstream.format import keys
from millstream.testing.probe import corrupt
from tests.conformance.kits import ENGINES, EVERY_ENGINE, EngineKit

MiB = 1024 * 1024

NUMBERED = {
    "payload": keys.payload,
    "payload block": keys.payload_block,
    "delta": keys.delta,
}
RECORDS: dict[str, Callable[[int], bytes]] = {
    "log entry": lambda n: keys.entry(7, n),
    "log name": lambda n: keys.log_name(f"{n:08}"),
    "log head": keys.head,
    "log metadata": keys.metadata,
    "cursor": lambda n: keys.cursor(7, f"{n:08}"),
    "producer": lambda n: keys.producer(7, f"{n:08}"),
}
EVERY_TYPE = pytest.mark.parametrize(
    "key", [*NUMBERED.values(), *RECORDS.values()], ids=[*NUMBERED, *RECORDS]
)


@pytest.fixture(params=EVERY_ENGINE)
def kit(request: pytest.FixtureRequest) -> EngineKit:
    return ENGINES[request.param]


@pytest.fixture
def engine(kit: EngineKit, tmp_path: Path) -> Iterator[Engine]:
    made = kit.make(tmp_path)
    yield made
    made.close()


def write(engine: Engine, *rows: Row) -> None:
    with engine.write() as writer:
        writer.commit(Commit(rows))


def read(engine: Engine, key: bytes) -> bytes | None:
    with engine.read() as snapshot:
        return snapshot.get(key)


def scan(engine: Engine, start: bytes, stop: bytes, **options: Any) -> list[bytes]:
    with engine.read() as snapshot:
        return [key for key, _ in snapshot.scan(start, stop, **{"limit": 100, **options})]


# Reading and writing.


@EVERY_TYPE
def test_a_row_is_read_back_overwritten_and_deleted(
    engine: Engine, key: Callable[[int], bytes]
) -> None:
    assert read(engine, key(1)) is None

    write(engine, (key(1), b"first"), (key(2), b"other"))
    assert read(engine, key(1)) == b"first"

    write(engine, (key(1), b"second"))
    assert read(engine, key(1)) == b"second"

    with engine.write() as writer:
        writer.commit(Commit(deletes=[key(1), key(99)]))
    assert read(engine, key(1)) is None
    assert read(engine, key(2)) == b"other"


@pytest.mark.parametrize("key", [keys.payload(1), keys.payload_block(1), keys.entry(1, 1)])
@pytest.mark.parametrize(
    "value", [b"", b"\x00", bytes(range(256)), b"\xff" * MiB], ids=["empty", "nul", "all", "1 MiB"]
)
def test_any_bytes_come_back_as_they_were(engine: Engine, key: bytes, value: bytes) -> None:
    write(engine, (key, value))
    assert read(engine, key) == value
    assert scan(engine, key[:2], keys.after(key[:2])) == [key]


def test_a_key_without_anything_behind_its_prefix_is_a_key(engine: Engine) -> None:
    write(engine, (keys.STORE_KEY, b"store"), (keys.ID_BLOCK_KEY, b"ids"))
    assert read(engine, keys.STORE_KEY) == b"store"
    assert scan(engine, keys.ID_BLOCK_KEY, keys.STORE_KEY) == [keys.ID_BLOCK_KEY]


def test_types_with_the_same_number_are_different_rows(engine: Engine) -> None:
    write(engine, *[(key(5), name.encode()) for name, key in (NUMBERED | RECORDS).items()])
    for name, key in (NUMBERED | RECORDS).items():
        assert read(engine, key(5)) == name.encode()


@pytest.mark.parametrize("key", NUMBERED.values(), ids=NUMBERED)
def test_the_largest_number_that_a_message_id_can_have_is_a_key(
    engine: Engine, key: Callable[[int], bytes]
) -> None:
    write(engine, (key(2**63 - 1), b"last"))
    assert read(engine, key(2**63 - 1)) == b"last"
    assert scan(engine, key(0), keys.after(key(0)[:2])) == [key(2**63 - 1)]


# Ranges.


@EVERY_TYPE
def test_a_scan_is_half_open_ordered_and_limited(
    engine: Engine, key: Callable[[int], bytes]
) -> None:
    write(engine, *[(key(n), b"%d" % n) for n in (1000, 3, 255, 1, 256, 2)])
    every = [key(n) for n in (1, 2, 3, 255, 256, 1000)]

    assert scan(engine, key(0), key(2000)) == every
    assert scan(engine, key(2), key(256)) == [key(2), key(3), key(255)]
    assert scan(engine, key(4), key(255)) == []
    assert scan(engine, key(3), key(3)) == []
    assert scan(engine, key(0), key(2000), limit=2) == every[:2]
    assert scan(engine, key(0), key(2000), limit=0) == []
    with engine.read() as snapshot:
        assert snapshot.scan(key(2), key(4), limit=9) == [(key(2), b"2"), (key(3), b"3")]


@EVERY_TYPE
def test_a_scan_up_to_the_next_type_takes_all_of_one_type_and_nothing_else(
    engine: Engine, key: Callable[[int], bytes]
) -> None:
    others = [other(1) for other in (NUMBERED | RECORDS).values() if other(1) != key(1)]
    write(engine, *[(k, b"") for k in (*others, key(1), key(2), key(300))])
    first, stop = keys.range_of(key(1)[:2])

    assert scan(engine, first, stop) == [key(1), key(2), key(300)]
    assert scan(engine, key(2), stop) == [key(2), key(300)]


@EVERY_TYPE
def test_a_range_is_deleted_half_open(engine: Engine, key: Callable[[int], bytes]) -> None:
    write(engine, *[(key(n), b"") for n in (1, 2, 3, 4, 500)])
    with engine.write() as writer:
        writer.commit(Commit(ranges=[(key(2), key(4))]))
    assert scan(engine, key(0), key(1000)) == [key(1), key(4), key(500)]


def test_a_range_of_one_log_leaves_its_neighbours_alone(engine: Engine) -> None:
    write(engine, *[(keys.entry(log, n), b"") for log in (6, 7, 8) for n in (0, 1)])
    with engine.write() as writer:
        writer.commit(Commit(ranges=[keys.range_of(keys.entry(7, 0)[:10])]))
    kept = [keys.entry(log, n) for log in (6, 8) for n in (0, 1)]
    assert scan(engine, *keys.range_of(keys.prefix(keys.ENTRY))) == kept


# Transactions.


def test_a_commit_drops_first_and_puts_then(engine: Engine) -> None:
    write(engine, *[(keys.entry(1, n), b"old") for n in range(6)], (keys.payload(1), b"old"))
    commit = Commit(
        [(keys.entry(1, 1), b"new"), (keys.entry(1, 3), b"new"), (keys.payload(1), b"new")],
        deletes=[keys.payload(1), keys.entry(1, 0), keys.entry(9, 9)],
        ranges=[(keys.entry(1, 2), keys.entry(1, 5)), (keys.delta(0), keys.delta(9))],
    )
    with engine.write() as writer:
        writer.commit(commit)

    with engine.read() as snapshot:
        found = snapshot.scan(*keys.range_of(keys.prefix(keys.ENTRY)), limit=99)
        assert snapshot.get(keys.payload(1)) == b"new"
    assert found == [
        (keys.entry(1, 1), b"new"),
        (keys.entry(1, 3), b"new"),
        (keys.entry(1, 5), b"old"),
    ]


def test_a_commit_is_seen_by_others_once_it_is_made(engine: Engine) -> None:
    write(engine, (keys.payload(1), b"old"), (keys.delta(4), b""))
    with engine.write() as writer:
        assert (writer.get(keys.payload(1)), writer.last_seq()) == (b"old", 4)
        assert (read(engine, keys.payload(1)), engine.last_seq()) == (b"old", 4)
        writer.commit(Commit([(keys.payload(1), b"new"), (keys.delta(5), b"")]))
    assert (read(engine, keys.payload(1)), engine.last_seq()) == (b"new", 5)
    with engine.write() as writer:
        assert (writer.get(keys.payload(1)), writer.last_seq()) == (b"new", 5)


def test_leaving_without_a_commit_changes_nothing(engine: Engine) -> None:
    write(engine, (keys.payload(1), b"old"))
    with engine.write():
        pass
    with suppress(ZeroDivisionError), engine.write():
        raise ZeroDivisionError
    assert read(engine, keys.payload(1)) == b"old"
    write(engine, (keys.payload(3), b"the next writer gets its turn"))


def test_a_turn_is_waited_for_only_by_a_writer_that_waits(kit: EngineKit, engine: Engine) -> None:
    other = kit.reopen(engine) if engine.shared else engine
    with engine.write(), pytest.raises(WouldWait), other.write(waits=False):
        pass
    with other.write(waits=False) as writer:
        writer.commit(Commit([(keys.delta(1), b"x")]))
    with engine.write() as writer:
        assert writer.last_seq() == 1
    other.close()


def test_a_commit_larger_than_is_held_in_memory_is_one_commit(
    engine: Engine, tmp_path: Path
) -> None:
    spool = Spool(tmp_path)
    values = {keys.payload_block(n): bytes([n]) * MiB for n in range(12)}
    held: dict[bytes, Value] = {key: spool.add(value) for key, value in values.items()}
    commit = Commit(SpooledRows({**held, keys.delta(1): b"delta"}))
    assert list(commit.rows) == list(commit.rows)  # it can be read again
    with engine.write() as writer:
        writer.commit(commit)
    for key, value in values.items():
        assert read(engine, key) == value
    assert engine.last_seq() == 1


@EVERY_TYPE
def test_a_scan_may_begin_and_end_between_keys(engine: Engine, key: Callable[[int], bytes]) -> None:
    write(engine, *[(key(n), b"") for n in (1, 2, 3, 4)])
    assert scan(engine, key(1) + b"\x00", key(3) + b"\x00") == [key(2), key(3)]


def test_a_snapshot_stays_as_it_was_while_others_commit(engine: Engine) -> None:
    write(engine, (keys.payload(1), b"old"), (keys.payload(2), b"old"), (keys.delta(1), b""))
    with engine.read() as snapshot:
        assert snapshot.last_seq() == 1
        with engine.write() as writer:
            rows = [(keys.payload(1), b"new"), (keys.payload(3), b"new"), (keys.delta(2), b"")]
            writer.commit(Commit(rows, deletes=[keys.payload(2)]))
        write(engine, (keys.payload(4), b"newer"))

        assert snapshot.get(keys.payload(1)) == b"old"
        assert snapshot.get(keys.payload(2)) == b"old"
        assert snapshot.get(keys.payload(3)) is None
        assert snapshot.last_seq() == 1
        found = snapshot.scan(keys.payload(0), keys.payload(9), limit=9)
        assert found == [(keys.payload(1), b"old"), (keys.payload(2), b"old")]
    assert read(engine, keys.payload(1)) == b"new"


def test_snapshots_of_different_ages_live_side_by_side(engine: Engine) -> None:
    write(engine, (keys.head(1), b"one"))
    with engine.read() as first:
        assert first.get(keys.head(1)) == b"one"
        write(engine, (keys.head(1), b"two"))
        with engine.read() as second:
            assert second.get(keys.head(1)) == b"two"
            write(engine, (keys.head(1), b"three"))
            assert (first.get(keys.head(1)), second.get(keys.head(1))) == (b"one", b"two")
        assert first.get(keys.head(1)) == b"one"
    assert read(engine, keys.head(1)) == b"three"


def test_sequences_are_those_of_the_deltas_that_are_there(engine: Engine) -> None:
    with engine.read() as snapshot:
        assert snapshot.last_seq() == 0
    assert engine.last_seq() == 0

    write(engine, *[(keys.delta(n), b"") for n in range(1, 301)], (keys.payload(999), b""))
    with engine.write() as writer:
        assert writer.last_seq() == 300
        writer.commit(Commit(ranges=[(keys.delta(0), keys.delta(257))]))
    with engine.write() as writer:
        assert writer.last_seq() == 300

    with engine.read() as snapshot:
        assert snapshot.last_seq() == 300
    assert engine.last_seq() == 300


def test_readers_beside_a_writer_see_whole_commits_only(engine: Engine) -> None:
    rounds, wrong = 60, []
    halves = (keys.payload(1), keys.entry(1, 1))
    write(engine, *[(key, b"0") for key in halves])
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            with engine.read() as snapshot:
                seen = {snapshot.get(key) for key in halves}
                if len(seen) != 1:
                    wrong.append(seen)

    readers = [threading.Thread(target=look) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(rounds):
        write(engine, *[(key, b"%d" % number) for key in halves])
    done.set()
    for reader in readers:
        reader.join()
    assert not wrong


# Damage.


@EVERY_TYPE
def test_a_flipped_bit_is_noticed_by_every_read_and_named(
    engine: Engine, key: Callable[[int], bytes]
) -> None:
    write(engine, (key(1), b"sound"), (key(2), b"will be damaged"))
    corrupt(engine, key(2))

    with pytest.raises(CorruptionError) as noticed:
        read(engine, key(2))
    assert noticed.value.where == key(2).hex()
    with pytest.raises(CorruptionError):
        scan(engine, key(0), key(9))
    with engine.write() as writer:
        with pytest.raises(CorruptionError):
            writer.get(key(2))
        writer.commit(Commit([(key(2), b"mended")]))
    assert read(engine, key(1)) == b"sound"
    assert read(engine, key(2)) == b"mended"


# Others, upkeep, and what not every engine can do.


def test_another_writer_is_noticed(kit: EngineKit, engine: Engine, tmp_path: Path) -> None:
    """Also by an engine that knows of no other process: whoever asks hears of every commit."""
    write(engine, (keys.delta(1), b""))
    stop = threading.Event()
    assert engine.await_change(0, stop)
    assert not engine.await_change(1, stop)  # after a while
    told: list[bool] = []
    waiting = threading.Thread(target=lambda: told.append(until_change(engine, 1, stop)))
    waiting.start()
    write(engine, (keys.delta(2), b""))
    waiting.join()
    assert told == [True]
    stop.set()
    assert not engine.await_change(2, stop)


def until_change(engine: Engine, seen: int, stop: threading.Event) -> bool:
    while not stop.is_set():
        if engine.await_change(seen, stop):
            return True
    return False


def test_upkeep_changes_no_row(engine: Engine) -> None:
    write(engine, (keys.payload(1), b"x" * MiB))
    engine.upkeep(threading.Lock())
    assert read(engine, keys.payload(1)) == b"x" * MiB


def test_an_engine_can_do_what_it_declares(engine: Engine) -> None:
    assert engine.abilities <= set(get_args(Ability))
    with engine.write() as writer:
        assert hasattr(writer, "sql") == hasattr(writer, "savepoint") == ("sql" in engine.abilities)
        assert hasattr(writer, "record_changes") == ("changesets" in engine.abilities)
        assert hasattr(writer, "apply_changes") == ("changesets" in engine.abilities)
    assert hasattr(engine, "exchange") == ("exchange" in engine.abilities)
    assert hasattr(engine, "pages") == hasattr(engine, "verify") == ("pages" in engine.abilities)
    assert hasattr(engine, "pace_s") == ("paced" in engine.abilities)
    assert hasattr(engine, "scrub_stages") == ("scrub" in engine.abilities)
    assert hasattr(engine, "suspend") == hasattr(engine, "resume") == ("forks" in engine.abilities)


def test_a_folder_for_scratch_files_is_there_if_it_is_named(engine: Engine) -> None:
    folder = engine.folder()
    assert folder is None or folder.is_dir()
    assert engine.place


# The end.


def test_a_closed_engine_refuses_use_and_may_be_closed_again(engine: Engine) -> None:
    write(engine, (keys.payload(1), b"x"))
    engine.close()
    engine.close()
    with pytest.raises(Closed), engine.read():
        pass
    with pytest.raises(Closed), engine.write():
        pass
    with pytest.raises(Closed):
        engine.last_seq()


def test_an_engine_says_what_it_is(engine: Engine) -> None:
    facts = engine.describe()
    assert facts["engine"] in ENGINES
    assert facts["durability"] == engine.durability == "full"


def test_what_was_committed_is_there_when_it_is_opened_again(
    kit: EngineKit, engine: Engine
) -> None:
    write(engine, (keys.payload(1), b"kept"), (keys.entry(1, 1), b"kept"))
    with engine.write():
        pass  # the turn was taken, and nothing committed
    engine.close()

    again = kit.reopen(engine)
    assert read(again, keys.payload(1)) == b"kept"
    assert read(again, keys.entry(1, 1)) == b"kept"
    again.close()
