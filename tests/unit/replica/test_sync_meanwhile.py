"""A sync while others append, truncate, delete and sync; and a queue that works on what came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millstream import Millstream
from millstream.replica.commands import SendBlocks, SummarizeLogs
from millstream.replica.sync import shipment as shipping
from tests.unit.replica.copies import records, through, values


def test_records_appended_while_it_runs_are_not_lost(
    a: Millstream, b: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "PARCEL_BYTES", 500)
    for n in range(10):
        a.log("x").append_many([b"%d" % n] * 20)
    peer, line = through(a)

    def meanwhile(command: Any, answer: Any) -> Any:
        if isinstance(command, SendBlocks):
            a.log("x").append(b"meanwhile")
        return answer

    line.tampers = meanwhile
    b.sync(peer)
    line.tampers = lambda command, answer: answer
    b.sync(peer)
    assert records(a, "x") == records(b, "x")


def test_two_syncs_at_once_end_well(
    a: Millstream, b: Millstream, c: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "PARCEL_BYTES", 500)
    for n in range(10):
        a.log("x").append_many([b"%d" % n] * 20)
    c.sync(a)
    a.log("x").append_many([b"last"] * 30)
    peer, line = through(a)
    busy: list[bool] = []

    def meanwhile(command: Any, answer: Any) -> Any:
        if isinstance(command, SendBlocks) and not busy:
            busy.append(True)
            b.sync(c)  # another sync was quicker
        return answer

    line.tampers = meanwhile
    b.sync(peer)
    assert records(a, "x") == records(b, "x")


def test_a_truncation_while_it_runs_is_no_failure(
    a: Millstream, b: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "PARCEL_BYTES", 2_000)
    log = a.log("x")
    for _ in range(8):
        log.append_many([b"v" * 10] * 1_000)
    peer, line = through(a)

    def meanwhile(command: Any, answer: Any) -> Any:
        if isinstance(command, SendBlocks) and log.start_offset() == 0:
            log.truncate(before=6_500)
            log.enforce_retention()
        return answer

    line.tampers = meanwhile
    b.sync(peer)
    b.sync(peer)
    assert records(a, "x") == records(b, "x")
    assert b.log("x").start_offset() == 6_500


def test_a_log_deleted_on_one_side_comes_back(a: Millstream, b: Millstream) -> None:
    a.log("x").append(b"1")
    b.sync(a)
    b.log("x").delete()
    b.sync(a)
    assert values(b, "x") == [b"1"]


def test_a_queue_works_on_copies(make: Callable[[], Millstream]) -> None:
    hub = make()
    queue = hub.queue("all", sources=["device/*"], start="earliest")
    for n in range(5):
        device = make()
        device.log(f"device/{n}").append_many([{"n": n}, {"n": n}])
        device.sync(hub, direction="push")
    assert len(queue.claim(100)) == 10
    assert len(hub.session.execute(SummarizeLogs("", 10))) == 5
