"""What every shared log does, whoever keeps it: JetStream, or the simulated one of the tests."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from millstream.cluster.shared_log import (
    Gone,
    Held,
    Overtaken,
    SharedLog,
    Stored,
    Unreachable,
    Unsure,
)
from tests.conformance.nats_kit import Servers, three_servers
from tests.kit.shared_log import SimulatedLog

WITHIN_S = 30.0
"""Long: a loaded machine is slow, and no test waits for it to pass."""
MANY = 1 << 20

Opens = Callable[[], SharedLog]
"""Opens one more handle on the same log, which is new."""
_names = itertools.count(1)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with three_servers(tmp_path_factory.mktemp("nats")) as started:
        yield started


@pytest.fixture(params=["simulated", pytest.param("jetstream", marks=pytest.mark.requires("nats"))])
def opens(request: pytest.FixtureRequest) -> Iterator[Opens]:
    opened: list[SharedLog] = []
    if request.param == "simulated":
        make: Opens = SimulatedLog().door
    else:
        make = _jetstream(request.getfixturevalue("servers"))

    def one_more() -> SharedLog:
        opened.append(make())
        return opened[-1]

    yield one_more
    for log in opened:
        log.close()


def _jetstream(servers: Servers) -> Opens:
    from millstream.cluster.nats.jetstream import JetStreamLog

    cluster = f"c{next(_names)}"
    turns = itertools.cycle(range(3))

    def make() -> SharedLog:
        log = JetStreamLog(servers.line(next(turns)), cluster)
        log.found(timeout_s=WITHIN_S)
        return log

    return make


@pytest.fixture
def log(opens: Opens) -> SharedLog:
    return opens()


def read_all(log: SharedLog, after: int = 0, *, count: int) -> list[Stored]:
    found: list[Stored] = []
    while len(found) < count:
        found += log.read(after + len(found), bytes_max=MANY, timeout_s=WITHIN_S)
    return found


def outcome_of(log: SharedLog, after: int) -> str:
    try:
        assert log.append(b"mine", after=after, timeout_s=WITHIN_S) == after + 1
        return "stored"
    except (Overtaken, Unsure, Unreachable) as error:
        return repr(error)


def test_a_new_log_is_empty(log: SharedLog) -> None:
    assert log.held(timeout_s=WITHIN_S) == Held(1, 0)
    assert log.read(0, bytes_max=MANY, timeout_s=0.05) == []


def test_one_entry_is_asked_for_by_its_sequence(log: SharedLog) -> None:
    for number in range(3):
        log.append(b"%d" % number, after=number, timeout_s=WITHIN_S)
    log.trim(2, timeout_s=WITHIN_S)
    found = [log.entry(sequence, timeout_s=WITHIN_S) for sequence in range(1, 5)]
    assert found == [None, b"1", b"2", None]
    assert log.begun_behind(timeout_s=WITHIN_S) == b""


def test_entries_have_sequences_from_one_on_and_are_read_in_order(log: SharedLog) -> None:
    entries = [b"one", b"", bytes(range(256)), b"four" * 1000]
    for number, entry in enumerate(entries):
        assert log.append(entry, after=number, timeout_s=WITHIN_S) == number + 1
    assert read_all(log, count=4) == [Stored(n, e) for n, e in enumerate(entries, 1)]
    assert [one.sequence for one in read_all(log, 2, count=2)] == [3, 4]
    assert log.held(timeout_s=WITHIN_S) == Held(1, 4)


@pytest.mark.parametrize("after", [0, 1, 3, 100])
def test_an_append_that_expects_another_end_stores_nothing(log: SharedLog, after: int) -> None:
    log.append(b"one", after=0, timeout_s=WITHIN_S)
    log.append(b"two", after=1, timeout_s=WITHIN_S)
    with pytest.raises(Overtaken):
        log.append(b"late", after=after, timeout_s=WITHIN_S)
    assert log.append(b"three", after=2, timeout_s=WITHIN_S) == 3
    assert [one.data for one in read_all(log, count=3)] == [b"one", b"two", b"three"]


def test_of_appends_at_the_same_place_one_is_stored(opens: Opens) -> None:
    logs = [opens() for _ in range(3)]
    for place in range(5):
        with ThreadPoolExecutor(len(logs)) as pool:
            outcomes = list(pool.map(lambda one, place=place: outcome_of(one, place), logs))
        assert outcomes.count("stored") == 1, outcomes
    assert logs[0].held(timeout_s=WITHIN_S) == Held(1, 5)


def test_a_read_waits_for_what_another_handle_appends(opens: Opens) -> None:
    reader, writer = opens(), opens()
    heard: list[Stored] = []
    thread = threading.Thread(target=lambda: heard.extend(read_all(reader, count=3)))
    thread.start()
    for number in range(3):
        writer.append(b"%d" % number, after=number, timeout_s=WITHIN_S)
    thread.join()
    assert [one.data for one in heard] == [b"0", b"1", b"2"]


def test_a_read_is_bounded_by_bytes_and_gives_at_least_one_entry(log: SharedLog) -> None:
    for number in range(6):
        log.append(b"x" * 1000, after=number, timeout_s=WITHIN_S)
    assert read_all(log, count=6)
    few = log.read(0, bytes_max=2_500, timeout_s=WITHIN_S)
    assert 1 <= len(few) <= 4
    assert len(log.read(0, bytes_max=1, timeout_s=WITHIN_S)) == 1


def test_the_largest_entry_is_taken_and_a_larger_one_is_not(log: SharedLog) -> None:
    largest = b"x" * log.entry_bytes_max
    log.append(largest, after=0, timeout_s=WITHIN_S)
    assert read_all(log, count=1) == [Stored(1, largest)]
    with pytest.raises(ValueError, match="at most"):
        log.append(largest + b"x", after=1, timeout_s=WITHIN_S)


def test_what_was_trimmed_is_gone_and_the_rest_is_there(log: SharedLog) -> None:
    for number in range(5):
        log.append(b"%d" % number, after=number, timeout_s=WITHIN_S)
    log.trim(3, timeout_s=WITHIN_S)
    log.trim(3, timeout_s=WITHIN_S)
    log.trim(1, timeout_s=WITHIN_S)
    assert log.held(timeout_s=WITHIN_S) == Held(3, 5)
    assert [one.sequence for one in read_all(log, 2, count=3)] == [3, 4, 5]
    with pytest.raises(Gone):
        log.read(1, bytes_max=MANY, timeout_s=WITHIN_S)
    assert log.append(b"5", after=5, timeout_s=WITHIN_S) == 6


def test_a_log_that_is_shorter_than_what_was_read_is_gone(log: SharedLog) -> None:
    log.append(b"one", after=0, timeout_s=WITHIN_S)
    with pytest.raises(Gone):
        log.read(7, bytes_max=MANY, timeout_s=WITHIN_S)


def test_a_closed_log_reaches_nothing(opens: Opens) -> None:
    log = opens()
    log.append(b"one", after=0, timeout_s=WITHIN_S)
    waiting = opens()
    outcome: list[object] = []

    def read() -> None:
        try:
            outcome.append(waiting.read(1, bytes_max=MANY, timeout_s=WITHIN_S))
        except Unreachable as error:
            outcome.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    waiting.close()
    thread.join()
    assert isinstance(outcome[0], Unreachable)
    with pytest.raises(Unreachable):
        waiting.append(b"two", after=1, timeout_s=WITHIN_S)
    with pytest.raises(Unreachable):
        waiting.held(timeout_s=WITHIN_S)
    assert log.append(b"two", after=1, timeout_s=WITHIN_S) == 2
