"""Answers of the Query protocol as XML. Pure; nothing here reads XML.

A result is the same value as in JSON: names with texts, numbers, lists and maps. Lists and maps of SQS
are flattened: each item is an element of its own, without one around all of them.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Any
from xml.sax.saxutils import escape

SQS_NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
SNS_NAMESPACE = "http://sns.amazonaws.com/doc/2010-03-31/"
STS_NAMESPACE = "https://sts.amazonaws.com/doc/2011-06-15/"

_MAPS = {
    "Attributes": ("Attribute", "Name"),
    "MessageAttributes": ("MessageAttribute", "Name"),
    "Tags": ("Tag", "Key"),
}
"""The element of each entry of a map, and the element of its key."""

_LISTS = {
    "QueueUrls": "QueueUrl",
    "queueUrls": "QueueUrl",
    "Messages": "Message",
    "Failed": "BatchResultErrorEntry",
    "Results": "ListMessageMoveTasksResultEntry",
}

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def document(
    action: str, result: Mapping[str, Any] | None, request_id: str, *, namespace: str
) -> bytes:
    """Return the answer of an action; `result` is None for actions without a result."""
    content = ""
    if result is not None:
        is_flat = namespace == SQS_NAMESPACE
        fields = "".join(_fields(action, result)) if is_flat else _members(result)
        content = f"<{action}Result>{fields}</{action}Result>" if fields else f"<{action}Result/>"
    return _encoded(
        f'<{action}Response xmlns="{namespace}">{content}'
        f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>"
        f"</{action}Response>"
    )


def error_document(
    code: str, message: str, request_id: str, *, fault: str, namespace: str
) -> bytes:
    """Return an error."""
    return _encoded(
        f'<ErrorResponse xmlns="{namespace}"><Error><Type>{fault}</Type><Code>{_text(code)}</Code>'
        f"<Message>{_text(message)}</Message><Detail/></Error>"
        f"<RequestId>{request_id}</RequestId></ErrorResponse>"
    )


def _encoded(text: str) -> bytes:
    return f'<?xml version="1.0"?>{text}'.encode()


def _fields(action: str, fields: Mapping[str, Any]) -> Iterator[str]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _map(action, name, value)
        elif isinstance(value, list):
            element = f"{action}ResultEntry" if name == "Successful" else _LISTS.get(name)
            if element is None:
                items = "".join(f"<member>{_value(action, item)}</member>" for item in value)
                yield f"<{name}>{items}</{name}>"
            else:
                for item in value:
                    yield f"<{element}>{_value(action, item)}</{element}>"
        else:
            yield f"<{name}>{_text(value)}</{name}>"


def _value(action: str, value: Any) -> str:
    return "".join(_fields(action, value)) if isinstance(value, dict) else _text(value)


def _map(action: str, name: str, entries: Mapping[str, Any]) -> Iterator[str]:
    if name not in _MAPS:
        yield f"<{name}>{''.join(_fields(action, entries))}</{name}>"
        return
    element, key = _MAPS[name]
    for entry, value in entries.items():
        yield (
            f"<{element}><{key}>{_text(entry)}</{key}><Value>{_value(action, value)}</Value></{element}>"
        )


def _members(fields: Mapping[str, Any]) -> str:
    """Return fields as SNS has them: a list has a `member` for each item, a map an `entry`."""
    elements: list[str] = []
    for name, value in fields.items():
        if isinstance(value, dict):
            content = "".join(
                f"<entry><key>{_text(key)}</key><value>{_text(item)}</value></entry>"
                for key, item in value.items()
            )
        elif isinstance(value, list):
            content = "".join(f"<member>{_members(item)}</member>" for item in value)
        else:
            content = _text(value)
        elements.append(f"<{name}>{content}</{name}>")
    return "".join(elements)


def _text(value: Any) -> str:
    """Return a value as text that XML can hold; a carriage return would be read as a line feed."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return b64encode(value).decode()
    text = _FORBIDDEN.sub("\ufffd", str(value))
    return escape(text, {"\r": "&#13;", '"': "&quot;"})
