"""An object store that refuses, delays, loses and repeats requests, by a proxy before moto's S3.

Promises:

- Nothing that was acknowledged is lost, and nothing is stored twice.
- A caller that cannot know gets `OutcomeUnknown`; one that was refused is told so.
- Once the object store answers again, the same handle takes writes, without a restart.
- An object that is damaged or missing is noticed and named.
"""

from __future__ import annotations

import os
import random

import pytest

import millstream
from millstream import Producer
from millstream.doctor import examine
from millstream.engine.slate.options import SlateOptions
from millstream.errors import CannotOpen, CorruptionError, MillstreamError, OutcomeUnknown
from millstream.objects.address import parse_address
from millstream.objects.folder import ObjectFolder
from tests.integration.faulty_objects import append_until_it_works, values
from tests.kit.objects import Fault, ObjectProxy

pytestmark = [pytest.mark.requires("s3"), pytest.mark.faults, pytest.mark.slow]

QUICK = SlateOptions(commit_timeout_s=2.0)


def assert_nothing_was_lost(ms: millstream.Millstream) -> None:
    """Around an append whose outcome nobody knew, what was acknowledged is there, and appends go on."""
    append_until_it_works(ms, b"after", Producer("p", sequence=0))
    found = values(ms)
    assert found[0] == b"before"
    assert found[-1] == b"after"
    assert set(found) <= {b"before", b"doubtful", b"after"}


@pytest.mark.parametrize("fault", ["refuse", "lose", "repeat"])
def test_a_fault_now_and_then_loses_nothing(proxy: ObjectProxy, address: str, fault: Fault) -> None:
    chance = random.Random(os.environ["MILLSTREAM_SEED"])
    with millstream.open(address, options=QUICK) as ms:
        proxy.script = lambda _method, _path: fault if chance.random() < 0.15 else None
        for number in range(30):
            producer = Producer("p", sequence=number)
            append_until_it_works(ms, b"%d" % number, producer)
        proxy.script = None
        assert values(ms) == [b"%d" % number for number in range(30)]
    with millstream.open(address) as ms:
        assert values(ms) == [b"%d" % number for number in range(30)]


def test_an_object_store_that_is_away_is_waited_for_and_comes_back(
    proxy: ObjectProxy, address: str
) -> None:
    with millstream.open(address, options=QUICK) as ms:
        append_until_it_works(ms, b"before", Producer("before", sequence=0))
        proxy.script = lambda _method, _path: "refuse"
        with pytest.raises(OutcomeUnknown):
            ms.log("a").append(b"doubtful")
        with pytest.raises(MillstreamError):
            ms.log("a").append(b"refused")
        assert values(ms) == [b"before"]  # reads go on
        proxy.script = None
        assert_nothing_was_lost(ms)


def test_a_bucket_that_denies_writes_is_named_and_taken_up_again(
    proxy: ObjectProxy, address: str
) -> None:
    with millstream.open(address, options=QUICK) as ms:
        append_until_it_works(ms, b"before", Producer("before", sequence=0))
        proxy.script = lambda method, _path: "deny" if method == "PUT" else None
        with pytest.raises(MillstreamError):
            ms.log("a").append(b"doubtful")
        assert values(ms) == [b"before"]  # reads go on
        with pytest.raises(CannotOpen, match=r"AccessDenied|403|denied") as refused:
            millstream.open(address)
        assert refused.value.test == "put_if_absent"
        proxy.script = None
        assert_nothing_was_lost(ms)


def test_a_damaged_object_is_noticed(proxy: ObjectProxy, address: str) -> None:
    with millstream.open(address) as ms:
        ms.log("a").append_many([b"%d" % n * 50 for n in range(2_000)])
        ms.fold()
    objects = ObjectFolder(parse_address(address))
    kept = [one.name for one in objects.list() if one.name.startswith("compacted/")]
    assert kept
    for name in kept:
        found = objects.get(name)
        assert found is not None
        flipped = bytearray(found.data)
        for at in range(0, len(flipped) // 2, 97):
            flipped[at] ^= 4
        objects.put(name, bytes(flipped))
    with pytest.raises(MillstreamError) as noticed, millstream.open(address) as ms:
        values(ms)
    assert isinstance(noticed.value, CorruptionError)
    for name in kept:
        objects.delete(name)
    with pytest.raises(MillstreamError), millstream.open(address, options=QUICK) as ms:
        values(ms)


def test_the_doctor_names_every_object_that_is_missing(proxy: ObjectProxy, address: str) -> None:
    with millstream.open(address) as ms:
        ms.log("a").append_many([b"%d" % n * 50 for n in range(2_000)])
        ms.fold()
    objects = ObjectFolder(parse_address(address))
    kept = [one.name for one in objects.list("compacted")]
    assert examine(address).healthy
    for name in kept:
        objects.delete(name)
    report = examine(address)
    assert not report.healthy
    assert not report.complete
    told = " ".join(problem.message for problem in report.problems)
    assert all(f"{name} is missing" in told for name in kept)


@pytest.mark.parametrize("behind", [1, 2, 3])
def test_a_commit_that_is_missing_between_others_is_named(
    proxy: ObjectProxy, address: str, behind: int
) -> None:
    with millstream.open(address) as ms:  # and not closed before it is looked at
        for number in range(5):
            ms.log("a").append(b"%d" % number)
        objects = ObjectFolder(parse_address(address))
        gone = sorted(one.name for one in objects.list("wal"))[-1 - behind]
        assert examine(address).healthy
        objects.delete(gone)
        report = examine(address)
        assert [problem.message for problem in report.problems] == [
            f"SlateDB: the object {gone} is missing"
        ]
        assert not report.complete
        for mode in ("rw", "r"):
            with pytest.raises(CorruptionError, match=gone):
                millstream.open(address, mode=mode)
