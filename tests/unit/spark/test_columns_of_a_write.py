"""Promise: a column that would not be written is refused by its name, and nothing of a row is told."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millstream.errors import InvalidInput
from millstream.spark.sink.rows import headers_of
from millstream.spark.sink.writer import name_columns


def test_a_topic_beside_the_option_log_is_refused_without_its_value() -> None:
    rows = pa.record_batch({"0": ["t0", "t1"], "1": [b"a", b"b"]})
    with pytest.raises(InvalidInput) as refused:
        name_columns(rows, ["topic", "value"], by_topic=False)
    assert str(refused.value) == (
        "the column 'topic' would not be written, because the store or an option says it; leave it "
        "out with select(…)"
    )
    assert name_columns(rows, ["topic", "value"], by_topic=True).schema.names == ["topic", "value"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([{"a": 1}]),
        pa.array([["ab"]]),
        pa.array(["ab"]),
        pa.array([[(1, "x")]], pa.map_(pa.int64(), pa.string())),
    ],
    ids=["a struct", "a list of texts", "a text", "a map of numbers"],
)
def test_headers_of_another_type_are_refused(column: pa.Array) -> None:
    with pytest.raises(InvalidInput, match="headers is a map with names of type string"):
        headers_of(column)
