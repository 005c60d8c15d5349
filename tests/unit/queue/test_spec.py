"""Specs: what is stored of one depends on what it says, not on how that was said."""

from __future__ import annotations

import msgspec
import pytest

from millstream.errors import InvalidInput
from millstream.queue.model.backoff import Backoff
from millstream.queue.model.spec import QueueSpec, spec_of
from millstream.queue.rules.operations import checked


def every_field(spec: QueueSpec) -> bytes:
    """A spec as somebody sends it who names each field."""
    said = {name: getattr(spec, name) for name in spec.__struct_fields__}
    waits = {name: getattr(spec.backoff, name) for name in spec.backoff.__struct_fields__}
    return msgspec.msgpack.encode(said | {"backoff": waits})


@pytest.mark.parametrize(
    "spec",
    [
        spec_of(),
        spec_of(lease=10, lease_max=3600, rate=0, group_rate=5),
        spec_of(backoff=1, done_retention=7 * 24 * 3600.0, sources=["a", "b*"]),
        spec_of(backoff=Backoff(factor=float("2"), jitter=0.25), max_attempts=int("5")),
        spec_of(backoff=[1, 5], start=int("300"), description="work"),
    ],
)
def test_a_spec_is_stored_alike_however_it_was_said(spec: QueueSpec) -> None:
    heard = msgspec.msgpack.decode(every_field(spec), type=QueueSpec)
    assert msgspec.msgpack.encode(checked(heard)) == msgspec.msgpack.encode(checked(spec))
    assert checked(heard) == spec


def test_only_what_differs_from_the_defaults_is_stored() -> None:
    spec = checked(spec_of(lease=30, lease_max=12 * 3600, rate=0, dedup_window=300, backoff=1))
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(spec))
    assert stored == {"backoff": {"kind": "fixed", "jitter": 0.0}}


@pytest.mark.parametrize(
    ("backoff", "told"),
    [
        (Backoff(first_ms=-1), "must be 0 ms or longer, got -1 ms"),
        (Backoff(factor=0.5), "factor must be from 1 to .*, got 0.5"),
        (Backoff(jitter=2.0), "jitter must be from 0 to 1, got 2.0"),
        (Backoff(kind="list"), "at least one wait, got none"),
    ],
)
def test_a_backoff_that_is_refused_says_what_was_given(backoff: Backoff, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        spec_of(backoff=backoff).check()


@pytest.mark.parametrize("name", ["retries", "lease_ms", "done_retention_s"])
def test_a_setting_that_there_is_not_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=f"no setting '{name}'"):
        spec_of(**{name: 1})


def test_a_longer_lease_raises_the_most() -> None:
    day = 24 * 3600
    assert spec_of(lease=day).lease_max_ms == day * 1000
    assert spec_of(lease=10, lease_max=20).lease_max_ms == 20_000


def test_a_spec_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidInput, match="max_attempts"):
        checked(spec_of(max_attempts=0))
