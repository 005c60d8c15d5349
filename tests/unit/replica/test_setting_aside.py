"""Tails that become forks of their own, and what queues and producers see of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

import millstream
from millstream import Millstream, Producer
from millstream.doctor import examine
from millstream.errors import (
    Fenced,
    OutOfRange,
    Truncated,
)
from millstream.format import entries, rfc
from millstream.queue.rules.claims import place_routed
from millstream.queue.rules.sources import facts_of
from millstream.queue.service.router import WINDOW, route
from millstream.replica import commands as r
from millstream.replica.commands import SetAside
from tests.unit.replica.stores import (
    ask,
    fill,
    store_of,
    summary,
    values,
)


@pytest.mark.parametrize("at", [0, 1, 2, 3, 1_500, 3_002, 3_003, 3_004])
@pytest.mark.parametrize("folded", [True, False])
def test_a_tail_is_set_aside_wherever_it_begins(ms: Millstream, at: int, folded: bool) -> None:
    fill(ms)
    if folded:
        ms.fold()
    before, whole = summary(ms), list(ms.log("a").read())
    name = ms.session.execute(r.SetAside("a", at, 0)).fork
    assert name.startswith("a~fork-0-")
    aside = ms.log(name)
    assert list(ms.log("a").read()) == whole[:at]
    assert [one.value for one in aside.read()] == [one.value for one in whole]
    assert replace(summary(ms, name), name="a", timestamp_ms=before.timestamp_ms) == before
    assert summary(ms).end == at
    assert ms.log("a").append(b"other") == at
    ms.fold()
    assert ms.log("a").get(at).value == b"other"
    assert [one.value for one in aside.read()] == [one.value for one in whole]
    assert summary(ms, name).digest == before.digest


def test_a_tail_that_cannot_be_set_aside(ms: Millstream) -> None:
    fill(ms, 10)
    log = ms.log("a")
    with pytest.raises(OutOfRange):
        ask(ms, r.SetAside("a", 15, 0))
    log.truncate(before=3)
    with pytest.raises(Truncated):
        ask(ms, r.SetAside("a", 2, 0))
    log.hand_over("elsewhere")
    with pytest.raises(Fenced):
        ask(ms, r.SetAside("a", 9, 0))
    assert ask(ms, r.SetAside("a", 8, 1))
    assert (log.end_offset(), len(list(ms.logs()))) == (8, 2)


def test_a_tail_of_a_fork_that_begins_in_its_parent(ms: Millstream) -> None:
    fill(ms, 10)
    log = ms.log("a")
    fork = log.fork("f")
    fork.append(b"own")
    child = fork.fork("child")
    name = ask(ms, r.SetAside("f", 5, 0)).fork
    assert fork.append(b"new") == 5
    whole = [record.value for record in log.read()]
    assert [record.value for record in fork.read()] == [*whole[:5], b"new"]
    for log_of in (ms.log(str(name)), child):
        assert [record.value for record in log_of.read()] == [*whole, b"own"]


@pytest.mark.parametrize("single", [True, False])
def test_a_queue_that_stands_at_the_difference_gets_what_takes_its_place(
    ms: Millstream, single: bool
) -> None:
    log = ms.log("a")
    log.append_many([b"0", b"1"])
    fork = log.fork("b")
    fork.append_many([b"f2", b"f3", b"f4"])
    if single:
        log.append(b"p2")
    else:
        log.append_many([b"p2", b"p3"])
    queue = ms.queue("q", sources="a", start="earliest", lossy=True)
    fork.merge(on_fork="longest")
    claimed = queue.claim(10)
    assert [message.value for message in claimed] == [b"0", b"1", b"f2", b"f3", b"f4"]
    queue.ack(claimed)
    ms.fold()


@pytest.mark.parametrize("handles", [1, 2])
def test_a_queue_that_has_read_part_of_a_block_gets_the_rest_of_what_takes_its_place(
    tmp_path: Path, handles: int
) -> None:
    path = tmp_path / "s.db"
    at, end = WINDOW + 500, WINDOW + 2_000
    with millstream.open(path) as ms, millstream.open(path) as second:
        other = ms if handles == 1 else second
        log = ms.log("a")
        log.append_many([b"old%d" % n for n in range(end)], headers=[{"n": n} for n in range(end)])
        queue = ms.queue("q", sources="a", start="earliest", keep_payloads=True)
        claimed = queue.claim(700)
        queue.ack(claimed[:300])
        ms.fold()  # the metadata of the whole block is remembered now
        other.session.execute(SetAside("a", at, 0))
        other.log("a").append_many(
            [b"new%d" % n for n in range(at, end)],
            headers=[{"n": -n} for n in range(at, end)],
        )
        while some := queue.claim(800):
            claimed += some
        expected = [b"old%d" % n for n in range(at)]
        expected += [b"new%d" % n for n in range(at, end)]
        assert [message.value for message in claimed] == expected
        assert claimed[at + 500].headers["n"] == -(at + 500)
        queue.ack(claimed[300:])
        ms.fold()
        stored = _metadata_of_done(ms)
        assert stored == [n if n < at else -n for n in range(end)]
    assert examine(path).healthy


def _metadata_of_done(ms: Millstream) -> list[int]:
    """The header of each done message, as the RFC's records have it."""
    found = []
    for record in ms.queue("q").records():
        if record.key[1] == rfc.RecordType.DONE:
            for message in rfc.decode_finished(record.value):
                _, _, headers, _, _ = entries.decode_metadata(message.metadata)
                found.append((message.message_id, msgspec.msgpack.decode(headers)["n"]))
    return [n for _, n in sorted(found)]


def test_what_was_found_for_a_queue_before_its_log_was_set_back_is_not_placed(
    ms: Millstream,
) -> None:
    log = ms.log("a")
    log.append_many([b"old0", b"old1"])
    queue = ms.queue("q", sources="a", start="earliest")
    store = store_of(ms)
    facts = store.view(lambda view: facts_of(view, "q"))
    assert facts is not None
    found = route(store, facts, 10)
    ms.session.execute(SetAside("a", 1, 0))
    log.append_many([b"new1", b"new2"])
    assert store.run(lambda tx: place_routed(tx, "q", found)) == 0
    assert [message.value for message in queue.claim(10)] == [b"old0", b"new1", b"new2"]


def test_a_log_that_was_set_back_knows_its_producers_no_further(ms: Millstream) -> None:
    log = ms.log("a")
    log.append(b"0", producer=Producer("p", 0))
    fork = log.fork("b")
    fork.append_many([b"f1", b"f2"])
    log.append(b"p1", producer=Producer("p", 1))
    fork.merge(on_fork="longest")
    assert log.append(b"0", producer=Producer("p", 0)) == 0
    assert log.append(b"p1", producer=Producer("p", 1)) == 3
    assert values(log) == [b"0", b"f1", b"f2", b"p1"]
