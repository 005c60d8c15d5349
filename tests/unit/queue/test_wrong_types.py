"""Values of wrong types: refused before they are stored, so that the file can always be opened."""

from __future__ import annotations

from contextlib import suppress

import pytest

from millstream.errors import InvalidInput

from .conftest import Reopen


@pytest.mark.parametrize(
    "change",
    [
        {"sources": "events"},
        {"filter": 5},
        {"max_attempts": "many"},
        {"backoff": 5},
        {"description": b"x"},
        {"lease": "x"},
    ],
)
def test_an_altered_field_of_a_wrong_type_is_refused_or_understood(
    reopen: Reopen, change: dict[str, object]
) -> None:
    ms = reopen()
    queue = ms.queue("jobs", lease=10)
    with suppress(InvalidInput):
        queue.alter(**change)
    assert reopen().queue("jobs").exists()


@pytest.mark.parametrize(
    "spec", [{"max_attempts": 2.5}, {"description": b"x"}, {"start": 1.5}, {"dead_letter": None}]
)
def test_a_spec_of_wrong_types_never_harms_the_store(
    reopen: Reopen, spec: dict[str, object]
) -> None:
    ms = reopen()
    with suppress(InvalidInput):
        ms.queue("jobs", **spec)
    assert list(reopen().logs()) == []


@pytest.mark.parametrize("reason", [None, b"why", 5, "\ud800"])
@pytest.mark.parametrize("end", ["nack", "fail"])
def test_a_reason_of_a_wrong_type_or_size_never_harms_the_store(
    reopen: Reopen, end: str, reason: object
) -> None:
    ms = reopen()
    queue = ms.queue("jobs", lease=10)
    queue.put(b"a")
    with suppress(InvalidInput):
        getattr(queue, end)(queue.claim(), reason=reason)
    (info,) = reopen().queues()
    assert info.name == "jobs"


@pytest.mark.parametrize("end", ["nack", "fail"])
def test_a_long_reason_is_refused_or_kept(reopen: Reopen, end: str) -> None:
    ms = reopen()
    queue = ms.queue("jobs", lease=10)
    queue.put(b"a")
    with suppress(InvalidInput):
        getattr(queue, end)(queue.claim(), reason="x" * 1_000_000)
    assert len(list(reopen().queues())) == 1


@pytest.mark.parametrize(
    "claim",
    [
        {"n": "x"},
        {"n": None},
        {"n": 1.5},
        {"n": True},
        {"n": -1},
        {"consumer": 5},
        {"consumer": []},
        {"consumer": "\ud800"},
        {"consumer": "x" * 129},
        {"lease": 0},
    ],
)
def test_a_claim_of_wrong_types_is_refused(reopen: Reopen, claim: dict[str, object]) -> None:
    ms = reopen()
    queue = ms.queue("jobs", lease=10)
    queue.put_many([b"a", b"b", b"c"])
    held = queue.claim()
    with pytest.raises(InvalidInput):
        queue.claim(**claim, ack=held)  # type: ignore[arg-type]
    queue.ack(held)
    assert len(reopen().queue("jobs").claim(5)) == 2
