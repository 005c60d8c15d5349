"""Whatever can be stored can be synced, however it was batched and whatever the other side's limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millstream import Millstream
from millstream.errors import TooLarge
from millstream.limits import Limits
from millstream.testing import memory_store
from tests.unit.replica.copies import records

LIMITS = Limits(batch_records_max=10, batch_bytes_max=2_000)


def filled(ms: Millstream, many: Callable[[int], dict[str, Any]]) -> None:
    ms.log("x").append_many([b"%d" % n for n in range(95)], **many(95))
    ms.log("x").append(b"single")
    ms.log("x").append_many([b"y" * 500] * 20, **many(20))
    ms.log("x").append_many([b""] * 30, **many(30))


COLUMNS: dict[str, Callable[[int], dict[str, Any]]] = {
    "plain": lambda count: {},
    "with headers": lambda count: {"headers": [{"n": n, "text": "z" * 90} for n in range(count)]},
    "with some keys": lambda count: {"keys": [None if n % 3 else b"k" * 200 for n in range(count)]},
}


@pytest.mark.parametrize(
    "compress", [False, pytest.param(True, marks=pytest.mark.requires("zstd"))]
)
@pytest.mark.parametrize("columns", COLUMNS)
def test_blocks_larger_than_the_peers_become_several(columns: str, compress: bool) -> None:
    with memory_store() as a, memory_store(limits=LIMITS) as b, memory_store() as c:
        filled(a, COLUMNS[columns])
        a.sync(b, compress=compress)
        assert records(a, "x") == records(b, "x")
        a.log("x").append(b"more")
        b.sync(a)
        b.sync(c)
        assert records(a, "x") == records(c, "x")
        assert a.sync(b).logs == b.sync(c).logs == a.sync(c).logs == []
        b.fold()
        assert records(a, "x") == records(b, "x")


def test_a_value_that_the_peer_cannot_hold_is_refused() -> None:
    with memory_store() as a, memory_store(limits=Limits(value_bytes_max=10)) as b:
        a.log("x").append(b"x" * 11)
        with pytest.raises(TooLarge):
            a.sync(b)


def test_a_parcel_holds_no_more_blocks_than_can_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.replica.copies.parcel.BLOCKS_MAX", 3)
    monkeypatch.setattr("millstream.replica.copies.adoption.BLOCKS_MAX", 3)
    with memory_store() as a, memory_store() as b:
        for n in range(20):
            a.log("x").append_many([b"%d" % n] * 2)
        a.sync(b)
        assert records(a, "x") == records(b, "x")


def test_a_large_block_behind_small_ones_is_sent_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A frame holds one large block, and not others beside it."""
    monkeypatch.setattr("millstream.replica.copies.parcel.BLOCK_BYTES_MAX", 1_000)
    sizes = []
    with memory_store() as a, memory_store() as b:
        for n in range(4):
            a.log("x").append_many([b"%d" % n] * 5)
            a.log("x").append_many([b"z" * 90] * 9)
            a.log("x").append_many([b""] * 9, headers=[{"text": "t" * 300}] * 9)
        a.sync(b, progress=lambda one: sizes.append(one.bytes))
        assert records(a, "x") == records(b, "x")
    assert max(later - one for one, later in zip([0, *sizes], sizes, strict=False)) <= 1_200


@pytest.mark.parametrize("section", [7, 1_000_000])
def test_what_is_staged_is_committed_in_batches_that_can_be_synced(section: int) -> None:
    with memory_store(limits=LIMITS) as a, memory_store(limits=LIMITS) as b:
        with a.log("x").stage(section=section) as stage:
            for n in range(95):
                stage.append(b"%d" % n, key=b"k" * 150)
        blocks = list(a.log("x").read_blocks())
        assert max(one.count for one in blocks) <= 10
        a.sync(b)
        assert records(a, "x") == records(b, "x")
