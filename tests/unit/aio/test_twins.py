"""What nouns of threads and of coroutines do alike: each test runs on both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.errors import (
    CannotOpen,
    InvalidInput,
    InvalidName,
    MetadataConflict,
    NotFound,
)
from millstream.log import commands as c
from millstream.testing import memory_store
from tests.unit.surfaces import SURFACES, Surface, bare, surface_of

pytestmark = pytest.mark.embedded


@pytest.fixture(params=SURFACES)
def surface(request: pytest.FixtureRequest) -> Iterator[Surface]:
    with surface_of(request.param) as found:
        yield found


@pytest.fixture
def ms(surface: Surface) -> Iterator[Any]:
    """A store in memory, as this surface sees it."""
    with memory_store() as store:
        yield surface.over(store.session)


# Logs.


def test_a_log_is_counted_and_true_even_if_it_is_empty(ms: Any) -> None:
    log = ms.log("x")
    assert bool(bare(log)) is True
    assert len(log) == 0
    log.append_many([b"0", b"1"])
    log.truncate(before=1)
    assert len(log) == 1


def test_records_are_read_in_the_same_order_by_block_and_one_by_one(ms: Any) -> None:
    log = ms.log("x")
    for batch in range(3):
        log.append_many([b"%d" % n for n in range(batch * 2, batch * 2 + 2)])
    assert [one.value for one in log.read()] == [b"%d" % n for n in range(6)]
    assert [one.offset for one in log.read(1, 4)] == [1, 2, 3]
    blocks = list(log.read_blocks(1, 4))
    assert [one.offset for block in blocks for one in block.records()] == [1, 2, 3]
    assert (log.first().offset, log.last().offset) == (0, 5)


def test_nouns_say_what_they_are(ms: Any) -> None:
    log = ms.log("x")
    assert [repr(one) for one in (log, ms.queue("q"), log.cursor("c"))] == [
        "Log('x')",
        "Queue('q')",
        "Cursor('x', 'c')",
    ]


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 300])
def test_names_are_checked_before_anything_is_asked(ms: Any, name: str) -> None:
    log = ms.log("x")
    for ask in (ms.log, ms.queue, log.cursor, log.delete_cursor, log.fork, log.hand_over):
        with pytest.raises(InvalidName):
            ask(name)
    assert list(ms.logs()) == []


@pytest.mark.parametrize("section", [0, -1, 2.5, "3"])
def test_sections_are_checked_before_a_log_is_taken(ms: Any, section: Any) -> None:
    for ask in (ms.log("x").stage, lambda **given: ms.log("x").cursor("c", **given)):
        with pytest.raises(InvalidInput, match="section"):
            ask(section=section)
    assert list(ms.logs()) == []


# Metadata: the same methods on both; threads may use them as a mapping, too.


def test_metadata_is_set_got_and_deleted(ms: Any) -> None:
    metadata = ms.log("x").metadata
    assert (metadata.all(), metadata.get("a"), metadata.get("a", 7)) == ({}, None, 7)
    metadata.set("a", [1])
    metadata.set("b", None)
    assert metadata.all() == {"a": [1], "b": None}
    assert metadata.get("b", 7) is None
    metadata.delete("a")
    assert metadata.all() == {"b": None}


def test_metadata_that_is_missing_cannot_be_deleted(ms: Any) -> None:
    with pytest.raises(KeyError, match="a"):
        ms.log("x").metadata.delete("a")


def test_metadata_is_compared_and_set(ms: Any) -> None:
    metadata = ms.log("x").metadata
    metadata.compare_and_set("a", expect=None, value=1)
    with pytest.raises(MetadataConflict):
        metadata.compare_and_set("a", expect=None, value=2)
    metadata.compare_and_set("a", expect=1, value=2)
    assert metadata.get("a") == 2


@pytest.mark.parametrize("key", ["", "x" * 300])
def test_keys_of_metadata_are_checked(ms: Any, key: str) -> None:
    metadata = ms.log("x").metadata
    with pytest.raises(InvalidName):
        metadata.set(key, 1)
    with pytest.raises(InvalidName):
        metadata.compare_and_set(key, expect=None, value=1)


def test_threads_may_use_metadata_as_a_mapping() -> None:
    with memory_store() as ms:
        metadata = ms.log("x").metadata
        metadata["a"] = 1
        metadata.update(b=2, c=3)
        del metadata["a"]
        assert metadata.pop("c") == 3
        assert (dict(metadata), len(metadata), "b" in metadata) == ({"b": 2}, 1, True)
        assert metadata == {"b": 2} == metadata.all()
        assert repr(metadata) == "Metadata({'b': 2})"
        with pytest.raises(KeyError):
            metadata["a"]


# Stages.


class Locking:
    """A session that notes which commits of a stage were asked for while others could change it."""

    def __init__(self, session: Any) -> None:
        self.session, self.limits, self.clock = session, session.limits, session.clock
        self.stage: Any = None
        self.unlocked: list[str] = []

    def execute(self, command: Any) -> Any:
        if isinstance(command, c.Append | c.FreeLog) and not self.stage._changing.locked():
            self.unlocked.append(type(command).__name__)
        return self.session.execute(command)


def test_nobody_changes_a_stage_while_it_commits(surface: Surface) -> None:
    with memory_store() as store:
        line = Locking(store.session)
        stage = surface.over(line).log("x").stage(section=2)
        line.stage = bare(stage)
        for n in range(3):
            stage.append(b"%d" % n)
        stage.commit()
        stage.close()
        assert line.unlocked == []


def test_many_may_share_a_stage(surface: Surface, ms: Any) -> None:
    with ms.log("x").stage(section=7) as stage:
        offsets = surface.beside([(stage, "append", b"%d" % n) for n in range(100)])
    assert sorted(offsets) == list(range(100))
    stored = {one.offset: one.value for one in ms.log("x").read()}
    assert stored == {offset: b"%d" % n for n, offset in enumerate(offsets)}


def test_a_read_of_a_stage_sees_what_was_staged_when_it_began(ms: Any) -> None:
    ms.log("x").append_many([b"0", b"1"])
    with ms.log("x").stage(section=100) as stage:
        for n in (2, 3, 4):
            stage.append(b"%d" % n)
        for start, stop in [(None, None), (0, 3), (1, 2), (3, 4), (4, 99), (5, None), (9, 10)]:
            wanted = list(range(5))[start:stop]
            assert [one.offset for one in stage.read(start, stop)] == wanted
        assert [stage.get(n).value for n in range(5)] == [b"%d" % n for n in range(5)]
        assert stage.get(5) is None


# Queues.


def test_a_message_of_another_queue_is_refused(ms: Any) -> None:
    one, other = ms.create_queue("one"), ms.create_queue("other")
    one.put(b"x")
    (message,) = one.claim()
    for ask in (other.ack, other.nack, other.fail, other.renew):
        with pytest.raises(InvalidInput, match="'one'"):
            ask(message)
    with pytest.raises(InvalidInput, match="'one'"):
        other.claim(ack=message)
    one.ack(message)


def test_what_needs_the_queue_says_that_there_is_none(ms: Any) -> None:
    queue = ms.queue("none")
    for ask in (
        lambda: queue.put(b"x", delay=1),
        lambda: queue.put_many([]),
        lambda: queue.alter(attempts=2),
        lambda: queue.claim(),
    ):
        with pytest.raises(NotFound):
            ask()


def test_failed_messages_are_found_and_driven_again(ms: Any) -> None:
    queue = ms.create_queue("q")
    for n in range(5):
        queue.put(b"%d" % n, headers={"n": n})
    queue.fail(queue.claim(5))
    assert [one.value for one in queue.failed("n > 2")] == [b"3", b"4"]
    assert queue.redrive("n > 2", limit=1, dry_run=True) == 1
    assert queue.redrive("n > 2") == 2
    assert [one.value for one in queue.claim(9)] == [b"3", b"4"]


def test_a_transaction_is_committed_as_a_whole(ms: Any) -> None:
    queue = ms.create_queue("q", priority_by="p", group_by="g", dedup_by="d")
    with ms.transaction() as tx:
        offset = tx.append("x", b"0")
        tx.put(queue, b"job")
        tx.set_metadata("x", "k", 1)
    assert (offset.result, ms.log("x").metadata.all()) == (0, {"k": 1})
    (message,) = queue.claim()
    undone = ms.transaction()
    undone.__enter__()
    undone.ack(message)
    undone.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    with ms.transaction() as tx:
        tx.ack(message)
        tx.put(queue, b"again", priority=3, group="ada", dedup="x")
        tx.put(queue, b"later", delay=5)
    assert queue.info().done == 1
    (message,) = queue.claim(9)
    assert dict(message.headers) == {"p": 3, "g": "ada", "d": "x"}
    with ms.transaction() as tx:
        until = tx.renew(message, lease=60)
        tx.nack(message, delay=5, reason="busy")
    assert until.result > message.until
    assert [one.reason for one in queue.attempts(message)] == ["busy"]


# Peers.


def test_a_peer_is_a_path_or_an_open_store(surface: Surface, ms: Any, tmp_path: Path) -> None:
    path = tmp_path / "peer.db"
    ms.log("x").append(b"0")
    with pytest.raises(CannotOpen):
        ms.sync(path)
    assert ms.sync(path, create=True).pushed == 1
    ms.log("x").append(b"1")
    with surface.open(path) as peer:
        assert ms.sync(peer).pushed == 1
        assert [one.value for one in peer.log("x").read()] == [b"0", b"1"]
    millstream.open(path).close()  # nobody holds it any more


@pytest.mark.parametrize("peer", [7, None, b"path"])
def test_what_is_no_peer_is_refused(ms: Any, peer: Any) -> None:
    with pytest.raises(InvalidInput, match="a peer is an open store, a path or an address"):
        ms.sync(peer)


def test_a_store_opens_peers_whoever_replaced_the_public_name(
    surface: Surface, ms: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (millstream, millstream.aio):
        monkeypatch.delattr(place, "open")
    assert ms.sync(tmp_path / "peer.db", create=True).pushed == 0


def test_the_session_of_a_store_can_be_asked_for(ms: Any) -> None:
    assert bare(ms).session is bare(ms)._session
