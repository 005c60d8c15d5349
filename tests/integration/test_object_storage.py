"""A store on a server of objects: moto's S3, sound, slow, and as imitations are that break promises.

Promises:

- Every view works on it as on a file, and is there when it is opened again.
- A server of objects that ignores a condition is refused, with the name of the test that failed.
- Of two writers one is fenced: it acknowledges nothing any more, says so plainly, and goes on reading.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, cycle
from pathlib import Path

import pytest

import millstream
from millstream import Millstream
from millstream.bench.objects import BUCKET, variables
from millstream.engine.slate.options import SlateOptions
from millstream.errors import (
    CannotOpen,
    Fenced,
    InvalidInput,
    MillstreamError,
    OutcomeUnknown,
    Recovering,
)
from tests.kit.objects import ObjectProxy

pytestmark = [pytest.mark.requires("s3"), pytest.mark.slow]

_NUMBERS = count()


@pytest.fixture
def address(server: str) -> Iterator[str]:
    """The address of a store that is not there yet."""
    with variables(server):
        yield f"s3://{BUCKET}/store-{next(_NUMBERS)}"


def fill(ms: Millstream) -> None:
    for number in range(30):
        ms.log("orders").append({"number": number}, key=b"k", headers={"n": number})
    ms.log("blocks").append_many([b"%d" % n * 50 for n in range(1_000)])
    jobs = ms.queue("jobs", sources=["orders"], start="earliest", filter="n >= 10")
    jobs.ack(jobs.claim(5))
    ms.log("orders").cursor("reader").take(3)
    ms.room("hall").send("note", {"text": "hello"})
    with ms.transaction() as tx:
        tx.append("orders", b"together")
        tx.put("jobs", b"together")


def seen(ms: Millstream) -> list[object]:
    found: list[object] = [
        (one.name, [(record.offset, record.value) for record in ms.log(one.name).read()])
        for one in ms.logs()
    ]
    info = ms.queue("jobs").info()
    assert info is not None
    return [*found, info.available, info.unrouted, info.in_flight, info.done]


def test_every_view_is_there_when_it_is_opened_again(address: str) -> None:
    with millstream.open(address) as ms:
        fill(ms)
        before = seen(ms)
        ms.fold()
        assert seen(ms) == before
    with millstream.open(address, create=False) as ms:
        assert seen(ms) == before
        assert len(ms.queue("jobs").claim(100)) == 16


def test_producers_and_consumers_work_on_a_bucket(address: str) -> None:
    with millstream.open(address) as ms:
        jobs, orders = ms.create_queue("jobs"), ms.log("orders")
        with jobs.producer() as puts, orders.producer() as appends:
            for number in range(500):
                puts.put(number)
                last = appends.append(number)
        assert last.offset() == 499
        with jobs.consumer(timeout=0) as consumer:
            for message in consumer:
                consumer.ack(message)
                if message.json() == 299:
                    break
        with orders.consumer("billing", start="earliest", timeout=0, auto_ack=True) as records:
            assert [record.json() for record in records] == [*range(500)]
        assert jobs.info().in_flight == 0
    with millstream.open(address) as ms:
        assert ms.log("orders").cursor("billing").info().lag == 0
        with ms.queue("jobs").consumer(timeout=0, auto_ack=True) as rest:
            assert [message.json() for message in rest] == [*range(300, 500)]


def test_a_reader_follows_the_writer(address: str) -> None:
    with millstream.open(address) as ms:
        ms.log("orders").append_many([b"%d" % n for n in range(100)])
        options = SlateOptions(follow_s=0.0)
        with millstream.open(address, mode="r", options=options) as reader:
            for number in range(3):
                ms.log("orders").append(b"more %d" % number)
                assert reader.log("orders").last().value == b"more %d" % number
            ms.fold()
            assert reader.log("orders").end_offset() == 103
            assert reader.log("orders").get(50).value == b"50"
            with pytest.raises(MillstreamError):
                reader.log("orders").append(b"no")


def test_a_store_that_is_missing_is_not_made_by_a_reader(address: str) -> None:
    with pytest.raises(CannotOpen, match="there is no store"):
        millstream.open(address, mode="r")
    with pytest.raises(CannotOpen, match="there is no store"):
        millstream.open(address, create=False)


def test_a_bucket_that_is_missing_is_named(address: str) -> None:
    with pytest.raises(CannotOpen, match="nowhere"):
        millstream.open("s3://nowhere/store")


@pytest.mark.parametrize(
    ("header", "test"), [("if-none-match", "put_if_absent"), ("if-match", "if_match")]
)
def test_a_server_that_ignores_a_condition_is_refused(
    proxy: ObjectProxy, header: str, test: str
) -> None:
    proxy.ignores = frozenset({header})
    with pytest.raises(CannotOpen, match=test) as refused:
        millstream.open(f"s3://{BUCKET}/refused-{test}")
    assert refused.value.test == test
    proxy.ignores = frozenset()
    millstream.open(f"s3://{BUCKET}/refused-{test}").close()


def test_the_second_writer_fences_the_first(address: str) -> None:
    with millstream.open(address, options=SlateOptions(follow_s=0.0)) as first:
        first.log("a").append(b"first")
        with millstream.open(address) as second:
            told: set[type[MillstreamError]] = set()
            while Fenced not in told:
                with pytest.raises(MillstreamError) as refused:
                    first.log("a").append(b"never")
                told.add(refused.type)
                assert told <= {OutcomeUnknown, Recovering, Fenced}
            with pytest.raises(Fenced):
                first.log("a").append(b"never")
            assert second.log("a").append(b"second") == 1
            assert [record.value for record in second.log("a").read()] == [b"first", b"second"]
            assert [record.value for record in first.log("a").read()] == [b"first", b"second"]
            first.close()
            assert second.log("a").append(b"third") == 2
            second.close()


def test_spark_reads_a_bucket_and_never_opens_it_to_write(address: str) -> None:
    from millstream.spark.place import make_place, reading, writing

    place = make_place(address, server="")
    with millstream.open(address) as ms:
        ms.log("orders").append_many([b"a", b"b"])
        with reading(place) as session:
            assert Millstream(session).log("orders").end_offset() == 2
        with pytest.raises(InvalidInput, match="fence"), writing(place):
            pass
        assert ms.log("orders").append(b"c") == 2  # it was not fenced


def test_what_was_read_is_cached_on_a_local_disk(address: str, tmp_path: Path) -> None:
    with millstream.open(address) as ms:
        ms.log("orders").append_many([b"x" * 100] * 5_000)
        ms.fold()
    options = SlateOptions(cache_folder=tmp_path / "cache", cache_bytes_max=64 * 1024 * 1024)
    with millstream.open(address, options=options) as ms:
        assert sum(1 for _ in ms.log("orders").read()) == 5_000
    assert any(path.is_file() for path in (tmp_path / "cache").rglob("*"))


def test_the_cache_on_a_local_disk_keeps_to_its_bound(address: str, tmp_path: Path) -> None:
    bound, folder = 9 * 1024 * 1024, tmp_path / "cache"
    with millstream.open(address) as ms:
        for _ in range(16):
            ms.log("orders").append_many([b"x" * 1_000] * 2_000)
        ms.fold()
    options = SlateOptions(
        cache_folder=folder, cache_bytes_max=bound, memory_cache_bytes=1024 * 1024
    )
    with millstream.open(address, options=options) as ms:
        log = ms.log("orders")
        assert sum(1 for _ in log.read()) == 32_000
        offsets = cycle(range(0, 32_000, 2_000))
        while not _keeps_to(bound, folder):
            # SlateDB looks at its bound when a part is read. One run waited in vain without reads.
            assert log[next(offsets)].value == b"x" * 1_000
        assert _size_of(folder) > 0


def _keeps_to(bound: int, folder: Path) -> bool:
    """Return whether the folder has at most so many bytes, now or soon: SlateDB tells no end."""
    until_s = time.monotonic() + 1.0
    while _size_of(folder) > bound:
        if time.monotonic() > until_s:
            return False
    return True


def _size_of(folder: Path) -> int:
    sizes = []
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            sizes.append(path.stat().st_size if path.is_file() else 0)
    return sum(sizes)
