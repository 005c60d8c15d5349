"""A draft shows the stored rows as they will be, and becomes one value that makes them so."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.embedded.session import open_store
from millstream.engine.commit import Commit, Row, Spooled
from millstream.engine.memory.engine import MemoryEngine
from millstream.errors import InvalidInput, WriteFailed
from millstream.format import keys
from millstream.store.commit import draft as drafts
from millstream.store.commit.draft import Draft
from millstream.store.commit.ticket import Ticket
from millstream.store.commit.transaction import WriteTransaction
from millstream.testing import SimulatedClock
from tests.conformance.kits import all_rows, apply

KEYS = [keys.entry(1, n) for n in range(8)] + [keys.payload(n) for n in range(4)]


def stored(*rows: Row) -> MemoryEngine:
    engine = MemoryEngine()
    apply(engine, Commit(rows))
    return engine


key = st.sampled_from(KEYS)
puts = st.dictionaries(key, st.binary(max_size=3), max_size=4)
steps = st.one_of(
    st.tuples(st.just("put"), puts),
    st.tuples(st.just("delete"), st.lists(key, max_size=4)),
    st.tuples(st.just("range"), st.integers(0, 8), st.integers(0, 8)),
    st.tuples(st.just("scan"), st.integers(0, 8), st.integers(0, 8), st.integers(0, 5)),
)


@given(before=puts, history=st.lists(steps, max_size=20), few=st.sampled_from([1, 32]))
def test_it_reads_as_if_everything_were_written_and_so_does_its_commit(
    before: dict[bytes, bytes], history: list[tuple[object, ...]], few: int
) -> None:
    engine, model = stored(*before.items()), dict(before)
    with pytest.MonkeyPatch.context() as patch, engine.write() as writer:
        patch.setattr(drafts, "FEW", few)
        patch.setattr(drafts, "PAGE_ROWS", 2)
        draft = Draft(writer)
        for step in history:
            match step:
                case ("put", dict(rows)):
                    draft.put(rows.items())
                    model.update(rows)
                case ("delete", list(gone)):
                    draft.delete(gone)
                    for one in gone:
                        model.pop(one, None)
                case ("range", int(a), int(b)):
                    start, stop = keys.entry(1, a), keys.entry(1, b)
                    draft.delete_range(start, stop)
                    model = {k: v for k, v in model.items() if not start <= k < stop}
                case ("scan", int(a), int(b), int(limit)):
                    start, stop = keys.entry(1, a), keys.entry(1, b)
                    rows = sorted((k, v) for k, v in model.items() if start <= k < stop)
                    assert draft.scan(start, stop, limit=limit) == rows[:limit]
        assert all(draft.get(one) == model.get(one) for one in KEYS)
        writer.commit(draft.finish())
    assert all_rows(engine) == sorted(model.items())


def test_what_is_more_than_memory_should_hold_lies_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafts, "MEMORY_BYTES_MAX", 5_000)
    engine = stored()
    rows = [(keys.payload_block(n), bytes([n]) * 2_000) for n in range(9)]
    with engine.write() as writer:
        draft = Draft(writer, folder=tmp_path)
        held = [draft.hold(value) for _, value in rows]
        assert [type(value) for value in held] == [bytes] * 2 + [Spooled] * 7
        draft.put(rows)
        assert draft.get(rows[8][0]) == rows[8][1]
        assert draft.scan(rows[7][0], rows[8][0], limit=9) == [rows[7]]
        commit = draft.finish()
        assert not list(tmp_path.iterdir())  # it has no name, so that nothing is left of it
        writer.commit(commit)
    assert all_rows(engine) == rows
    assert list(commit.rows) == list(commit.rows) == rows


def test_rows_that_are_dropped_one_after_the_other_are_passed_over_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A group of claims takes the first row of an index again and again."""
    monkeypatch.setattr(drafts, "PAGE_ROWS", 8)
    engine = stored(*[(keys.entry(1, n), b"") for n in range(1_000)])
    start, stop = keys.entry(1, 0), keys.entry(1, 1_000)
    with engine.write() as writer:
        read = 0
        inner = writer.scan

        def counting(start: bytes, stop: bytes, *, limit: int) -> list[Row]:
            nonlocal read
            found = inner(start, stop, limit=limit)
            read += len(found)
            return found

        writer.scan = counting  # type: ignore[method-assign]
        draft = Draft(writer)
        for n in range(900):
            assert draft.scan(start, stop, limit=1) == [(keys.entry(1, n), b"")]
            draft.delete([keys.entry(1, n)])
    assert read < 900 * 10


def test_an_operation_that_fails_after_much_was_spooled_undoes_itself_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drafts, "MEMORY_BYTES_MAX", 5_000)
    store = open_store(MemoryEngine(), clock=SimulatedClock())
    large = b"x" * 3_000

    def fails(tx: WriteTransaction) -> None:
        for number in range(10, 20):
            tx.put(keys.payload(number), large)
        assert tx.get(keys.payload(19)) == large
        raise InvalidInput("no")

    def succeeds(tx: WriteTransaction) -> None:
        assert tx.get(keys.payload(19)) is None
        tx.put(keys.payload(1), large)
        tx.put(keys.payload(2), large)

    tickets: list[Ticket[None]] = [Ticket(one, lambda _: None) for one in (fails, succeeds)]
    with store.hold():
        store.committer.commit_group(tickets)
    assert [type(ticket.error) for ticket in tickets] == [InvalidInput, type(None)]
    with store.engine.read() as snapshot:
        rows = snapshot.scan(*keys.range_of(keys.prefix(keys.PAYLOAD)), limit=99)
    assert rows == [(keys.payload(1), large), (keys.payload(2), large)]
    store.close()


def test_a_commit_that_cannot_be_spooled_stores_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafts, "MEMORY_BYTES_MAX", 5_000)
    engine = stored((keys.payload(1), b"old"))
    with engine.write() as writer:
        draft = Draft(writer, folder=tmp_path / "is not there")
        with pytest.raises(WriteFailed, match="nothing was stored"):
            draft.put([(keys.payload(number), b"x" * 3_000) for number in range(5)])
    assert all_rows(engine) == [(keys.payload(1), b"old")]
