"""Adoption: what is staged in a bucket is published by its writer, once, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from millstream.embedded.session import open_file
from millstream.errors import CannotOpen, Conflict, NotFound, OutcomeUnknown, StoreError
from millstream.format.packing import pack_many
from millstream.limits import Limits
from millstream.log.reading.reader import read_blocks
from millstream.objects.address import parse_address
from millstream.objects.folder import ObjectFolder
from millstream.objects.lease import ObjectLease
from millstream.spark.sink.adopter import NOTE_MS_MAX, Adopter
from millstream.spark.sink.adoption import BEGIN_S_MAX, DONE_S_MAX, Asking, check_served, name_of
from millstream.spark.sink.bucket_staging import discard, stage
from millstream.spark.sink.publishing import LogBlock, Version
from millstream.spark.sink.staging import LEFTOVER_MS, StagedBlock, StagedFile, digest_of
from millstream.store.store import Store
from millstream.testing import SimulatedClock

pytestmark = pytest.mark.requires("s3")

TXN = "query:7"
VERSION = Version("query", 7)


@pytest.fixture
def objects() -> ObjectFolder:
    return ObjectFolder(parse_address("memory://trial/shop"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = open_file(str(tmp_path / "shop.db"))
    yield found
    found.close()


def block(*values: bytes, log: str = "") -> LogBlock:
    packed = pack_many(values, keys=None, headers=None, timestamps=None, limits=Limits())
    assert packed is not None
    return log, packed


def staged(objects: ObjectFolder, *blocks: LogBlock, txn: str = TXN, task: str = "0") -> StagedFile:
    return stage(objects, txn, task, blocks, Limits())


def asking(objects: ObjectFolder, then: Callable[[], object]) -> Asking:
    """A driver; what happens elsewhere happens while it waits, and time passes."""
    clock = SimulatedClock()

    def pause(_: float) -> None:
        clock.advance(10)
        then()

    return Asking(objects, clock=clock, pause=pause)


def values(store: Store, log: str = "orders") -> list[bytes]:
    blocks = read_blocks(store, log, start=0, stop=10**9, bytes_max=10**9)
    return [bytes(one.value or b"") for some in blocks for one in some.records()]


def names(objects: ObjectFolder) -> list[str]:
    return sorted(one.name for one in objects.list())


def test_staged_blocks_are_published_in_order_and_removed(
    objects: ObjectFolder, store: Store
) -> None:
    files = [
        staged(objects, block(b"a", b"b"), block(b"c"), task="0"),
        staged(objects, block(b"d", log="others"), block(b"e"), task="1"),
    ]
    adopter = Adopter(objects, lambda: store)
    assert asking(objects, adopter.look).adopt(TXN, VERSION, "orders", files) == 5
    assert values(store) == [b"a", b"b", b"c", b"e"]
    assert values(store, "others") == [b"d"]
    assert names(objects) == []


def test_a_batch_that_is_staged_again_is_published_once(
    objects: ObjectFolder, store: Store
) -> None:
    adopter = Adopter(objects, lambda: store)
    for expected in (1, 0):
        files = [staged(objects, block(b"a"))]
        assert asking(objects, adopter.look).adopt(TXN, VERSION, "orders", files) == expected
    assert values(store) == [b"a"]


class Silent(ObjectFolder):
    """A bucket that carries no answer any more once it was told to."""

    silent_after: int = 10**9

    def replace(self, name: str, data: bytes, tag: str) -> str | None:
        self.silent_after -= 1
        if self.silent_after < 0:
            raise StoreError("away")
        return super().replace(name, data, tag)


@pytest.mark.parametrize("version", [VERSION, None])
def test_of_a_writer_that_died_after_its_commit_the_next_one_publishes_nothing_twice(
    store: Store, version: Version | None
) -> None:
    objects = Silent(parse_address("memory://trial/shop"))
    files = [staged(objects, block(b"a"))]
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        objects.silent_after = 1 if looks == 1 else 10**9  # it begins, and never says that it did
        assert Adopter(objects, lambda: store).look() == (looks > 1)

    asking(objects, look).adopt(TXN, version, "orders", files)
    assert looks == 2
    assert values(store) == [b"a"]
    assert names(objects) == []


def test_a_writer_that_recovers_adopts_later(objects: ObjectFolder, store: Store) -> None:
    files, found = [staged(objects, block(b"a"))], [None, store]
    adopter = Adopter(objects, lambda: found.pop(0))
    assert asking(objects, adopter.look).adopt(TXN, VERSION, "orders", files) == 1
    assert not found


def test_a_job_that_no_writer_takes_up_is_withdrawn(objects: ObjectFolder, store: Store) -> None:
    files = [staged(objects, block(b"a"))]
    with pytest.raises(CannotOpen, match="nothing was published"):
        asking(objects, lambda: None).adopt(TXN, VERSION, "orders", files)
    assert Adopter(objects, lambda: store).look()
    assert names(objects) == [f"staging/{digest_of(TXN)}/{files[0].name}"]
    discard(objects, TXN)
    assert names(objects) == []
    assert values(store) == []


def test_a_job_that_a_writer_has_begun_is_waited_for_and_never_called_lost(
    objects: ObjectFolder, store: Store
) -> None:
    files = [staged(objects, block(b"a"))]
    steps = 0

    def look() -> None:
        nonlocal steps
        steps += 1
        if steps == 1:
            begun = objects.get(name_of(TXN))
            assert begun is not None
            objects.put(name_of(TXN), begun.data.replace(b'"asked"', b'"begun"'))

    with pytest.raises(OutcomeUnknown, match="may or may not be published"):
        asking(objects, look).adopt(TXN, VERSION, "orders", files)
    assert steps * 10 > BEGIN_S_MAX + DONE_S_MAX - 20


def spoiled(objects: ObjectFolder, file: StagedFile) -> None:
    name = f"staging/{digest_of(TXN)}/{file.name}"
    found = objects.get(name)
    assert found is not None
    objects.put(name, found.data[:-1] + bytes([found.data[-1] ^ 1]))


def cut(objects: ObjectFolder, file: StagedFile) -> None:
    objects.put(f"staging/{digest_of(TXN)}/{file.name}", b"ab")


def gone(objects: ObjectFolder, file: StagedFile) -> None:
    objects.delete(f"staging/{digest_of(TXN)}/{file.name}")


@pytest.mark.parametrize("harm", [spoiled, cut, gone])
def test_an_object_that_is_not_what_was_staged_is_refused(
    objects: ObjectFolder, store: Store, harm: Callable[[ObjectFolder, StagedFile], None]
) -> None:
    files = [staged(objects, block(b"a")), staged(objects, block(b"b"))]
    harm(objects, files[1])
    adopter = Adopter(objects, lambda: store)
    with pytest.raises(Conflict, match="run the job again"):
        asking(objects, adopter.look).adopt(TXN, VERSION, "orders", files)
    assert values(store) == []


def test_blocks_of_another_format_are_refused(objects: ObjectFolder, store: Store) -> None:
    from millstream.format.block import checksum

    data = msgspec.msgpack.encode({"format": "newer"})
    file = StagedFile(TXN, "0-1", [StagedBlock(len(data), checksum(data))])
    objects.put(f"staging/{digest_of(TXN)}/0-1", data)
    adopter = Adopter(objects, lambda: store)
    with pytest.raises(Conflict, match="version of Millstream"):
        asking(objects, adopter.look).adopt(TXN, VERSION, "orders", [file])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.replace(b'"format":1', b'"format":2'), "format 2"),
        (lambda data: data[:20], "cannot be read"),
    ],
)
def test_a_note_that_cannot_be_read_is_told_to_the_driver(
    objects: ObjectFolder, store: Store, change: Callable[[bytes], bytes], said: str
) -> None:
    files = [staged(objects, block(b"a"))]
    adopter = Adopter(objects, lambda: store)

    def look() -> None:
        found = objects.get(name_of(TXN))
        assert found is not None
        objects.put(name_of(TXN), change(found.data))
        assert adopter.look()

    with pytest.raises(Conflict, match=said):
        asking(objects, look).adopt(TXN, VERSION, "orders", files)
    assert values(store) == []


def test_what_the_store_refuses_is_the_drivers_error(objects: ObjectFolder, store: Store) -> None:
    files = [staged(objects, block(b"a"))]
    adopter = Adopter(objects, lambda: store)
    with pytest.raises(NotFound, match="no queue"):
        asking(objects, adopter.look).adopt(TXN, VERSION, "queue:none", files)
    assert names(objects) == []


def test_of_two_runs_of_a_job_the_second_takes_the_place_of_the_first(
    objects: ObjectFolder, store: Store
) -> None:
    files = [staged(objects, block(b"a"))]
    adopter = Adopter(objects, lambda: store)

    def second() -> None:
        again = [staged(objects, block(b"a"))]
        assert asking(objects, adopter.look).adopt(TXN, VERSION, "orders", again) == 1
        objects.put(
            name_of(TXN), b'{"token":"other","txn":"","version":["",0],"log":"","files":[]}'
        )

    with pytest.raises(Conflict, match="another run"):
        asking(objects, second).adopt(TXN, VERSION, "orders", files)
    assert values(store) == [b"a"]


def test_left_overs_expire(objects: ObjectFolder, store: Store) -> None:
    for name in ("lease", "staging/aa/0", "adopt/bb"):
        objects.put(name, b"x")
    put_ms = objects.modified_ms("lease")
    assert put_ms is not None
    assert Adopter(objects, lambda: store).look()
    assert names(objects) == ["adopt/bb", "lease", "staging/aa/0"]
    assert Adopter(objects, lambda: store, now_ms=lambda: put_ms + NOTE_MS_MAX + 9_000).look()
    assert names(objects) == ["lease", "staging/aa/0"]
    assert Adopter(objects, lambda: store, now_ms=lambda: put_ms + LEFTOVER_MS + 9_000).look()
    assert names(objects) == ["lease"]


def test_a_bucket_without_a_server_is_refused_before_anything_is_staged(
    objects: ObjectFolder,
) -> None:
    with pytest.raises(CannotOpen, match="millstream serve"):
        check_served(objects)
    lease = ObjectLease(objects, "a")
    lease.seize()
    check_served(objects)
    lease.give_back()
    with pytest.raises(CannotOpen, match="millstream serve"):
        check_served(objects)


def test_a_thread_adopts_when_it_is_called(objects: ObjectFolder, store: Store) -> None:
    adopter = Adopter(objects, lambda: store)
    adopter.start()
    try:
        files = [staged(objects, block(b"a"))]
        pause = lambda _: adopter.call()  # noqa: E731
        assert Asking(objects, pause=pause).adopt(TXN, VERSION, "orders", files) == 1
    finally:
        adopter.close()
    assert values(store) == [b"a"]
