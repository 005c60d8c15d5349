"""The two protocols as one value: a call with its action and its parameters, and answers as bytes. Pure.

In AWS JSON 1.0 a header names the action and the body has the parameters. In the Query protocol the
body is a form, and answers are XML. Numbers, times and limits mean the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from millstream.server.gateways.sqs import form, xml
from millstream.server.gateways.sqs.errors import SqsError

T = TypeVar("T", bound=Struct)

TARGET = "AmazonSQS."
JSON_TYPE = b"application/x-amz-json-1.0"
XML_TYPE = b"text/xml"
BODY_BYTES_MAX = 16 * 1024 * 1024
"""The largest body: a batch of 1 MiB in which every byte is written with six."""

_decoders: dict[type[Struct], msgspec.json.Decoder[Any]] = {}
_encode = msgspec.json.Encoder().encode


class ParsedRequest(NamedTuple):
    """A request as it was read: the action, and its parameters in one of both forms."""

    action: str
    version: str
    """The version of the API that a form names; empty in JSON."""
    is_json: bool
    body: bytes
    fields: form.Tree

    def decode(self, shape: type[T]) -> T:
        """Return the parameters as a shape."""
        if self.is_json:
            return _decoded(self.body, shape)
        try:
            return msgspec.convert(form.parameters_of(self.fields), shape, strict=False)
        except msgspec.ValidationError as error:
            raise SqsError(
                "MalformedInput", f"The form does not fit the action: {error}."
            ) from None


class SqsAnswer(NamedTuple):
    """An answer in bytes."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


def _decoded(body: bytes, shape: type[T]) -> T:
    decoder = _decoders.get(shape)
    if decoder is None:
        decoder = _decoders[shape] = msgspec.json.Decoder(shape)
    try:
        result: T = _decoded_by(decoder, body or b"{}")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SqsError(
            "SerializationException", f"The body does not fit the action: {error}."
        ) from None
    return result


def _decoded_by(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Decode a body; a parameter that is null is missing."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        if b"null" not in body:
            raise
    return decoder.decode(_encode(_without_nulls(msgspec.json.decode(body))))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def parse_json(target: str, body: bytes) -> ParsedRequest:
    """Read a request of AWS JSON 1.0; its body is decoded when its shape is known."""
    return ParsedRequest(target.removeprefix(TARGET), "", True, body, {})


def parse_form(body: bytes) -> ParsedRequest:
    """Read a request of the Query protocol."""
    fields = form.tree_of(body)
    action, version = fields.pop("Action", ""), fields.pop("Version", "")
    if not isinstance(action, str) or not isinstance(version, str) or not action:
        raise SqsError("MissingAction", "The request must contain the parameter Action.")
    return ParsedRequest(action, version, False, b"", fields)


def json_answer(result: Mapping[str, Any] | None, request_id: str) -> SqsAnswer:
    """Return the answer of an action in JSON; an action without a result has an empty body."""
    body = b"" if result is None else _encode(result)
    return SqsAnswer(200, _headers(JSON_TYPE, request_id, body), body)


def json_error(error: SqsError, request_id: str) -> SqsAnswer:
    """Return an error in JSON, with both codes."""
    body = _encode({"__type": f"com.amazonaws.sqs#{error.code}", "message": error.message})
    query = f"{error.query_code};{error.fault}".encode()
    return SqsAnswer(
        error.json_status,
        [*_headers(JSON_TYPE, request_id, body), (b"x-amzn-query-error", query)],
        body,
    )


def xml_answer(
    action: str, result: Mapping[str, Any] | None, request_id: str, *, namespace: str
) -> SqsAnswer:
    """Return the answer of an action in XML."""
    body = xml.document(action, result, request_id, namespace=namespace)
    return SqsAnswer(200, _headers(XML_TYPE, request_id, body), body)


def xml_error(error: SqsError, request_id: str, *, namespace: str) -> SqsAnswer:
    """Return an error in XML."""
    body = xml.error_document(
        error.query_code, error.message, request_id, fault=error.fault, namespace=namespace
    )
    return SqsAnswer(error.status, _headers(XML_TYPE, request_id, body), body)


def no_operation(request_id: str) -> SqsAnswer:
    """Return the answer to the address of a queue without an action, as AWS has it."""
    body = b"<UnknownOperationException/>"
    return SqsAnswer(404, _headers(XML_TYPE, request_id, body), body)


def _headers(kind: bytes, request_id: str, body: bytes) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-type", kind),
        (b"content-length", b"%d" % len(body)),
        (b"x-amzn-requestid", request_id.encode()),
    ]
