"""Rows of marks against a plain list that does the same."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream import Millstream
from millstream.replica.chain import Mark
from millstream.replica.copies import marks
from millstream.testing import memory_store
from tests.unit.replica.stores import store_of

LOG = 7


@pytest.fixture(scope="module", autouse=True)
def small_rows() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(marks, "MARKS_PER_ROW", 3)
        yield


def mark(offset: int) -> Mark:
    return Mark(offset, offset.to_bytes(32, "big"))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(1, 4), min_size=1, max_size=8)),
        st.tuples(st.just("prune"), st.integers(0, 60)),
        st.tuples(st.just("begin"), st.integers(0, 20)),
        st.tuples(st.just("fold"), st.just(0)),
    ),
    max_size=12,
)


def told(ms: Millstream, *, start: int = 0) -> list[Mark]:
    return store_of(ms).view(lambda view: list(marks.read_marks(view, LOG, start=start)))


def at(ms: Millstream, offset: int) -> Mark | None:
    return store_of(ms).view(lambda view: marks.mark_at(view, LOG, offset))


def last(ms: Millstream) -> Mark | None:
    return store_of(ms).view(lambda view: marks.last_mark(view, LOG))


@given(STEPS)
def test_marks_are_found_from_any_offset_on(steps: list[tuple[str, object]]) -> None:
    model: list[int] = []
    with memory_store() as ms:
        store = store_of(ms)
        for what, value in steps:
            if what == "add":
                assert isinstance(value, list)
                added: list[int] = []
                for distance in value:
                    added.append((added or model or [0])[-1] + distance)
                new = [mark(n) for n in added]
                store.run(partial(marks.add_marks, log_id=LOG, marks=new))
                model += added
            elif what == "fold":
                ms.log("another").append(b"")
                ms.fold()
            else:
                assert isinstance(value, int)
                if what == "begin":
                    store.run(partial(marks.begin_marks, log_id=LOG, base=mark(value)))
                    model = [value]
                else:
                    store.run(partial(marks.prune_marks, log_id=LOG, anchor=value))
                    found = [one.offset for one in told(ms)]
                    kept = max((one for one in model if one <= value), default=0)
                    assert [one for one in found if one >= kept] == [
                        one for one in model if one >= kept
                    ]
                    assert model[len(model) - len(found) :] == found
                    model = found
            assert told(ms) == [mark(one) for one in model]
            assert last(ms) == (mark(model[-1]) if model else None)
            for offset in range(70):
                below = max((one for one in model if one <= offset), default=None)
                assert at(ms, offset) == (None if below is None else mark(below))
                assert told(ms, start=offset) == [mark(one) for one in model if one >= offset]
