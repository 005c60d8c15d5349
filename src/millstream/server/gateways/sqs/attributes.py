"""Attributes of messages: checked as AWS checks them, and kept as headers of the record. Pure.

An attribute is a header with its name, so filters see it: a Number becomes a number if its text
survives that. One more header remembers the types that are not plain String. Headers whose names begin
with `AWS.` are the gateway's; no attribute may have such a name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import msgspec

from millstream.header import HeaderValue
from millstream.server.gateways.sqs.digests import Attribute
from millstream.server.gateways.sqs.errors import SqsError, invalid, invalid_value
from millstream.server.gateways.sqs.shapes import AttributeValue, AttributeValues

ATTRIBUTES_MAX = 10
NAME_CHARS_MAX = 256
TYPE_CHARS_MAX = 256

OWN = "AWS."
"""The beginning of the names of the gateway's own headers."""

TYPES = "AWS.DataTypes"
GROUP = "AWS.MessageGroupId"
DEDUPLICATION = "AWS.MessageDeduplicationId"
TRACE = "AWS.TraceHeader"
SENDER = "AWS.SenderId"
MESSAGE_ID = "AWS.MessageId"

LETTER = "dead-letter-"
"""The beginning of the names of the headers that a dead letter gets."""

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_TYPE = re.compile(r"(String|Number|Binary)(\.[^\x00-\x1f]+)?")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_INT_MAX = 2**63 - 1
_EVERY = frozenset({"All", "*", ".*"})

_types = msgspec.json.Decoder(dict[str, str]).decode


def has_only_allowed(text: str) -> bool:
    """Whether a text has only the characters that AWS allows in bodies."""
    return text.isprintable() or _FORBIDDEN.search(text) is None


def check_body(body: str) -> None:
    """Refuse a body with other characters than AWS allows."""
    if not has_only_allowed(body):
        raise SqsError(
            "InvalidMessageContents",
            "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | "
            "#xE000 to #xFFFD | #x10000 to #x10FFFF",
        )


def checked_attributes(values: AttributeValues) -> dict[str, Attribute]:
    """Return the attributes of a message, or refuse them."""
    if len(values) > ATTRIBUTES_MAX:
        raise invalid(
            f"Number of message attributes [{len(values)}] exceeds the allowed maximum "
            f"[{ATTRIBUTES_MAX}]."
        )
    for name in values:
        _check_name(name)
    return {name: _checked(name, value) for name, value in values.items()}


def checked_system_attributes(values: AttributeValues) -> dict[str, Attribute]:
    """Return the system attributes of a message: AWS knows only a trace header."""
    for name, value in values.items():
        if name != "AWSTraceHeader":
            raise invalid(
                f"Message system attribute name '{name}' is invalid. It must be 'AWSTraceHeader'."
            )
        if value.data_type != "String":
            raise invalid(
                "The message system attribute 'AWSTraceHeader' must have the type String."
            )
    return {name: _checked(name, value) for name, value in values.items()}


def _check_name(name: str) -> None:
    if not name:
        raise invalid("The message attribute name must not be empty.")
    if len(name) > NAME_CHARS_MAX:
        raise invalid("Length of message attribute name must be less than 256 bytes.")
    if name.lower().startswith(("aws.", "amazon.")):
        raise invalid("You can't use message attribute names beginning with 'AWS.' or 'Amazon.'.")
    is_wrong = _NAME.fullmatch(name) is None or name[0] == "." or name[-1] == "." or ".." in name
    if is_wrong or name.startswith(LETTER):
        raise invalid(
            "Can only include alphanumeric characters, hyphens, underscores, or dots, and no dots at "
            f"its ends or side by side: the message attribute name '{name}' is invalid."
        )


def _checked(name: str, value: AttributeValue) -> Attribute:
    data_type = value.data_type
    if not data_type:
        raise invalid(
            f"The message attribute '{name}' must contain a non-empty message attribute type."
        )
    match = _TYPE.fullmatch(data_type)
    if match is None or len(data_type) > TYPE_CHARS_MAX:
        raise invalid(
            f"The message attribute '{name}' has an invalid message attribute type, the set of "
            "supported type prefixes is Binary, Number, and String."
        )
    if value.string_list_values or value.binary_list_values:
        raise SqsError("UnsupportedOperation", "Message attribute list values are not supported.")
    if match[1] == "Binary":
        if not value.binary_value or value.string_value is not None:
            raise _no_value(name, "Binary")
        return Attribute(data_type, value.binary_value)
    text = value.string_value
    if not text or value.binary_value is not None:
        raise _no_value(name, "String")
    if not has_only_allowed(text):
        raise invalid(f"The message attribute '{name}' has a value with invalid characters.")
    if match[1] == "Number" and _NUMBER.fullmatch(text) is None:
        raise invalid(f"Can't cast the value of message attribute '{name}' to a number.")
    return Attribute(data_type, text)


def _no_value(name: str, kind: str) -> SqsError:
    return invalid(
        f"The message attribute '{name}' must contain non-empty message attribute value for message "
        f"attribute type '{kind}'."
    )


def size_of(attributes: Mapping[str, Attribute]) -> int:
    """Return the bytes of attributes: names, types and values count."""
    return sum(
        len(name.encode())
        + len(attribute.data_type.encode())
        + len(attribute.value if isinstance(attribute.value, bytes) else attribute.value.encode())
        for name, attribute in attributes.items()
    )


def headers_of(attributes: Mapping[str, Attribute]) -> dict[str, HeaderValue]:
    """Return the headers that keep attributes."""
    headers: dict[str, HeaderValue] = {}
    types: dict[str, str] = {}
    for name, attribute in attributes.items():
        headers[name] = _header_value(attribute)
        if attribute.data_type != "String":
            types[name] = attribute.data_type
    if types:
        headers[TYPES] = msgspec.json.encode(types).decode()
    return headers


def _header_value(attribute: Attribute) -> HeaderValue:
    value = attribute.value
    if isinstance(value, bytes) or not attribute.data_type.startswith("Number"):
        return value
    is_whole = len(value) < 20 and value.isascii() and value.isdigit()
    if is_whole and str(number := int(value)) == value:
        return number if number <= _INT_MAX else value
    try:
        return fraction if repr(fraction := float(value)) == value else value
    except ValueError:
        return value


def attributes_of(headers: Mapping[str, HeaderValue]) -> dict[str, Attribute]:
    """Return the attributes that headers keep; headers of other producers become attributes too."""
    types = _types_of(headers.get(TYPES))
    return {
        name: _attribute(value, types.get(name))
        for name, value in headers.items()
        if value is not None and not name.startswith((OWN, LETTER))
    }


def _types_of(text: HeaderValue) -> dict[str, str]:
    if not isinstance(text, str):
        return {}
    try:
        return _types(text)
    except msgspec.MsgspecError:
        return {}


def _attribute(value: HeaderValue, data_type: str | None) -> Attribute:
    if isinstance(value, bytes):
        return Attribute(data_type or "Binary", value)
    if isinstance(value, bool):
        return Attribute(data_type or "String", "true" if value else "false")
    if isinstance(value, int | float):
        return Attribute(data_type or "Number", repr(value))
    return Attribute(data_type or "String", str(value))


def selected(attributes: dict[str, Attribute], names: Collection[str]) -> dict[str, Attribute]:
    """Return the attributes that a consumer asks for: by name, `All`, `*`, `.*`, or `prefix.*`."""
    if not _EVERY.isdisjoint(names):
        return attributes
    prefixes = tuple(name[:-2] for name in names if name.endswith(".*"))
    return {
        name: attribute
        for name, attribute in attributes.items()
        if name in names or (prefixes and name.startswith(prefixes))
    }


def displayed(attributes: Mapping[str, Attribute]) -> dict[str, dict[str, object]]:
    """Return attributes as an answer has them."""
    return {
        name: {
            (
                "BinaryValue" if isinstance(attribute.value, bytes) else "StringValue"
            ): attribute.value,
            "DataType": attribute.data_type,
        }
        for name, attribute in attributes.items()
    }


def check_id(parameter: str, value: str) -> str:
    """Return a group's or a deduplication's id that AWS allows."""
    if not 1 <= len(value) <= 128 or not (value.isascii() and value.isprintable()) or " " in value:
        raise invalid_value(
            parameter,
            value[:200],
            f"{parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length.",
        )
    return value
