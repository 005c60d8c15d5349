"""Forms of the Query protocol: names with dots and numbers, as a tree of parameters. Pure.

`SendMessageBatchRequestEntry.1.MessageAttribute.2.Value.StringValue=x` names a place in a tree. Lists and
maps are numbered, in any order and with gaps. The number of fields, the length of names and the depth
have bounds; a field that is given twice, or that is both a value and a folder, is refused.
"""

from __future__ import annotations

import re
from binascii import a2b_qp
from typing import Any, TypeAlias

from millstream.server.gateways.sqs.errors import SqsError

FIELDS_MAX = 5_000
NAME_CHARS_MAX = 512
DEPTH_MAX = 8
VALUE_BYTES_MAX = 4 * 1024 * 1024
"""The longest value before it is decoded: 1 MiB in base64, with each sign as an escape."""

_STRAY_PERCENT = re.compile(rb"%(?![0-9A-Fa-f]{2})")

Tree: TypeAlias = "dict[str, Any]"
"""Folders are dicts, values are texts."""

_LISTS = {
    "AttributeName": "AttributeNames",
    "MessageAttributeName": "MessageAttributeNames",
    "MessageSystemAttributeName": "MessageSystemAttributeNames",
    "TagKey": "TagKeys",
    "AWSAccountId": "AWSAccountIds",
    "ActionName": "Actions",
    "SendMessageBatchRequestEntry": "Entries",
    "DeleteMessageBatchRequestEntry": "Entries",
    "ChangeMessageVisibilityBatchRequestEntry": "Entries",
}
"""Flattened lists, by the names of their fields, and the parameters that they are."""

_MAPS = {
    "Attribute": ("Attributes", "Name"),
    "MessageAttribute": ("MessageAttributes", "Name"),
    "MessageSystemAttribute": ("MessageSystemAttributes", "Name"),
    "Tag": ("Tags", "Key"),
    "Tags": ("Tags", "Key"),
}
"""Flattened maps: the parameter, and the name of the field that holds the key."""

_EMPTY_LISTS = frozenset({*_LISTS.values(), *_MAPS, "PublishBatchRequestEntries"})
_WRAPPERS = ("member", "entry")


def tree_of(body: bytes) -> Tree:
    """Return the fields of a form as a tree."""
    tree: Tree = {}
    if body.count(b"&") >= FIELDS_MAX:
        raise _malformed(f"a form has at most {FIELDS_MAX:,} fields")
    for pair in body.split(b"&"):
        name, _, value = pair.partition(b"=")
        if len(name) > 3 * NAME_CHARS_MAX:
            raise _too_long()
        if len(value) > VALUE_BYTES_MAX:
            raise _malformed(f"a value has at most {VALUE_BYTES_MAX:,} bytes")
        if name:
            _put(tree, _text(name), _text(value))
    return tree


def _text(encoded: bytes) -> str:
    if _STRAY_PERCENT.search(encoded):
        raise _malformed("two hexadecimal digits follow a percent sign")
    # Quoted-printable has = for %, and its decoder is far faster than that of URLs.
    quoted = encoded.replace(b"=", b"=3D").replace(b"%", b"=").replace(b"+", b" ")
    try:
        return a2b_qp(quoted).decode()
    except UnicodeDecodeError:
        raise _malformed("a form is percent-encoded UTF-8") from None


def _put(tree: Tree, name: str, value: str) -> None:
    segments = name.split(".")
    if len(name) > NAME_CHARS_MAX or len(segments) > DEPTH_MAX:
        raise _too_long()
    folder = tree
    for segment in segments[:-1]:
        inner = folder.setdefault(segment, {})
        if not isinstance(inner, dict):
            raise _malformed(f"the field {name[:80]!r} is below a field with a value")
        folder = inner
    if segments[-1] in folder:
        raise _malformed(f"the field {name[:80]!r} is given twice")
    folder[segments[-1]] = value


def parameters_of(tree: Tree) -> dict[str, Any]:
    """Return a tree with its numbered folders as the lists and maps of SQS."""
    parameters: dict[str, Any] = {}
    for name, value in tree.items():
        if value == "" and name in _EMPTY_LISTS:
            continue  # how botocore writes an empty list
        if not isinstance(value, dict):
            parameters[name] = value
        elif name in _LISTS:
            parameters[_LISTS[name]] = items_of(value)
        elif name in _MAPS:
            target, key = _MAPS[name]
            entries = _map_of(value, key)
            parameters[target] = entries
            if target == "Tags":
                parameters["tags"] = entries
        elif value.keys() == {"member"}:
            parameters[name] = items_of(value)
        elif value.keys() == {"entry"}:
            parameters[name] = _entries_of(value["entry"])
        else:
            parameters[name] = parameters_of(value)
    return parameters


def _entries_of(folder: Any) -> dict[str, Any]:
    """Return the entries of a map of SNS, whose fields are named in either of two ways."""
    entries: dict[str, Any] = {}
    for item in items_of(folder if isinstance(folder, dict) else {"": ""}):
        name = item.get("Name", item.get("key")) if isinstance(item, dict) else None

        if not isinstance(name, str):
            raise _malformed("an entry of a map has the field 'Name' or 'key'")
        entries[name] = item.get("Value", item.get("value", ""))
    return entries


def items_of(folder: Tree) -> list[Any]:
    """Return the items of a numbered folder in the order of their numbers."""
    for wrapper in _WRAPPERS:
        if len(folder) == 1 and isinstance(folder.get(wrapper), dict):
            folder = folder[wrapper]
    numbered = []
    for number, item in folder.items():
        if not (number.isascii() and number.isdigit()) or len(number) > 9:
            raise _malformed(f"the items of a list are numbered, not named {number[:40]!r}")
        numbered.append((int(number), parameters_of(item) if isinstance(item, dict) else item))
    return [item for _, item in sorted(numbered, key=lambda entry: entry[0])]


def _map_of(folder: Tree, key: str) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    numbered = folder if key not in folder else {"1": folder}
    for item in items_of(numbered):
        if not isinstance(item, dict) or not isinstance(item.get(key), str):
            raise _malformed(f"an entry of a map has the field {key!r}")
        entries[item[key]] = item.get("Value", "")
    return entries


def _too_long() -> SqsError:
    return _malformed(
        f"the name of a field has at most {NAME_CHARS_MAX} characters and {DEPTH_MAX} parts"
    )


def _malformed(reason: str) -> SqsError:
    return SqsError("MalformedQueryString", f"The form cannot be read: {reason}.")
