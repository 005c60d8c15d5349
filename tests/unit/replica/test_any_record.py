"""Any record is the same in a copy, a fork, a reopened file, and after every fold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import strategies as st

import millstream
from millstream import Headers, Item, Record
from millstream.doctor import examine
from tests.records import ITEMS

any_of_them = hypothesis.settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[
        hypothesis.HealthCheck.function_scoped_fixture,
        hypothesis.HealthCheck.too_slow,
    ],
)


def given(item: Item) -> tuple[Any, ...]:
    key = item.key.encode() if isinstance(item.key, str) else item.key
    return item.value, key, Headers(item.headers or {}).pairs()


def seen(one: Record) -> tuple[Any, ...]:
    return one.value, one.key, one.headers.pairs()


@any_of_them
@hypothesis.given(st.lists(st.lists(ITEMS, min_size=1, max_size=4), min_size=1, max_size=5))
def test_records_survive_folds_reopening_forks_and_syncs(
    tmp_path_factory: Any, batches: list[list[Item]]
) -> None:
    path: Path = tmp_path_factory.mktemp("any")
    wanted = [given(item) for items in batches for item in items]
    with millstream.open(path / "a.db") as ms:
        for items in batches:
            ms.log("log").append_many(items)
        ms.fold()
        assert [seen(one) for one in ms.log("log").read()] == wanted
    with millstream.open(path / "a.db") as ms, millstream.open(path / "b.db") as other:
        assert [seen(one) for one in ms.log("log").read()] == wanted
        ms.sync(other)
        assert [seen(one) for one in other.log("log").read()] == wanted
        assert ms.sync(other).logs == []
        fork = ms.log("log").fork("fork")
        fork.append(None, headers=[("a", 1), ("a", 2)])
        assert [seen(one) for one in fork.read()] == [*wanted, (None, None, [("a", 1), ("a", 2)])]
    assert examine(path / "a.db").healthy
