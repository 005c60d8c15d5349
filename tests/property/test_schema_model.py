"""Random histories of schema changes and appends: what is stored, refused and read equals a model."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream
from millstream.errors import InvalidInput
from millstream.schema.evolution import conflicts, conflicts_with, merged
from millstream.schema.history import version_at
from millstream.schema.model import StructType
from millstream.schema.validation import misfit
from tests.unit.schema.schemas import STRUCTS, values_of


@given(st.data())
def test_a_history_of_a_log_equals_the_model(data: st.DataObject) -> None:
    versions: list[tuple[int, StructType]] = []
    stored: list[Any] = []
    with millstream.open(":memory:") as ms:
        log = ms.log("orders")
        for _ in range(data.draw(st.integers(1, 8))):
            if not versions or data.draw(st.booleans()):
                _change(data, log, versions, len(stored))
            else:
                _append(data, log, versions[-1][1], stored)
        assert list(log.read(type=Any)) == stored  # type: ignore[arg-type]
        history = log.schemas()
        assert [(each.start, each.schema) for each in history] == versions
        for offset, value in enumerate(stored):
            version = version_at(history, offset)
            assert version is not None
            assert value is None or misfit(version.schema, value) is None


def _change(data: st.DataObject, log: Any, versions: list[Any], end: int) -> None:
    schema, force = data.draw(STRUCTS), data.draw(st.booleans())
    is_known = any(schema == earlier for _, earlier in versions)
    is_newest = bool(versions) and versions[-1][1] == schema
    breaks = conflicts_with([earlier for _, earlier in versions], schema)
    if is_newest or (is_known and not force):
        log.set_schema(schema, force=force)
    elif breaks and not force:
        with pytest.raises(InvalidInput) as refused:
            log.set_schema(schema)
        assert refused.value.conflicts == breaks
    else:
        log.set_schema(schema, force=force)
        versions.append((end, schema))


def _append(data: st.DataObject, log: Any, schema: StructType, stored: list[Any]) -> None:
    batch = data.draw(st.lists(values_of(schema, odd=data.draw(st.booleans())), min_size=1))
    batch = [value if isinstance(value, dict | None) else {"odd": value} for value in batch]
    packed = [None if value is None else json.dumps(value).encode() for value in batch]
    if all(value is None or misfit(schema, value) is None for value in batch):
        log.append_many(packed)
        stored += batch
    else:
        with pytest.raises(InvalidInput) as refused:
            log.append_many(packed)
        fits = [value is None or misfit(schema, value) is None for value in batch]
        assert refused.value.index == fits.index(False)
    assert log.end_offset() == len(stored)


@given(st.data(), STRUCTS, STRUCTS)
def test_records_of_an_old_version_fit_a_compatible_one(
    data: st.DataObject, old: StructType, other: StructType
) -> None:
    new = other if not conflicts(old, other) else merged([other, old])
    if not conflicts(old, new):
        assert misfit(new, data.draw(values_of(old))) is None
