"""A message is found by its dedup id as long as it has not ended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import millstream
from millstream import Millstream, Queue
from millstream.errors import InvalidInput, NotFound
from millstream.queue.commands import FindByDedup
from millstream.queue.model.message import FoundMessage

pytestmark = pytest.mark.embedded


@pytest.fixture
def ms() -> Iterator[Millstream]:
    with millstream.open(":memory:") as ms:
        yield ms


@pytest.fixture
def queue(ms: Millstream) -> Queue:
    return ms.create_queue("names", dedup_by="name", dedup_while="running")


def find(ms: Millstream, dedup: str) -> FoundMessage | None:
    return ms.session.execute(FindByDedup("names", dedup))


def test_a_message_is_found_until_it_has_ended(ms: Millstream, queue: Queue) -> None:
    ids = [queue.put(b"", dedup=f"n{n}", delay=60 * (n % 2)) for n in range(6)]
    found = find(ms, "n3")
    assert found is not None
    assert (found.id, found.fate.state) == (ids[3], "delayed")
    queue.peek(9)  # routes the others
    (message,) = queue.claim(1)
    claimed = find(ms, "n0")
    assert claimed is not None
    assert (claimed.id, claimed.fate.state, claimed.fate.attempts) == (ids[0], "in_flight", 1)
    queue.ack(message)
    assert find(ms, "n0") is None
    assert queue.cancel(ids[3])
    assert find(ms, "n3") is None


def test_the_message_that_follows_under_the_same_name_is_found(
    ms: Millstream, queue: Queue
) -> None:
    first = queue.put(b"", dedup="a", delay=60)
    for _ in range(20):
        (message,) = queue.peek(1, state="delayed")
        with ms.transaction() as tx:
            tx.cancel_waiting(message)
            later = tx.put("names", b"", dedup="a", delay=60)
        found = find(ms, "a")
        assert found is not None
        assert found.id == later.result > first


def test_unknown_names_and_queues_without_names(ms: Millstream, queue: Queue) -> None:
    assert find(ms, "nobody") is None
    ms.create_queue("plain")
    with pytest.raises(InvalidInput, match="queue 'plain' knows no dedup ids"):
        ms.session.execute(FindByDedup("plain", "a"))
    with pytest.raises(NotFound):
        ms.session.execute(FindByDedup("nowhere", "a"))
