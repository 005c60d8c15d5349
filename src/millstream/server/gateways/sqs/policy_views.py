"""Messages as the filter of an SNS filter policy sees them: headers, named after paths. Pure.

A header's name is the path of the value, with a dot before each key: `.store`, `.order.total`. SNS
compares in three ways that the filter language does not have. For these a view has further headers:

| header | value |
|---|---|
| `lower.store` | the text in lower case |
| `ip.store` | an IP address as text whose order is the order of addresses |
| `null.store` | TRUE if the value is the null of JSON |
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import product
from math import prod
from typing import Any, NoReturn

from millstream.errors import InvalidInput
from millstream.server.gateways.sqs.digests import Attribute

Value = str | int | float | bool | None
Path = tuple[str, ...]
View = dict[str, Value]

VIEWS_MAX = 10_000
"""The most combinations of array values of one message; a message with more is refused."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)


class PolicyRefused(InvalidInput):
    """A policy that cannot be obeyed, or a message that it cannot be asked about. Data: `code`."""


def refused(reason: str) -> PolicyRefused:
    """Return the error of a policy, in the words of SNS."""
    return refused_as(f"FilterPolicy: {reason}")


def refused_as(reason: str) -> PolicyRefused:
    """Return the error of a policy whose reason says what is wrong with which setting."""
    return PolicyRefused(f"Invalid parameter: {reason}", code="InvalidParameter")


@dataclass(slots=True)
class PathNode:
    """The paths of a policy as a tree: the keys below a path, and whether the path has conditions."""

    has_conditions: bool = False
    children: dict[str, PathNode] = field(default_factory=dict)


def header_name(kind: str, path: Path) -> str:
    """Return the name of a header of a view; a dot inside a key is escaped."""
    return kind + "".join("." + re.sub(r"[.\\]", r"\\\g<0>", key) for key in path)


def values_of_attributes(attributes: Mapping[str, Attribute]) -> dict[str, Any]:
    """Return attributes as values of JSON; bytes are left out, because a policy ignores them."""
    return {
        name: _value_of(attribute.data_type, attribute.value)
        for name, attribute in attributes.items()
        if isinstance(attribute.value, str)
    }


def _value_of(kind: str, value: str) -> Any:
    if kind == "String.Array":
        parsed = parsed_json(value)
        return parsed if isinstance(parsed, list) else []
    if kind.startswith("Number") and _NUMBER.fullmatch(value):
        return int(value) if _INTEGER.fullmatch(value) else float(value)
    return value


def parsed_json(text: str) -> Any:
    """Parse a text; return None if JSON has no such text."""
    try:
        return json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError):
        return None


def views_of(value: Any, node: PathNode, path: Path) -> list[View]:
    """Return the views of a value: one for each value of its arrays, and all combinations of keys.

    Keys of one object of an array stay together, as SNS compares them.
    """
    if isinstance(value, list):
        views: list[View] = []
        for item in value:
            views += views_of(item, node, path)
            _check_count(len(views))
        return views or [{}]
    if isinstance(value, dict):
        columns = [
            views_of(item, child, (*path, *segments))
            for segments, item in ((key.split("."), item) for key, item in value.items())
            if (child := _below(node, segments)) is not None
        ]
        _check_count(prod(map(len, columns)))
        return [
            {name: item for view in combination for name, item in view.items()}
            for combination in product(*columns)
        ]
    return [_leaf(value, path) if node.has_conditions else {}]


def _below(node: PathNode, segments: list[str]) -> PathNode | None:
    """Return the node of a path; a key with dots names nested objects, as SNS compares it."""
    below: PathNode | None = node
    for segment in segments:
        below = None if below is None else below.children.get(segment)
    return below


def _check_count(count: int) -> None:
    if count > VIEWS_MAX:
        raise refused(
            f"The message has at least {count} combinations of array values for one policy, more than "
            f"{VIEWS_MAX}."
        )


def _leaf(value: Any, path: Path) -> View:
    if value is None:
        return {header_name("null", path): True}
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        value = _as_float(value)
    view: View = {header_name("", path): value}
    if isinstance(value, str):
        view[header_name("lower", path)] = value.lower()
        try:
            view[header_name("ip", path)] = address_text(ip_address(value))
        except ValueError:
            pass  # no address
    return view


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def address_text(address: IPv4Address | IPv6Address) -> str:
    """Return an IP address as digits of fixed width, which sort as the addresses of its version."""
    return f"{address.version}:{int(address):032x}"


def no_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python's JSON knows."""
    raise ValueError(f"{name} is not a number of JSON")
