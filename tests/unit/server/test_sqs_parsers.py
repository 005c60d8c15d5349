"""Both parsers of SQS with arbitrary bytes: every refusal is an error of AWS, and XML stays readable."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from contextlib import suppress
from typing import Any
from urllib.parse import quote_plus, urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.server.gateways.sqs import xml
from millstream.server.gateways.sqs.actions import ACTIONS
from millstream.server.gateways.sqs.attributes import (
    attributes_of,
    checked_attributes,
    headers_of,
)
from millstream.server.gateways.sqs.errors import SqsError
from millstream.server.gateways.sqs.form import tree_of
from millstream.server.gateways.sqs.protocol import ParsedRequest, parse_form, parse_json
from millstream.server.gateways.sqs.receipts import Receipt, receipt_of
from millstream.server.gateways.sqs.shapes import (
    AttributeValue,
    SendMessageBatchRequest,
    SendMessageRequest,
)
from millstream.server.gateways.sqs.xml import SQS_NAMESPACE

SHAPES = sorted({action.shape for action in ACTIONS.values()}, key=lambda shape: shape.__name__)
NAMES = (
    "Attribute",
    "Entries",
    "SendMessageBatchRequestEntry",
    "MessageAttribute",
    "Tag",
    "1",
    "2",
)
FIELDS = st.lists(st.sampled_from((*NAMES, "Name", "Key", "Value", "Id", "", "x")), max_size=9)


def decoded(request: ParsedRequest) -> None:
    for shape in SHAPES:
        with suppress(SqsError):
            request.decode(shape)


@given(st.binary(max_size=300))
def test_arbitrary_forms_are_read_or_refused(body: bytes) -> None:
    with suppress(SqsError):
        decoded(parse_form(b"Action=x&" + body))


@settings(max_examples=20)
@given(st.lists(st.tuples(FIELDS, st.text(max_size=5)), max_size=12))
def test_forms_of_known_names_are_read_or_refused(fields: list[tuple[list[str], str]]) -> None:
    pairs = [f"{'.'.join(names)}={quote_plus(value)}" for names, value in fields]
    with suppress(SqsError):
        decoded(parse_form("&".join(["Action=x", *pairs]).encode()))


@given(st.one_of(st.binary(max_size=200), st.integers(1, 5_000).map(lambda deep: b"[" * deep)))
def test_arbitrary_json_is_read_or_refused(body: bytes) -> None:
    decoded(parse_json("AmazonSQS.x", body))
    decoded(parse_json("AmazonSQS.x", b'{"Entries": ' + body))


def test_an_entity_in_a_form_stays_text() -> None:
    with pytest.raises(SqsError, match="Action"):
        parse_form(b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>')


@given(st.text(max_size=50), st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=3))
def test_answers_in_xml_hold_any_text(text: str, attributes: dict[str, str]) -> None:
    result: dict[str, Any] = {"Messages": [{"Body": text, "Attributes": attributes}]}
    document = xml.document("ReceiveMessage", result, "id", namespace=SQS_NAMESPACE)
    root = ElementTree.fromstring(document)
    (body,) = root.iter(f"{{{SQS_NAMESPACE}}}Body")
    assert len(body.text or "") == len(text)


@given(st.text(max_size=60))
def test_arbitrary_receipt_handles_are_refused(handle: str) -> None:
    with pytest.raises(SqsError) as caught:
        receipt_of(handle, "orders")
    assert caught.value.code == "ReceiptHandleIsInvalid"


@given(st.integers(0, 2**63 - 1), st.integers(1, 65_535), st.integers(0, 2**48))
def test_receipt_handles_belong_to_their_queue(claim: int, attempt: int, at_ms: int) -> None:
    receipt = Receipt(claim, attempt, at_ms)
    assert receipt_of(receipt.handle("orders"), "orders") == receipt
    with pytest.raises(SqsError):
        receipt_of(receipt.handle("orders"), "other")


NUMBERS = st.one_of(
    st.integers().map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(("007", "-0", "1e5", "1.50", ".5", "5.", "+1", "9" * 30, "9" * 5_000)),
)


@given(st.dictionaries(st.sampled_from(("a", "b-c", "d.e")), NUMBERS, min_size=1))
def test_numbers_keep_their_text(values: dict[str, str]) -> None:
    attributes = checked_attributes(
        {
            name: AttributeValue(data_type="Number.x", string_value=text)
            for name, text in values.items()
        }
    )
    assert attributes_of(headers_of(attributes)) == attributes


@given(st.text(max_size=20))
def test_forms_are_decoded_as_they_were_encoded(text: str) -> None:
    assert tree_of(urlencode({"a": text}).encode()) == {"a": text}


def test_a_batch_of_a_form_keeps_the_order_of_its_numbers() -> None:
    entry = "SendMessageBatchRequestEntry"
    body = f"Action=SendMessageBatch&{entry}.10.Id=b&{entry}.9.Id=a&{entry}.10.DelaySeconds=4"
    request = parse_form(body.encode()).decode(SendMessageBatchRequest)
    assert [(each.id, each.delay_seconds) for each in request.entries] == [("a", None), ("b", 4)]


@pytest.mark.parametrize(
    "body",
    [
        b'{"MessageAttributes":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
        b'{"QueueUrl":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"Unknown":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=["maps", "lists", "of an unknown name"],
)
def test_json_that_is_too_deep_is_refused(body: bytes) -> None:
    with pytest.raises(SqsError) as caught:
        parse_json("AmazonSQS.SendMessageBatch", body).decode(SendMessageRequest)
    assert caught.value.code == "SerializationException"


def test_an_empty_list_of_a_form_is_empty() -> None:
    request = parse_form(b"Action=SendMessageBatch&QueueUrl=q&Entries=")
    assert request.decode(SendMessageBatchRequest).entries == []
