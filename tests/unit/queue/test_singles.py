"""Messages that were appended one by one are claimed, read and stored as those of a batch are."""

from __future__ import annotations

from pathlib import Path

import pytest

import millstream
from millstream import Millstream
from millstream.format import keys
from millstream.queue.commands import ClaimRouted
from millstream.queue.rules.claims import Claiming
from millstream.testing import Probe, SimulatedClock
from tests.unit.queue.conftest import fold_all

pytestmark = pytest.mark.embedded


def publish(ms: Millstream, clock: SimulatedClock, count: int, *, beside: bool = False) -> None:
    """Append messages, each in another millisecond; `beside` another log, so that ids are apart."""
    for number in range(count):
        ms.log("x").append(str(number), key=f"k{number}", headers={"n": number})
        if beside:
            ms.log("y").append("other")
        clock.advance(0.001)


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("folded", [False, True])
def test_a_claim_of_many_singles_is_one_grant(
    ms: Millstream, clock: SimulatedClock, beside: bool, folded: bool
) -> None:
    queue = ms.queue("q", sources="x", start="earliest")
    publish(ms, clock, 200, beside=beside)
    if folded:
        fold_all(ms)
    queue.ack(queue.claim(10))

    granted = Probe(ms).store.run(Claiming(ClaimRouted("q", 100, None, "me", [], [])))

    assert [(one.count, one.offset) for one in granted.grants] == [(100, 10)]
    assert [message.text for message in queue.claim(100)] == [str(n) for n in range(110, 200)]
    assert [message.text for message in queue.peek(500, state="in_flight")] == [
        str(n) for n in range(10, 200)
    ]


def test_messages_of_retries_and_of_their_turn_are_told_apart(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("q", sources="x", start="earliest", backoff=0)
    publish(ms, clock, 20)
    fold_all(ms)
    queue.nack(queue.claim(5)[2:4])

    messages = queue.claim(20)

    found = [(message.text, message.attempt) for message in messages]
    assert sorted(found) == sorted([("2", 2), ("3", 2), *((str(n), 1) for n in range(5, 20))])


@pytest.mark.parametrize("beside", [False, True])
def test_records_of_joined_singles_have_the_ids_that_they_were_given(
    ms: Millstream, clock: SimulatedClock, beside: bool
) -> None:
    queue = ms.queue("q", sources="x", start="earliest")
    publish(ms, clock, 30, beside=beside)
    queue.ack(queue.claim(10))
    before = list(queue.records())
    fold_all(ms)
    assert list(queue.records()) == before
    entry_keys = Probe(ms).rows(keys.ENTRY)
    assert len(entry_keys) < 10, "they were joined"


def test_folded_singles_take_little_room(tmp_path: Path) -> None:
    count = 4_000
    path = tmp_path / "small.db"
    with millstream.open(path) as ms:
        for first in range(0, count, 8):
            with ms.transaction() as tx:
                for number in range(first, first + 8):
                    headers = {"region": f"r{number % 20}", "amount": number % 1_000}
                    tx.append("x", b"v" * 100, key=f"customer-{number:05d}", headers=headers)
        ms.fold()
        used = ms.sql(
            "SELECT sum(pgsize) FROM dbstat WHERE name IN ('millstream_block', 'millstream_record', 'millstream_payload')"
        ).rows[0][0]
    assert used / count <= 200
