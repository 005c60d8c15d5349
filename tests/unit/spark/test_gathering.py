"""Promise: rows that assign are gathered alike, whether they are looked at singly or by the batch."""

from __future__ import annotations

from array import array
from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import InvalidInput
from millstream.spark.sink.assignment import Gathered, gather

pytestmark = pytest.mark.requires("spark")

ROW = st.tuples(
    st.sampled_from(["a", "b", "ü"]),
    st.integers(0, 2**62),
    st.sampled_from(["q", "r", "s", None]),
)
Row = tuple[str, int, str | None]


def gathered(batches: list[list[Row]], *, singly: bool) -> Gathered:
    """The rows of a task; with a column for a wish that is null they are looked at one by one."""
    found = Gathered()
    offsets: dict[tuple[str, str], array[int]] = defaultdict(lambda: array("q"))
    for rows in batches:
        logs, numbers, queues = zip(*rows, strict=True) if rows else ((), (), ())
        columns = {
            "log": pa.array(["before", *logs], pa.string()),
            "offset": pa.array([9, *numbers], pa.int64()),
            "queue": pa.array(["before", *queues], pa.string()),
        }
        if singly:
            columns["priority"] = pa.nulls(len(rows) + 1, pa.int64())
        gather(pa.RecordBatch.from_pydict(columns).slice(1), offsets, found)
    found.offsets = {key: some.tobytes() for key, some in offsets.items()}
    return found


@given(st.lists(st.lists(ROW, max_size=20), max_size=4))
def test_rows_by_the_batch_are_those_that_were_looked_at_singly(batches: list[list[Row]]) -> None:
    assert gathered(batches, singly=False) == gathered(batches, singly=True)


def test_rows_go_to_their_queue_and_log_in_order() -> None:
    found = gathered([[("b", 5, "q"), ("a", 7, "q"), ("a", 2, "q"), ("a", 9, None)]], singly=False)
    assert found.offsets == {
        ("q", "a"): array("q", [7, 2]).tobytes(),
        ("q", "b"): array("q", [5]).tobytes(),
    }
    assert found.edges == {"a": (2, 9), "b": (5, 5)}


def test_a_row_without_a_log_or_an_offset_is_refused() -> None:
    columns = {"log": ["a", None], "offset": [1, 2], "queue": ["q", "q"]}
    with pytest.raises(InvalidInput, match="names no log or no offset"):
        gather(pa.RecordBatch.from_pydict(columns), {}, Gathered())
