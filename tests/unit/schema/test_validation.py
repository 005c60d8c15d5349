"""Records that fit pass, and the first misfit of another record is named with its path."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.schema.model import StructType
from millstream.schema.source import schema_of
from millstream.schema.validation import misfit, validator_of
from tests.unit.schema.schemas import STRUCTS, values_of
from tests.unit.schema.test_sources import Order

VALIDATOR = validator_of(schema_of(Order))
GOOD = b'{"orderId": 1, "items": [{"sku": "a"}], "colour": "blue", "unknown": [1]}'

FAULTS: dict[bytes, str] = {
    b"{}": "expected integer at $.orderId, given nothing: the field is missing",
    b"null": "expected object at $, given null",
    b"[]": "expected object at $, given the list []",
    b'{"orderId": "7", "items": []}': 'expected integer at $.orderId, given the text "7"',
    b'{"orderId": 1.5, "items": []}': "expected integer at $.orderId, given the number 1.5",
    b'{"orderId": 9223372036854775808, "items": []}': (
        "expected integer at $.orderId, given the number 9223372036854775808"
    ),
    b'{"orderId": 1, "items": [{"sku": "a"}, {"sku": null}]}': (
        "expected text at $.items[1].sku, given null"
    ),
    b'{"orderId": 1, "items": [{"sku": "a", "count": 0}]}': (
        "expected integer from 1 at $.items[0].count, given the number 0"
    ),
    b'{"orderId": 1, "items": [], "colour": "green"}': (
        "expected one of 'red', 'blue' at $.colour, given the text \"green\""
    ),
    b'{"orderId": 1, "items": [], "note": true}': "expected text or null at $.note, given true",
}


@pytest.mark.parametrize(("value", "sentence"), FAULTS.items())
def test_a_misfit_is_named_with_its_path(value: bytes, sentence: str) -> None:
    fault = VALIDATOR.fault([GOOD, None, value, b"{}"])
    assert fault is not None
    assert (fault.at, str(fault)) == (2, sentence)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"text",
        b"\xff\xfe",
        b'{"orderId": 1, "items": [',
        GOOD + b"x",
        GOOD + GOOD,
        b'{"orderId": 1, "items": [], "unknown": "\xff"}',
    ],
)
def test_what_is_not_json_is_refused(value: bytes) -> None:
    fault = VALIDATOR.fault([value])
    assert fault is not None
    assert str(fault).startswith("expected JSON at $, given the bytes")
    assert len(str(fault)) < 250


def test_a_value_that_is_nested_deeply_is_refused() -> None:
    deep = b'{"orderId": 1, "items": [], "unknown": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    fault = VALIDATOR.fault([deep])
    assert fault is not None
    assert "nested less deeply" in str(fault)


def test_values_that_share_json_do_not_pass_together() -> None:
    """The parts of a batch are checked one by one: not as one text."""
    parts = [b'{"orderId": 1, "items": [', b'{"sku": "a"}', b"]}"]
    assert VALIDATOR.fault(parts) is not None


@given(st.data(), STRUCTS)
def test_values_of_a_schema_fit_it(data: st.DataObject, schema: StructType) -> None:
    value = data.draw(values_of(schema))
    if value is not None:
        assert validator_of(schema).fault([msgspec.json.encode(value)]) is None


@given(st.data(), STRUCTS)
def test_the_decoder_and_the_explanation_agree(data: st.DataObject, schema: StructType) -> None:
    value: Any = data.draw(values_of(schema, odd=True))
    found = misfit(schema, value)
    fault = validator_of(schema).fault([msgspec.json.encode(value)])
    assert (fault and fault[1:]) == found
