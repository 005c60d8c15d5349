"""Notes of messages: results, errors and progress, stored by the commit that ends an attempt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream import Millstream
from millstream.doctor import examine
from millstream.errors import InvalidInput, LeaseLost, TooLarge
from millstream.format import keys
from millstream.testing import Probe, SimulatedClock

from .conftest import Reopen, fold_all, settle, upkeep

KINDS: list[dict[str, Any]] = [{}, {"group_by": "g"}, {"priority_by": "p"}]


def notes(ms: Millstream) -> int:
    return len(Probe(ms).rows(keys.NOTE))


@pytest.mark.parametrize("how", KINDS)
def test_a_result_is_stored_by_the_acknowledgement(ms: Millstream, how: dict[str, Any]) -> None:
    queue = ms.create_queue("q", **how)
    ids = [queue.put(b"%d" % n, headers={"g": "a", "p": 1}) for n in range(3)]
    for id in ids[:2]:
        (message,) = queue.claim(1)
        queue.ack(message, result=b"result of %d" % id)
    fates = [queue.message(id) for id in ids]
    assert [fate.result for fate in fates] == [b"result of 0", b"result of 1", None]
    fate = queue.wait(ids[1], timeout=0)
    assert fate is not None
    assert (fate.state, fate.result, fate.error, fate.progress) == (
        *("done", b"result of 1"),
        *(None, None),
    )


def test_results_travel_with_the_acknowledgements_of_a_claim(ms: Millstream) -> None:
    queue = ms.create_queue("q")
    ids = queue.put_many([b"a", b"b", b"c", b"d"])
    first = queue.claim(3)
    (last,) = queue.claim(1, ack=first, results=[b"A", None, b"C"])
    assert queue.claim(1, ack=last, results=[b""]) == []
    assert [queue.message(id).result for id in ids] == [b"A", None, b"C", b""]


def test_a_repeat_of_an_acknowledgement_keeps_the_first_result(ms: Millstream) -> None:
    queue = ms.create_queue("q")
    id = queue.put(b"x")
    (message,) = queue.claim(1)
    queue.ack(message, result=b"first")
    queue.ack(message, result=b"second")
    assert queue.message(id).result == b"first"


def test_only_claims_whose_lease_holds_leave_a_result(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.create_queue("q", lease=10, backoff=0)
    ids = queue.put_many([b"a", b"b"])
    (late,) = queue.claim(1)
    clock.advance(11)
    settle(queue)
    (other,) = [message for message in queue.claim(2) if message.claim_id != late.claim_id]
    assert queue.finish_each([late, other], "ack", result=[b"late", b"in time"]) == [late]
    with pytest.raises(LeaseLost):
        queue.ack(late, result=b"late")
    assert [queue.message(id).result for id in ids] == [None, b"in time"]


def test_an_error_is_kept_until_the_message_is_done(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.create_queue("q", backoff=5, max_attempts=3)
    id = queue.put(b"x")
    queue.nack(queue.claim(1), reason="busy", error=b"trace 1")
    fate = queue.message(id)
    assert (fate.state, fate.reason, fate.error) == ("delayed", "busy", b"trace 1")
    clock.advance(5)
    (message,) = queue.claim(1)
    assert queue.message(id).error == b"trace 1"
    queue.fail(message, error=b"trace 2")
    fate = queue.wait(id)
    assert fate is not None
    assert (fate.state, fate.error) == ("failed", b"trace 2")
    queue.redrive()
    assert queue.message(id).error == b"trace 2"
    queue.ack(queue.claim(1))
    fate = queue.message(id)
    assert (fate.state, fate.error, fate.result) == ("done", None, None)


def test_a_transaction_ends_attempts_with_results_and_errors(ms: Millstream) -> None:
    queue = ms.create_queue("q", max_attempts=1)
    ids = queue.put_many([b"a", b"b", b"c"])
    good, bad, worst = queue.claim(3)
    with ms.transaction() as tx:
        tx.ack(good, result=b"fine")
        tx.nack(bad, error=b"bad")
        tx.fail(worst, reason="no use", error=b"worst")
    fates = [queue.message(id) for id in ids]
    assert [fate.state for fate in fates] == ["done", "failed", "failed"]
    assert [fate.result or fate.error for fate in fates] == [b"fine", b"bad", b"worst"]


def test_a_transaction_that_fails_leaves_no_result(ms: Millstream) -> None:
    queue = ms.create_queue("q")
    id = queue.put(b"a")
    (message,) = queue.claim(1)
    with ms.transaction() as tx:
        tx.ack(message, result=b"first")
    (again, lost) = queue.put_many([b"b", b"c"])
    failing = ms.transaction()
    failing.ack(queue.claim(1), result=b"never")
    failing.fail(message)
    with pytest.raises(LeaseLost), failing:
        pass
    assert (queue.message(id).state, queue.message(id).result) == ("done", b"first")
    assert (queue.message(again).state, queue.message(again).result) == ("in_flight", None)
    assert queue.message(lost).result is None


def test_a_large_result_is_kept_over_a_restart(reopen: Reopen) -> None:
    large = bytes(range(256)) * 8_192
    with reopen() as ms:
        queue = ms.create_queue("q")
        id = queue.put(b"x")
        queue.ack(queue.claim(1), result=large)
    with reopen() as ms:
        assert ms.queue("q").message(id).result == large
        fold_all(ms)
        assert ms.queue("q").message(id).result == large


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("result", [b"small", b"l" * 10_000])
def test_a_note_goes_when_its_message_is_forgotten(
    ms: Millstream, clock: SimulatedClock, result: bytes, folded: bool
) -> None:
    queue = ms.create_queue("q", done_retention=60, lease=5_000)
    queue.put_many([b"a", b"b", b"c", b"d"])
    first, second, third, _ = queue.claim(4)
    queue.ack(first, result=result)
    queue.fail(third, error=b"trace")
    clock.advance(30)
    queue.ack(second, result=result)
    if folded:
        fold_all(ms)
    assert notes(ms) == 3
    clock.advance(31)
    upkeep(ms)
    assert notes(ms) == 2
    clock.advance(30)
    upkeep(ms)
    assert notes(ms) == 1
    assert queue.purge(state="failed") == 1
    fold_all(ms)
    assert notes(ms) == 0


@pytest.mark.parametrize("result", [b"small", b"l" * 10_000])
def test_the_notes_of_a_deleted_queue_go(ms: Millstream, result: bytes) -> None:
    queue = ms.create_queue("q", bucket_exponent=1)
    queue.put_many([b"%d" % n for n in range(25)])
    messages = queue.claim(25)
    queue.ack(messages, result=[result] * 25)
    queue.delete()
    upkeep(ms)
    assert notes(ms) == 0


def test_the_note_of_a_replaced_message_goes(ms: Millstream) -> None:
    queue = ms.create_queue("q")
    queue.put(b"wrong")
    (message,) = queue.claim(1)
    queue.fail(message, error=b"trace")
    id = queue.replace(message, b"right")
    assert queue.message(id).error is None
    assert notes(ms) == 0


@pytest.mark.embedded
def test_the_doctor_finds_notes_that_are_left_over(reopen: Reopen, tmp_path: Path) -> None:
    with reopen() as ms:
        queue = ms.create_queue("q", done_retention=60)
        queue.put_many([b"a", b"b"])
        queue.ack(queue.claim(1), result=b"r")
        queue.nack(queue.claim(1), error=b"e")
        fold_all(ms)
        report = examine(tmp_path / "store.db")
        assert report.healthy, report.problems
        (key, value), *_ = Probe(ms).rows(keys.NOTE).items()
        queue_id, claim_id = keys.pair(key)
        left_over = keys.note(queue_id, claim_id + 50)
        Probe(ms).store.run(lambda tx: tx.put(left_over, value))
        fold_all(ms)
    report = examine(tmp_path / "store.db")
    assert ["has a note" in problem.message for problem in report.problems] == [True]


def test_notes_of_wrong_type_or_size_change_nothing(ms: Millstream) -> None:
    queue = ms.create_queue("q")
    id = queue.put(b"x")
    messages = queue.claim(1)
    wrong: Any = "text"
    with pytest.raises(InvalidInput, match="a result is bytes, not str"):
        queue.ack(messages, result=wrong)
    with pytest.raises(InvalidInput, match="2 results came with 1 messages"):
        queue.ack(messages, result=[b"a", b"b"])
    with pytest.raises(InvalidInput, match="only an acknowledgement carries a result"):
        queue.finish_each(messages, "nack", result=b"r")
    with pytest.raises(InvalidInput, match="a result, not an error"):
        queue.finish_each(messages, "ack", error=b"r")
    with pytest.raises(TooLarge, match="an error has up to 65,536 bytes, not 65,537"):
        queue.nack(messages, error=bytes(65_537))
    with pytest.raises(TooLarge, match="a result has up to 16,777,216 bytes"):
        queue.ack(messages, result=bytes(16 * 1024 * 1024 + 1))
    assert queue.message(id).state == "in_flight"
    assert notes(ms) == 0
