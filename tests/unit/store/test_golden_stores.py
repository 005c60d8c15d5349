"""Promise: this version opens the stores that every earlier version has made, and loses nothing.

`tests/data/stores` has a small store of each layout, made by the version that wrote it. The name begins
with the format number. A release adds a store if its files differ; no store is ever removed or changed.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import millstream
from millstream.doctor import examine
from millstream.engine.sqlite.convert import convert_file
from millstream.engine.sqlite.pages import checksum_layer
from millstream.format.version import FORMAT

STORES = sorted((Path(__file__).parents[2] / "data" / "stores").glob("*.db.gz"))


@pytest.fixture(params=STORES, ids=lambda path: path.name.partition(".")[0])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a golden store."""
    if "checksums" in request.param.name and checksum_layer() is None:
        pytest.skip("apsw came without the checksum layer")
    path = tmp_path / "store.db"
    path.write_bytes(gzip.decompress(request.param.read_bytes()))
    return path


def check(ms: millstream.Millstream) -> None:
    """Compare a store with what its program wrote."""
    records = list(ms.log("orders").read())
    values = [b"order %d" % n for n in range(10)] + [b"batch %d" % n for n in range(20)]
    assert [record.value for record in records][:31] == [*values, b"unfolded"]
    assert [record.offset for record in records][:31] == list(range(31))
    assert (records[3].key, dict(records[3].headers), records[3].timestamp) == (
        b"k3",
        {"n": 3},
        1003,
    )
    assert list(ms.log("branch").read())[-1].value == b"only here"
    (cursor,) = ms.log("orders").cursors()
    assert (cursor.name, cursor.floor, list(cursor.ranges)) == ("billing", 3, [(5, 6)])
    assert dict(ms.log("orders").metadata)["owner"] == {"name": "ada"}
    queue = ms.queue("mail").info()
    assert queue is not None
    assert (queue.done, queue.available + queue.in_flight + queue.unrouted) == (1, 4)
    assert ms.room("lobby").info() is not None
    assert ms.sql("SELECT id, text FROM mine").rows == [(1, "mine")]


def test_there_is_a_store_of_each_format() -> None:
    assert {int(path.name.partition("-")[0]) for path in STORES} == set(range(1, FORMAT + 1))


def test_it_is_read_written_and_healthy(store: Path) -> None:
    with millstream.open(store, mode="r") as ms:
        check(ms)
    with millstream.open(store) as ms:
        check(ms)
        assert ms.log("orders").append(b"new") == 31
        ms.fold()
    with millstream.open(store) as ms:
        check(ms)
        assert ms.log("orders").end_offset() == 32
    assert examine(store).healthy


def test_it_is_converted_and_the_old_store_stays_beside_it(store: Path) -> None:
    copy = store.with_name("copy.db")
    if convert_file(store, copy=copy).is_needed:
        with millstream.open(copy, mode="r") as ms:
            check(ms)
    with millstream.open(store) as ms:
        check(ms)
