"""The MD5 digests of SQS: known values, and moto's own computation on random attributes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.server.gateways.sqs.digests import (
    Attribute,
    digest_of_attributes,
    digest_of_body,
)
from tests.property.examples import examples


def test_the_body_is_digested_as_utf_8() -> None:
    assert digest_of_body("hello world") == "5eb63bbbe01eeed093cb22bb8f5acdc3"
    assert digest_of_body("é") == "66ddcd97cfdeabb2f6fb8a999b4bc76f"


KINDS = st.sampled_from(["String", "Number", "Binary"])
LABELS = st.sampled_from(["", ".custom", ".float", ".png", ".é"])
NAMES = st.text("abcXYZ019_.-", min_size=1, max_size=12)


@st.composite
def attribute(draw: st.DrawFn) -> Attribute:
    kind = draw(KINDS)
    value: str | bytes
    if kind == "Binary":
        value = draw(st.binary(min_size=1, max_size=40))
    elif kind == "Number":
        value = str(draw(st.integers() | st.floats(allow_nan=False)))
    else:
        value = draw(st.text(min_size=1, max_size=40).filter(lambda text: text.isprintable()))
    return Attribute(kind + draw(LABELS), value)


@settings(max_examples=examples(200))
@given(st.dictionaries(NAMES, attribute(), min_size=1, max_size=10))
def test_attributes_have_the_digest_that_moto_computes(attributes: dict[str, Attribute]) -> None:
    models: Any = pytest.importorskip("moto.sqs.models")
    message = models.Message("id", "body")
    message.message_attributes = {
        name: {
            "DataType": each.data_type,
            "BinaryValue" if isinstance(each.value, bytes) else "StringValue": each.value,
        }
        for name, each in attributes.items()
    }
    assert digest_of_attributes(attributes) == message.attribute_md5
    backwards = dict(reversed(attributes.items()))
    assert digest_of_attributes(backwards) == digest_of_attributes(attributes)


def test_name_type_label_and_value_all_count() -> None:
    digests = {
        digest_of_attributes({"a": Attribute("String", "1")}),
        digest_of_attributes({"b": Attribute("String", "1")}),
        digest_of_attributes({"a": Attribute("Number", "1")}),
        digest_of_attributes({"a": Attribute("String.x", "1")}),
        digest_of_attributes({"a": Attribute("String", "2")}),
        digest_of_attributes({"a": Attribute("String", b"1")}),
    }
    assert len(digests) == 6
