"""Below the start of a log: what queues need stays, to the message; everything else goes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from millstream import Limits, Millstream
from millstream.doctor import examine
from millstream.errors import CorruptionError
from millstream.format import keys
from millstream.log.model.head import Head
from millstream.log.reading.reader import fetch_blocks, log_id_of
from millstream.log.rules import retention, sparse
from millstream.log.rules.retention import _drop_slice
from millstream.queue.commands import ClaimRouted
from millstream.queue.model.message import Message
from millstream.queue.rules.sources import facts_of
from millstream.queue.service.claims import pop_routed
from millstream.queue.service.router import WINDOW, route
from millstream.queue.service.upkeep import QueueUpkeep, _cut_inbox
from millstream.store.commit.ticket import Ticket
from millstream.testing import Probe, SimulatedClock
from millstream.threads.queue import Queue

from .conftest import Reopen, counts, fold_all, settle, upkeep, values

pytestmark = pytest.mark.embedded

BLOCK = 100


def store_of(ms: Millstream) -> Any:
    return Probe(ms).store


def rows(ms: Millstream) -> dict[int, int]:
    """How many entries, payloads and payload blocks lie on disk or in unfolded commits."""
    kinds = (keys.ENTRY, keys.PAYLOAD, keys.PAYLOAD_BLOCK)
    return {kind: len(Probe(ms).rows(kind)) for kind in kinds}


def head_of(ms: Millstream, name: str) -> Head | None:
    def ask(state: Any, snapshot: Any) -> Head | None:
        first = keys.prefix(keys.HEAD)
        for key in state.find(first, keys.after(first), snapshot, limit=100):
            head = state.entity(key, snapshot)
            if head.name == name:
                assert isinstance(head, Head)
                return head
        return None

    found: Head | None = store_of(ms).look(ask)
    return found


def check(ms: Millstream) -> None:
    """Nothing is missing and nothing lies around, in the file as it is now."""
    report = examine(store_of(ms).engine.place)
    assert report.problems == []
    assert (report.payloads_missing, report.payloads_unreachable) == (0, 0)


def clear(ms: Millstream, name: str) -> None:
    log = ms.log(name)
    log.truncate(before=log.end_offset())
    log.enforce_retention()


def filled(ms: Millstream, blocks: int = 5, **spec: Any) -> Queue:
    queue = ms.queue("jobs", sources="events", **spec)
    for block in range(blocks):
        ms.log("events").append_many(
            [b"%d" % (block * BLOCK + n) + b"x" * 100 for n in range(BLOCK)],
            keys=[b"k%d" % n if n % 2 else None for n in range(BLOCK)],
            headers=[{"n": n} if n % 3 else None for n in range(BLOCK)],
            timestamps=[1_000 + n for n in range(BLOCK)],
        )
    return queue


def finish(queue: Queue, total: int, fail: set[int]) -> list[Message]:
    """Work everything off; messages at these offsets fail."""
    failed = []
    messages: list[Message] = []
    while len(messages) < total:
        messages += queue.claim(100)
    failed = [m for m in messages if m.offset in fail]
    queue.ack([m for m in messages if m.offset not in fail])
    queue.fail(failed, reason="no")
    return failed


@pytest.mark.parametrize("exponent", [0, 2, 3])
@pytest.mark.parametrize("early", [False, True])
def test_one_failed_message_holds_nothing_but_itself(
    reopen: Reopen, exponent: int, early: bool
) -> None:
    ms = reopen()
    queue = filled(ms, bucket_exponent=exponent)
    before = [*ms.log("events").read()]
    (failed,) = finish(queue, 5 * BLOCK, {123})
    if early:
        clear(ms, "events")
        assert rows(ms)[keys.PAYLOAD_BLOCK] == 0, "what is done is not needed, folded or not"
    fold_all(ms)
    clear(ms, "events")
    assert rows(ms)[keys.PAYLOAD_BLOCK] == 0
    head = head_of(ms, "events")
    assert head is not None
    assert 0 < head.kept == head.bytes < 200
    check(ms)
    for _ in range(2):
        (again,) = queue.peek(5, state="failed")
        assert (again.offset, again.claim_id) == (123, failed.claim_id)
        assert (again.value, again.key) == (failed.value, failed.key)
        assert (again.headers, again.timestamp) == (failed.headers, failed.timestamp)
        fold_all(ms)
        check(ms)
        ms = reopen()
        queue = ms.queue("jobs")
    assert queue.redrive() == 1
    clear(ms, "events")
    (message,) = queue.claim(5)
    assert (message.value, message.key) == (before[123].value, before[123].key)
    queue.ack(message)
    fold_all(ms)
    clear(ms, "events")
    head = head_of(ms, "events")
    assert head is not None
    assert (head.kept, head.bytes, head.dropped) == (0, 0, 5 * BLOCK)
    assert rows(ms)[keys.PAYLOAD_BLOCK] == 0
    assert counts(queue) == {"done": 5 * BLOCK}
    check(ms)


def test_a_block_stays_while_a_quarter_of_it_is_needed(ms: Millstream) -> None:
    queue = filled(ms, blocks=3)
    failed = set(range(24)) | set(range(BLOCK, BLOCK + 30))
    finish(queue, 3 * BLOCK, failed)
    fold_all(ms)
    clear(ms, "events")
    assert rows(ms)[keys.PAYLOAD_BLOCK] == 1
    assert {m.offset for m in queue.peek(1000, state="failed")} == failed
    check(ms)
    queue.redrive(limit=30)
    queue.ack(queue.claim(30))
    fold_all(ms)
    clear(ms, "events")
    assert rows(ms)[keys.PAYLOAD_BLOCK] == 0
    assert {m.offset for m in queue.peek(1000, state="failed")} == set(range(106, 130))
    check(ms)


def test_singles_that_were_folded_together_are_thinned_as_well(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources="events", bucket_exponent=1)
    for n in range(60):
        ms.log("events").append(b"%d" % n)
    fold_all(ms)
    finish(queue, 60, {7, 50})
    fold_all(ms)
    before = rows(ms)
    clear(ms, "events")
    after = rows(ms)
    assert before[keys.PAYLOAD_BLOCK] - after[keys.PAYLOAD_BLOCK] == 1
    assert after[keys.PAYLOAD] - before[keys.PAYLOAD] == 2
    assert values(queue.peek(9, state="failed")) == [b"7", b"50"]
    check(ms)


@pytest.mark.parametrize("large", [False, True])
def test_what_does_not_fit_into_a_delta_goes_straight_to_its_place(
    reopen: Reopen, large: bool
) -> None:
    ms = reopen(Limits(inline_bytes_max=4096 if large else 8))
    queue = ms.queue("jobs", sources="events")
    ms.log("events").append_many([b"%d" % n * 50 for n in range(10)])
    finish(queue, 10, {0, 9})
    fold_all(ms)
    clear(ms, "events")
    check(ms)
    ms = reopen()
    assert values(ms.queue("jobs").peek(9, state="failed")) == [b"0" * 50, b"9" * 50]
    check(ms)


def test_repeated_sweeps_change_nothing(ms: Millstream, clock: SimulatedClock) -> None:
    queue = filled(ms)
    finish(queue, 5 * BLOCK, {0, 499})
    fold_all(ms)
    clear(ms, "events")
    sequence, seen = ms.stats()["sequence"], rows(ms)
    for _ in range(5):
        clock.advance(60)
        clear(ms, "events")
        upkeep(ms)
    assert (ms.stats()["sequence"], rows(ms)) == (sequence, seen)


def test_the_background_does_it_too_and_then_rests(
    ms: Millstream, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = filled(ms)
    finish(queue, 5 * BLOCK, {3, 200, 201})
    fold_all(ms)
    ms.log("events").truncate(before=5 * BLOCK)
    upkeep(ms)
    assert rows(ms)[keys.PAYLOAD_BLOCK] == 0
    queue.redrive()
    queue.ack(queue.claim(9))
    fold_all(ms)
    clock.advance(10)
    upkeep(ms)
    head = head_of(ms, "events")
    assert head is not None
    assert (head.kept, head.bytes) == (0, 0)

    queue.put(b"")
    queue.claim(1)
    upkeep(ms)
    asked: list[int] = []
    for rules in (retention, sparse):
        monkeypatch.setattr(rules, "pinned", lambda _, log_id: asked.append(log_id))
    for _ in range(3):
        clock.advance(10)
        upkeep(ms)
    assert asked == []


def test_a_queue_that_has_not_routed_holds_the_rest_and_not_what_another_has_passed(
    ms: Millstream,
) -> None:
    slow = ms.queue("slow", sources="events", start="earliest")
    queue = filled(ms)
    finish(queue, 5 * BLOCK, {0})
    finish(slow, 250, set())
    assert len(slow.claim(30)) == 30
    fold_all(ms)
    clear(ms, "events")
    check(ms)
    assert sorted(m.offset for m in slow.claim(1000)) == list(range(330, 500))
    assert [m.offset for m in queue.peek(9, state="failed")] == [0]


def test_a_queue_made_later_begins_behind_what_is_kept_for_another(ms: Millstream) -> None:
    queue = filled(ms)
    other = ms.queue("other", lease=30, start="earliest")
    finish(queue, 5 * BLOCK, {0, 150, 499})
    fold_all(ms)
    clear(ms, "events")
    ms.log("events").append(b"new")
    other.alter(sources=("events",))
    assert values(other.claim(9)) == [b"new"]


def test_an_altered_queue_no_longer_holds_a_log_that_it_left(ms: Millstream) -> None:
    queue = filled(ms)
    queue.ack(queue.claim(1))
    queue.alter(sources=("elsewhere",))
    queue.purge()
    fold_all(ms)
    clear(ms, "events")
    assert rows(ms)[keys.PAYLOAD_BLOCK] == 0
    check(ms)


def test_a_deleted_log_goes_once_its_messages_are_done(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources="events")
    ms.log("events").append_many([b"%d" % n for n in range(WINDOW + 500)])
    ms.log("events").append_many([b"never routed"] * 10)
    first = queue.claim(3)
    ms.log("events").delete()
    upkeep(ms)
    fold_all(ms)
    upkeep(ms)
    assert head_of(ms, "events") is not None
    check(ms)
    messages = [*first, *queue.claim(5_000)]
    assert len(messages) == WINDOW
    queue.fail(messages[0])
    queue.ack(messages[1:])
    fold_all(ms)
    store_of(ms).clock.advance(10)
    upkeep(ms)
    assert rows(ms)[keys.PAYLOAD_BLOCK] == 0
    assert values(queue.peek(5, state="failed")) == [b"0"]
    check(ms)
    queue.purge(state="failed")
    fold_all(ms)
    store_of(ms).clock.advance(10)
    upkeep(ms)
    assert head_of(ms, "events") is None
    fold_all(ms)
    check(ms)


def test_retention_by_bytes_does_not_count_what_is_kept_for_a_queue(ms: Millstream) -> None:
    queue = filled(ms)
    finish(queue, 5 * BLOCK, set(range(0, 500, 5)))
    fold_all(ms)
    clear(ms, "events")
    log = ms.log("events")
    for _ in range(50):
        log.append(b"y" * 97)
    head = head_of(ms, "events")
    assert head is not None
    assert head.kept > 5_000
    log.retain(bytes=3_000)
    log.enforce_retention()
    assert 25 <= len(log) <= 30


def test_a_message_that_is_gone_is_told(ms: Millstream) -> None:
    queue = filled(ms, blocks=1)
    finish(queue, BLOCK, {5})
    fold_all(ms)
    clear(ms, "events")
    store = store_of(ms)
    log_id = log_id_of(store, "events")
    (found,) = fetch_blocks(store, log_id, "events", start=5, stop=6)
    assert [record.offset for record in found.records()] == [5]
    with pytest.raises(CorruptionError, match="offset 6 is gone"):
        fetch_blocks(store, log_id, "events", start=6, stop=7)


def test_what_the_same_commit_has_finished_is_not_yet_given_up(ms: Millstream) -> None:
    """The records of its bucket, written later, need the metadata from the log."""
    queue = ms.queue("jobs", sources="events")
    log = ms.log("events")
    log.append_many([b"a", b"b"])
    assert len(queue.peek(2)) == 2
    fold_all(ms)
    log.truncate(before=2)
    log.append(b"c")
    store = store_of(ms)
    log.truncate(before=3)
    facts = store.view(lambda view: facts_of(view, "jobs"))
    routed = route(store, facts, 10)
    popped = ClaimRouted("jobs", 10, None, "me", routed, [])
    log_id = routed[0].log_id
    group = [
        Ticket(partial(pop_routed, command=popped)),
        Ticket(lambda tx: _drop_slice(tx, log_id)),
    ]
    with Probe(store).hold_commits():
        store.committer.commit_group(group)
    assert [ticket.error for ticket in group] == [None, None]
    fold_all(ms)
    assert counts(queue) == {"done": 3}
    clear(ms, "events")
    check(ms)


def test_an_ended_lease_of_a_message_that_was_rewritten_is_taken_back(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = filled(ms, blocks=1, lease=10, backoff=0, max_attempts=9)
    messages = queue.claim(BLOCK)
    queue.ack(messages[1:])
    fold_all(ms)
    clear(ms, "events")
    assert rows(ms)[keys.PAYLOAD_BLOCK] == 0
    clock.advance(20)
    settle(queue)
    clock.advance(20)
    (again,) = queue.claim(9)
    assert (again.value, again.attempt) == (messages[0].value, 2)


def test_records_appended_behind_a_kept_one_and_folded_with_it_stay(ms: Millstream) -> None:
    """The fold joins them across the offset up to which the log was dropped."""
    queue = ms.queue("jobs", sources="events")
    log = ms.log("events")
    for n in range(20):
        log.append(b"%d" % n)
    finish(queue, 20, {19})
    fold_all(ms)
    clear(ms, "events")
    for n in range(20, 26):
        log.append(b"%d" % n)
    fold_all(ms)
    check(ms)
    queue.ack(queue.claim(9))
    queue.purge(state="failed")
    fold_all(ms)
    log.enforce_retention()
    check(ms)
    assert [record.value for record in log.read()] == [b"%d" % n for n in range(20, 26)]
    log.retain(bytes=3 * 8)
    log.enforce_retention()
    check(ms)
    clear(ms, "events")
    assert [info.bytes for info in ms.logs() if info.name == "events"] == [0]
    check(ms)


def test_a_queue_that_goes_while_it_is_looked_after_harms_nothing(ms: Millstream) -> None:
    wants = QueueUpkeep().wants
    assert store_of(ms).view(lambda view: wants(view, "gone")) is False
    assert store_of(ms).run(lambda tx: _cut_inbox(tx, "gone")) is False
