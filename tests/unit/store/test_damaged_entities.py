"""Promise: a record that cannot be read hits its own log or queue, also if the newest commits change it.

The store opens and folds, everything else goes on, and what the damage hit never comes back as
something older.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import millstream
from millstream import Millstream
from millstream.doctor import examine
from millstream.engine.commit import Commit
from millstream.engine.memory.engine import MemoryEngine
from millstream.engine.protocol import Ability
from millstream.errors import CorruptionError, MillstreamError
from millstream.format import keys
from millstream.testing import Probe, memory_store

Ask = Callable[[Millstream], object]


def of_log(probe: Probe) -> bytes:
    return keys.head(probe.store.seen(keys.log_name("hit")))


def of_name(_: Probe) -> bytes:
    return keys.log_name("hit")


def of_queue(_: Probe) -> bytes:
    return keys.queue("hit")


def of_bucket(probe: Probe) -> bytes:
    (key,) = probe.rows(keys.BUCKET)
    return key


LOG_ASKS: list[Ask] = [
    lambda ms: ms.log("hit").append(b"v"),
    lambda ms: list(ms.log("hit").read()),
    lambda ms: ms.log("hit").end_offset(),
]
QUEUE_ASKS: list[Ask] = [lambda ms: ms.queue("hit").claim(1)]


def make(path: Path, find: Callable[[Probe], bytes]) -> bytes:
    """A store whose unfolded commits change what `find` names, and whose record of it is damaged."""
    with millstream.open(path) as ms:
        probe = Probe(ms)
        probe.pause_keeper()
        for name in ("hit", "well"):
            ms.log(name).append(b"one")
            ms.create_queue(name, sources=[f"jobs of {name}"])
        ms.log("jobs of hit").append_many([b"one", b"two", b"three"])
        assert ms.queue("hit").claim(1)
        ms.log("well").append(b"two")
        ms.fold()
        key = find(probe)
        ms.log("hit").append(b"two")
        assert ms.queue("hit").claim(1)
        if key == keys.log_name("hit"):
            assert ms.log("hit").delete()
        ms.log("well").append(b"three")
        probe.damage(key)
    return key


@contextmanager
def opened(path: Path) -> Iterator[Millstream]:
    with millstream.open(path) as ms:
        Probe(ms).pause_keeper()
        yield ms


def told(ms: Millstream, ask: Ask) -> MillstreamError:
    with pytest.raises(CorruptionError) as refused:
        ask(ms)
    return refused.value


CASES = pytest.mark.parametrize(
    ("find", "asks"),
    [(of_log, LOG_ASKS), (of_name, LOG_ASKS), (of_queue, QUEUE_ASKS), (of_bucket, QUEUE_ASKS)],
)


@CASES
def test_a_damaged_record_hits_its_own_log_or_queue_alone(
    tmp_path: Path, find: Callable[[Probe], bytes], asks: list[Ask]
) -> None:
    path = tmp_path / "file.db"
    make(path, find)
    with opened(path) as ms:
        for ask in asks:
            assert "'hit'" in str(told(ms, ask))
        assert [record.value for record in ms.log("well").read()] == [b"one", b"two", b"three"]
        assert ms.log("well").append(b"four") == 3
        ms.log("jobs of well").append(b"work")
        (message,) = ms.queue("well").claim(1)
        ms.queue("well").ack(message)


@CASES
def test_a_fold_passes_a_damaged_record_and_does_not_bring_back_what_is_older(
    tmp_path: Path, find: Callable[[Probe], bytes], asks: list[Ask]
) -> None:
    path = tmp_path / "file.db"
    make(path, find)
    with opened(path) as ms:
        ms.log("well").append(b"four")
        ms.fold()
        assert ms.stats()["unfolded_commits"] == 1
        for ask in asks:
            assert "'hit'" in str(told(ms, ask))
    with opened(path) as ms:
        for ask in asks:
            assert "'hit'" in str(told(ms, ask))
        assert ms.log("well").end_offset() == 4


@pytest.mark.parametrize(
    ("find", "says"), [(of_queue, "the queue 'hit' is damaged"), (of_log, "log 'hit' is lost")]
)
def test_the_doctor_names_it_before_and_after_the_fold(
    tmp_path: Path, find: Callable[[Probe], bytes], says: str
) -> None:
    path = tmp_path / "file.db"
    make(path, find)
    assert says in "\n".join(problem.message for problem in examine(path).problems)
    with opened(path) as ms:
        ms.log("well").append(b"four")
        ms.fold()
    found = "\n".join(problem.message for problem in examine(path).problems)
    assert says in found
    assert "put back a copy of the store" in found


def test_a_handle_that_is_open_goes_on_when_another_process_changes_what_it_cannot_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file.db"
    with opened(path) as ms, opened(path) as other:
        ms.log("hit").append(b"one")
        ms.log("well").append(b"one")
        ms.fold()
        with opened(path) as late:  # it has read neither of them yet
            Probe(ms).damage(of_log(Probe(ms)))
            ms.log("hit").append(b"two")  # which it still knows
            ms.log("well").append(b"two")
            assert "'hit'" in str(told(late, LOG_ASKS[0]))
            assert late.log("well").append(b"three") == 2
        assert other.log("well").end_offset() == 3


def test_what_a_handle_still_knows_mends_the_record(tmp_path: Path) -> None:
    path = tmp_path / "file.db"
    with opened(path) as ms:
        ms.log("hit").append(b"one")
        ms.log("well").append(b"one")
        ms.fold()
        ms.log("hit").append(b"two")
        Probe(ms).damage(of_log(Probe(ms)))
        with opened(path) as late:
            assert "'hit'" in str(told(late, LOG_ASKS[0]))
            ms.log("well").append(b"two")
            ms.fold()
            late.log("well").append(b"three")
            assert late.log("hit").append(b"three") == 2


def test_a_record_that_vanished_as_lost_is_refused_by_its_kind(tmp_path: Path) -> None:
    """The note begins with a byte that no record does: older versions take it for damage, too."""
    path = tmp_path / "file.db"
    with opened(path) as ms:
        ms.log("hit").append(b"one")
        ms.log("well").append(b"one")
        ms.fold()
        key = of_log(Probe(ms))
        with Probe(ms).store.engine.write() as writer:
            writer.commit(Commit([(key, b"\xc1" + (7).to_bytes(8, "big"))]))
    with opened(path) as ms:
        assert "up to commit 7" in str(told(ms, LOG_ASKS[0]))


class Replicated(MemoryEngine):
    """As on the node of a cluster: what it commits, the others write too."""

    abilities: frozenset[Ability] = frozenset({"replicated"})


def test_a_node_does_not_fold_its_damage_into_the_rows_of_others() -> None:
    engine = Replicated()
    with memory_store(engine) as ms:
        Probe(ms).pause_keeper()
        ms.log("hit").append(b"one")
        ms.log("well").append(b"one")
        ms.fold()
        key = of_log(Probe(ms))
        ms.log("hit").append(b"two")
    engine = engine.reopen()
    engine.corrupt(key)
    with memory_store(engine) as ms:
        Probe(ms).pause_keeper()
        assert ms.log("well").append(b"two") == 1
        with pytest.raises(CorruptionError, match="the head of log"):
            ms.fold()
        assert ms.log("well").append(b"three") == 2
