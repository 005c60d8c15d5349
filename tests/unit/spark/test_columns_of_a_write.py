"""Promise: a column that would not be written is refused by its name, and nothing of a row is told."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millstream.errors import InvalidInput
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
