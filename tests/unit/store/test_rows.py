"""Rows wherever they lie, and the entities over them."""

from __future__ import annotations

import pytest

from millstream.engine.commit import Commit
from millstream.format import keys
from millstream.log.model.head import Head, Name
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.overlay import Overlay
from millstream.store.state.view import Rows
from millstream.store.store import Store
from millstream.testing import MemoryEngine, Probe, memory_store


def row(number: int) -> bytes:
    return keys.entry(7, number)


def stored(*numbers: int) -> MemoryEngine:
    engine = MemoryEngine()
    with engine.write() as writer:
        writer.commit(Commit([(row(number), b"stored") for number in numbers]))
    return engine


def test_what_is_not_yet_at_home_lies_over_what_is() -> None:
    overlay = Overlay()
    overlay.put(1, [(row(2), b"held"), (row(5), b"held"), (row(9), b"held")])
    with stored(1, 2, 6).read() as snapshot:
        rows = Rows(overlay, snapshot)
        assert [rows.get(row(n)) for n in (1, 2, 5, 7)] == [b"stored", b"held", b"held", None]
        found = rows.scan(row(1), row(9), limit=9)
        assert found == [
            (row(1), b"stored"),
            (row(2), b"held"),
            (row(5), b"held"),
            (row(6), b"stored"),
        ]
        assert rows.scan(row(1), row(9), limit=2) == found[:2]


@pytest.mark.parametrize(("at", "found"), [(0, 1), (1, 1), (3, 5), (6, 6), (7, 9), (10, None)])
def test_the_row_that_covers_a_place_is_the_first_at_or_after_it(
    at: int, found: int | None
) -> None:
    overlay = Overlay()
    overlay.put(1, [(row(2), b""), (row(5), b""), (row(9), b"")])
    with stored(1, 2, 6).read() as snapshot:
        covering = Rows(overlay, snapshot).scan(row(at), row(99), limit=1)
    assert [key for key, _ in covering] == ([] if found is None else [row(found)])


def test_an_entity_is_asked_for_by_its_kind() -> None:
    with memory_store() as ms:
        ms.log("a").append(b"x")
        store: Store = Probe(ms).store
        log_id = store.view(lambda view: view.entity(keys.log_name("a"), Name).log_id)
        assert store.view(lambda view: view.entity(keys.head(log_id), Head).end) == 1
        with pytest.raises(AssertionError):
            store.view(lambda view: view.entity(keys.head(log_id), Name))


def test_an_operation_that_looks_sees_what_was_there_before_it() -> None:
    def put(tx: WriteTransaction) -> tuple[bytes | None, bytes | None]:
        tx.put(row(1), b"new")
        return tx.view.get(row(1)), tx.get(row(1))

    with memory_store() as ms:
        store: Store = Probe(ms).store
        assert store.run(put) == (None, b"new")
        assert store.view(lambda view: view.get(row(1))) == b"new"
