"""Calls of SlateDB by threads: the fast path answers what the plain one answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.engine.slate import fast_binding
from millstream.engine.slate.binding import Binding, check_version, load, run
from millstream.engine.slate.fast_binding import FAST_RELEASES, FastBinding, bind
from millstream.engine.slate.rows import SlateImage, SlateSnapshot
from millstream.errors import CannotOpen, StoreError

pytestmark = pytest.mark.requires("s3")


@pytest.fixture(scope="module")
def module() -> Any:
    return load()


@pytest.fixture(scope="module")
def database(module: Any) -> Iterator[Any]:
    made = run(module.DbBuilder("trial", module.ObjectStore.resolve("memory:///")).build())
    yield made
    run(made.shutdown())


def written(binding: Binding, database: Any, rows: dict[bytes, bytes]) -> Any:
    """A snapshot of a database that had all rows of the trial replaced."""
    batch = binding.module.WriteBatch()
    before = run(database.snapshot())
    for key, _ in Binding(binding.module).scan(before, b"\x00", b"\xff\xff", 100_000):
        binding.delete(batch, key)
    for key, value in rows.items():
        binding.put(batch, key, value)
    run(database.write(batch))
    return run(database.snapshot())


@given(
    rows=st.dictionaries(
        st.binary(min_size=1, max_size=40).filter(lambda key: b"\x00" <= key < b"\xff\xff"),
        st.binary(max_size=300),
        min_size=1,
        max_size=12,
    )
)
def test_the_fast_path_reads_and_writes_the_same_rows(
    module: Any, database: Any, rows: dict[bytes, bytes]
) -> None:
    plain, fast = Binding(module), FastBinding(module)
    for writer in (plain, fast):
        snapshot = written(writer, database, rows)
        for reader in (plain, fast):
            found = reader.scan(snapshot, b"\x00", b"\xff\xff", 100)
            assert found == sorted(rows.items())
            assert {key: reader.get(snapshot, key) for key in rows} == rows
            assert reader.get(snapshot, b"\x00missing") == rows.get(b"\x00missing")
            first = sorted(rows)[0]
            assert reader.scan(snapshot, first, first + b"\x00", 1) == [(first, rows[first])]


@pytest.mark.parametrize("size", [0, 1, 4095, 65_536, 1_000_003])
def test_values_of_any_size_pass_the_fast_path(module: Any, database: Any, size: int) -> None:
    value = bytes(range(251)) * (size // 251 + 1)
    snapshot = written(FastBinding(module), database, {b"key": value[:size]})
    assert Binding(module).get(snapshot, b"key") == value[:size]
    assert FastBinding(module).get(snapshot, b"key") == value[:size]


def test_the_pinned_version_takes_the_fast_path() -> None:
    assert type(bind()) is FastBinding
    assert "0.17.0" in FAST_RELEASES


def test_another_release_is_bound_by_public_names_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fast_binding, "FAST_RELEASES", frozenset({"0.0.1"}))

    assert type(bind()) is Binding

    assert "slow_binding release=0." in caplog.text
    assert "fast_releases=0.0.1" in caplog.text


@pytest.mark.parametrize("version", ["0.8.2", "0.13.9", "0.9"])
def test_a_version_that_can_lose_writes_is_refused(version: str) -> None:
    with pytest.raises(CannotOpen, match=r"0\.14 or newer") as refused:
        check_version(version)
    assert refused.value.version == version


@pytest.mark.parametrize("version", ["0.14.0", "0.17.0", "1.0", "0.20.1rc1"])
def test_a_newer_version_is_taken(version: str) -> None:
    check_version(version)


def test_an_error_of_slatedb_reaches_the_caller(module: Any, database: Any) -> None:
    nothing = module.KeyRange(start=b"a", start_inclusive=True, end=b"a", end_inclusive=False)
    with pytest.raises(module.Error.Invalid):
        run(database.scan(nothing))


def test_a_coroutine_may_call_it_and_keeps_its_event_loop(module: Any, database: Any) -> None:
    async def use() -> bool:
        before = asyncio.get_running_loop()
        run(database.get(b"anything"))
        return asyncio.get_running_loop() is before

    assert asyncio.run(use())


def test_many_threads_call_it_side_by_side(module: Any, database: Any) -> None:
    snapshot = written(FastBinding(module), database, {b"%d" % n: b"v%d" % n for n in range(50)})
    wrong: list[object] = []

    def read() -> None:
        binding = FastBinding(module)
        for n in range(50):
            if (found := binding.get(snapshot, b"%d" % n)) != b"v%d" % n:
                wrong.append(found)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class Again:
    """What SlateDB's caller waits for while a request is repeated: it is woken, and waits once more."""

    def wait(self, most_s: float | None) -> bool:
        return most_s is None or most_s > 0

    def __await__(self) -> Iterator[Any]:
        while True:
            yield self


async def repeated_for_ever(*_: Any) -> None:
    await Again()  # type: ignore[misc]


def test_a_call_that_is_repeated_for_ever_ends_in_time() -> None:
    with pytest.raises(TimeoutError):
        run(repeated_for_ever(), most_s=0.001)


def test_a_read_that_is_repeated_for_ever_fails_and_may_be_tried_again(module: Any) -> None:
    class Silent:
        get = scan_with_options = repeated_for_ever

    binding = Binding(module)
    binding.read_timeout_s = 0.001
    snapshot = SlateSnapshot(SlateImage(binding, Silent(), place="s3://shop/a", last_seq=0))
    with pytest.raises(
        StoreError, match=r"s3://shop/a could not be read: no answer within 0.001 s"
    ):
        snapshot.get(b"key")
    with pytest.raises(StoreError, match="no answer within"):
        snapshot.scan(b"a", b"b", limit=10)


def test_a_call_without_an_answer_ends_in_time() -> None:
    class Never:
        def wait(self, most_s: float | None) -> bool:
            return False

        def __await__(self) -> Iterator[Any]:
            yield self

    async def call() -> None:
        await Never()  # type: ignore[misc]

    with pytest.raises(TimeoutError):
        run(call(), most_s=0.001)
