"""Specs: what is stored of one depends on what it says, not on how that was said."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any, get_type_hints

import msgspec
import pytest
from msgspec.structs import replace

import millstream
from millstream import Millstream, aio
from millstream.errors import InvalidInput
from millstream.queue.model.backoff import Backoff
from millstream.queue.model.spec import QueueSettings, QueueSpec, altered, spec_of
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
        (Backoff(first=-1), "backoff: a wait must be from 0 to .* seconds, got -1"),
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
    with pytest.raises(InvalidInput, match=f"no setting '{name}'"):
        spec_of(**{name: 1})


def test_a_longer_lease_raises_the_most() -> None:
    day = 24 * 3600
    assert spec_of(lease=day).lease_max_ms == day * 1000
    assert spec_of(lease=10, lease_max=20).lease_max_ms == 20_000


def test_a_spec_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidInput, match="max_attempts"):
        checked(spec_of(max_attempts=0))


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 10**20, -(10**20)])
@pytest.mark.parametrize("name", ["start", "max_attempts", "max_in_flight", "bucket_exponent"])
def test_a_number_that_cannot_be_stored_is_told_by_its_name(name: str, number: int) -> None:
    with pytest.raises(InvalidInput, match=f"^{name} is .*{number}"):
        checked(spec_of(**{name: number}))


SETTINGS: dict[str, Any] = {
    "sources": ["orders", "more*"],
    "filter": "n > 1",
    "start": "earliest",
    "max_attempts": 3,
    "lease": 0.5,
    "lease_max": 90,
    "backoff": [1, 2.5],
    "delay": 1.5,
    "priority_by": "p",
    "priority_step": 30,
    "group_by": "g",
    "group_in_flight": 2,
    "group_rate": 3,
    "max_in_flight": 4,
    "rate": 5.5,
    "dedup_by": "d",
    "dedup_window": 60,
    "done_retention": 3600,
    "keep_payloads": True,
    "bucket_exponent": 2,
    "dead_letter": "dead",
    "lossy": True,
    "description": "work",
}


def test_every_setting_is_a_field_of_the_spec_under_the_same_name(ms: Millstream) -> None:
    assert set(get_type_hints(QueueSettings)) == set(QueueSpec.__struct_fields__)
    spec = ms.create_queue("q", **SETTINGS).info().spec  # type: ignore[union-attr]
    for name, said in SETTINGS.items():
        if name not in ("sources", "backoff"):
            assert getattr(spec, name) == said
    assert (spec.sources, spec.backoff.waits) == (("orders", "more*"), (1, 2.5))
    assert (spec.lease_ms, spec.lease_max_ms, spec.delay_ms) == (500, 90_000, 1_500)


@pytest.mark.parametrize(
    ("sources", "found"),
    [
        ("orders", ("orders",)),
        (["a", "b*"], ("a", "b*")),
        ((), ()),
        ({"a"}, ("a",)),
    ],
)
def test_sources_are_one_name_or_several(sources: Any, found: tuple[str, ...]) -> None:
    assert spec_of(sources=sources).sources == found


def test_a_log_is_given_by_its_handle_or_its_name(ms: Millstream) -> None:
    queue = ms.create_queue("q", sources=ms.log("a"), dead_letter=ms.log("dead"))
    assert queue.alter(sources=[ms.log("a"), "b"]).sources == ("a", "b")
    assert queue.info().spec.dead_letter == "dead"  # type: ignore[union-attr]
    ms.log("a").append(b"x")
    assert len(queue.claim()) == 1


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"leese": 3}, "no setting 'leese'.*'lease'"),
        ({"lease_ms": 3}, "no setting 'lease_ms'.*'lease'"),
        ({"xyzzy": 3}, "no setting 'xyzzy'; it has sources, filter"),
        ({"lease": "x"}, "lease is a number of seconds.*'x'"),
        ({"lease": None}, "lease is a number of seconds.*None"),
        ({"lease": True}, "lease is a number of seconds.*True"),
        ({"lease": float("nan")}, "lease is a number of seconds.*nan"),
        ({"lease": float("inf")}, "lease is a number of seconds.*inf"),
        ({"lease": 0}, "lease is from 0.001 to .* seconds, not 0"),
        ({"lease": -1}, "lease is from"),
        ({"lease": 1e9}, "lease_max is from 0.001 to 604,800 seconds"),
        ({"lease": 60, "lease_max": 30}, "lease is from 0.001 to 30.0 seconds, not 60"),
        ({"lease_max": "1h"}, "lease_max is a number of seconds"),
        ({"delay": [1]}, "delay is a number of seconds"),
        ({"delay": -1}, "delay is from 0 to"),
        ({"dedup_window": 0}, "dedup_window is from 0.001"),
        ({"done_retention": -1}, "done_retention is from 0"),
        ({"priority_step": 0}, "priority_step is from"),
        ({"sources": 5}, "sources are names of logs, or logs, not 5"),
        ({"sources": [5]}, "source name is text, not int"),
        ({"sources": [""]}, "source name"),
        ({"sources": None}, "sources are names"),
        ({"sources": "a"}, None),
        ({"filter": 5}, "filter: expected `str`, got `int`: 5"),
        ({"max_attempts": "many"}, "max_attempts: expected `int`, got `str`: 'many'"),
        ({"max_attempts": 0}, "max_attempts is from 1"),
        ({"max_attempts": 2.5}, "max_attempts: expected `int`"),
        ({"start": 1.5}, "start: expected"),
        ({"start": -1}, "start is 'latest', 'earliest' or an offset"),
        ({"start": "now"}, "start is 'latest', 'earliest' or an offset.*'now'"),
        ({"lossy": "yes"}, "lossy: expected `bool`, got `str`"),
        ({"rate": "5"}, "rate: expected `float`, got `str`"),
        ({"rate": float("nan")}, "rate is from .* claims per second, or 0 for any number"),
        ({"dead_letter": None}, "dead_letter: expected `str`, got `null`: None"),
        ({"backoff": "5s"}, "backoff is a number of seconds.*'5s'"),
        ({"backoff": [1, "x"]}, "backoff is a number of seconds.*'x'"),
        ({"backoff": []}, "backoff: one of kind 'list'"),
        ({"backoff": -1}, "backoff: a wait must be"),
        ({"backoff": {"kind": "fixed"}}, "backoff is a number of seconds"),
        ({"router": "flink"}, "router is 'spark'"),
        ({"description": b"x"}, "description: expected `str`"),
        ({"bucket_exponent": 99}, "bucket_exponent is from"),
        ({"priority_by": "_key"}, "priority_by is the name of a header"),
    ],
    ids=lambda one: str(one)[:40],
)
def test_a_wrong_setting_is_told_by_its_name_wherever_it_is_said(
    ms: Millstream, setting: dict[str, Any], told: str | None
) -> None:
    asks: list[Callable[[], object]] = [
        lambda: ms.queue("new", **setting),
        lambda: ms.create_queue("new", **setting),
        lambda: ms.queue("old").alter(**setting),
    ]
    ms.create_queue("old")
    if told is None:
        for ask in asks:
            ask()
        return
    before = ms.queue("old").info()
    for ask in asks:
        with pytest.raises(InvalidInput, match=told):
            ask()
    assert not ms.queue("new").exists()
    assert ms.queue("old").info() == before


def test_altering_leaves_what_is_not_named(ms: Millstream) -> None:
    queue = ms.create_queue("q", **SETTINGS)
    before = queue.info().spec  # type: ignore[union-attr]
    assert queue.alter(rate=1, lease=timedelta(minutes=1)) == replace(before, rate=1.0, lease=60)
    assert queue.alter() == queue.info().spec  # type: ignore[union-attr]


def test_a_longer_lease_moves_the_longest_that_may_be_asked_for() -> None:
    day = 24 * 3600
    assert spec_of(lease=day).lease_max == day
    assert altered(spec_of(), {"lease": day}).lease_max == day
    assert altered(spec_of(lease_max=2 * day), {"lease": day}).lease_max == 2 * day


def test_the_settings_are_listed_at_a_prompt() -> None:
    for noun in (millstream, aio):
        for method in (noun.Millstream.queue, noun.Millstream.create_queue, noun.Queue.alter):
            listed = inspect.signature(method).parameters
            assert set(QueueSpec.__struct_fields__) < set(listed)
            assert "settings" not in listed
