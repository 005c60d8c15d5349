"""Filter policies of SNS subscriptions, as filters over headers (docs/FILTERS.md). Pure.

`parse_filter_policy` translates a policy into one filter. A message becomes views: headers with the
values that the filter names. An array gives one view for each of its values, because a policy matches
if any value of an array does. The message matches if any view does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from math import prod
from typing import Any, Literal, cast

from millstream.errors import InvalidInput
from millstream.filters import Filter, parse
from millstream.server.gateways.sqs.digests import Attribute
from millstream.server.gateways.sqs.policy_views import (
    Path,
    PathNode,
    PolicyRefused,
    address_text,
    header_name,
    no_constant,
    parsed_json,
    refused,
    refused_as,
    values_of_attributes,
    views_of,
)

Scope = Literal["MessageAttributes", "MessageBody"]

POLICY_BYTES_MAX = 256 * 1024
KEYS_MAX = 5
"""The most keys of a policy, or of its outermost object if it compares bodies."""

COMBINATIONS_MAX = 150
NUMBER_MAX = 1_000_000_000
_RANGE = {(">", "<"), (">", "<="), (">=", "<"), (">=", "<=")}
_KEYWORDS = frozenset(
    (
        "prefix",
        "suffix",
        "equals-ignore-case",
        "wildcard",
        "anything-but",
        "numeric",
        "exists",
        "cidr",
    )
)


@dataclass(frozen=True, slots=True)
class FilterPolicy:
    """A policy of a subscription, ready to be asked about messages."""

    scope: Scope
    condition: Filter | None
    """The policy as a filter over views; None for the empty policy, which matches every message."""
    _paths: PathNode

    def matches(self, attributes: Mapping[str, Attribute], body: str) -> bool:
        """Whether the subscription gets a message. Raises `PolicyRefused` above `VIEWS_MAX`."""
        if self.condition is None:
            return True
        if self.scope == "MessageAttributes":
            values: Any = values_of_attributes(attributes)
        else:
            values = parsed_json(body)
        if not isinstance(values, dict) or not values:
            return False  # also of `exists: false`: SNS asks for at least one property
        try:
            views = views_of(values, self._paths, ())
        except RecursionError:
            raise refused("The message is nested too deeply.") from None
        return any(map(self.condition.matches, views))


def parse_filter_policy(text: str, scope: str = "MessageAttributes") -> FilterPolicy:
    """Translate a policy; raise `PolicyRefused` with the reason."""
    if scope not in ("MessageAttributes", "MessageBody"):
        raise refused_as(
            f"FilterPolicyScope: Invalid value [{scope[:100]}]. Please use either MessageBody or "
            "MessageAttributes"
        )
    if len(text.encode("utf-8", "surrogatepass")) > POLICY_BYTES_MAX:
        raise refused(f"The policy has more than {POLICY_BYTES_MAX} bytes.")
    try:
        policy = json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise refused(f"The policy is not JSON: {error}.") from None
    if not isinstance(policy, dict):
        raise refused("The policy must be a JSON object.")
    translation = _Translation(allows_nesting=scope == "MessageBody")
    try:
        condition = translation.of_object(policy, ())
        if translation.key_count > KEYS_MAX:
            raise refused(f"Filter policy can not have more than {KEYS_MAX} keys")
        if _combinations(policy, 1) > COMBINATIONS_MAX:
            raise refused("Filter policy is too complex")
        compiled = parse(condition) if condition else None
    except RecursionError:
        raise refused("The policy is nested too deeply.") from None
    except PolicyRefused:
        raise
    except InvalidInput as error:
        raise refused(f"The policy is too complex: {error}.") from None
    return FilterPolicy(cast(Scope, scope), compiled, translation.paths)


class _Translation:
    """Turns a policy into the text of a filter, and notes the paths that the policy names."""

    def __init__(self, *, allows_nesting: bool) -> None:
        self.paths = PathNode()
        self.key_count = 0
        self._allows_nesting = allows_nesting

    def of_object(self, policy: Mapping[str, Any], path: Path) -> str:
        """Return the conjunction of an object's keys; an empty text for no keys."""
        return " AND ".join(f"({self._of_key(key, value, path)})" for key, value in policy.items())

    def _of_key(self, key: str, value: Any, path: Path) -> str:
        if key == "$or" and _is_or(value):
            return " OR ".join(f"({self.of_object(branch, path)})" for branch in value)
        below = (*path, *key.split("."))
        self.key_count += not path  # keys of nested objects do not count
        if isinstance(value, dict):
            if not self._allows_nesting:
                raise refused_as(
                    "Filter policy scope MessageAttributes does not support nested filter policy"
                )
            if not value:
                raise refused(f"The object of '{key}' is empty.")
            return self.of_object(value, below)
        if not isinstance(value, list):
            raise refused(f'"{key}" must be an object or an array')
        if not value:
            raise refused(f"The array of '{key}' is empty.")
        node = self.paths
        for segment in below:
            node = node.children.setdefault(segment, PathNode())
        node.has_conditions = True
        return " OR ".join(_conditions(value, below))


def _is_or(value: Any) -> bool:
    """Whether the value of `$or` is the operator: several objects of which none is a condition."""
    return (
        isinstance(value, list)
        and len(value) > 1
        and all(isinstance(each, dict) and each and not _KEYWORDS & each.keys() for each in value)
    )


def _conditions(values: list[Any], path: Path) -> Iterator[str]:
    """Yield the alternatives of one key: literals in one list, every other condition by itself."""
    name = _quoted("", path)
    literals = [each for each in values if isinstance(each, str) or _is_number(each)]
    if literals:
        yield f"{name} IN ({_listed(literals)})"
    for each in values:
        if each is None:
            yield _quoted("null", path)
        elif isinstance(each, bool):
            yield f"{name} = {str(each).upper()}"
        elif isinstance(each, dict):
            yield _of_operator(each, path)
        elif isinstance(each, list):
            raise refused("Match value must be String, number, true, false, or null.")


def _of_operator(condition: dict[str, Any], path: Path) -> str:
    if len(condition) != 1:
        raise refused("A condition must be an object with exactly one operator.")
    ((operator, operand),) = condition.items()
    name = _quoted("", path)
    if operator == "exists":
        if not isinstance(operand, bool):
            raise refused("exists match pattern must be either true or false.")
        if operand:
            return f"{name} IS NOT NULL AND NOT {name} = ''"
        return f"{name} IS NULL AND {_quoted('null', path)} IS NULL"
    if operator == "numeric":
        return _of_numeric(operand, name)
    if operator == "cidr":
        return _of_network(operand, path)
    if operator == "anything-but":
        return _of_anything_but(operand, path)
    return _of_text_operator(operator, operand, path)


def _of_text_operator(operator: str, operand: Any, path: Path, *, negated: bool = False) -> str:
    """Translate a comparison of one text; `negated` for the one inside of anything-but."""
    if operator not in ("prefix", "suffix", "wildcard", "equals-ignore-case"):
        raise refused(f"Unrecognized match type {operator}.")
    if not isinstance(operand, str) or not operand:
        raise refused(f"{operator} match pattern must be a string that is not empty.")
    if operator == "equals-ignore-case":
        literal = _literal(operand.lower())
        if negated:  # a number has no lower case, and is another value
            absent = f"{_quoted('lower', path)} IS NULL AND {_quoted('', path)} IS NOT NULL"
            return f"{_quoted('lower', path)} <> {literal} OR {absent}"
        return f"{_quoted('lower', path)} = {literal}"
    if operator == "wildcard":
        pattern = _of_wildcard(operand)
    elif operator == "prefix":
        pattern = _escaped(operand) + "%"
    else:
        pattern = "%" + _escaped(operand)
    return f"{_quoted('', path)} {'NOT ' * negated}LIKE {_literal(pattern)} ESCAPE '!'"


def _of_anything_but(operand: Any, path: Path) -> str:
    if isinstance(operand, dict):
        if len(operand) != 1:
            raise refused("anything-but takes an object with exactly one operator.")
        ((operator, text),) = operand.items()
        texts = text if isinstance(text, list) else [text]
        if not texts:
            raise refused(f"The array of anything-but {operator} is empty.")
        return " AND ".join(
            f"({_of_text_operator(operator, each, path, negated=True)})" for each in texts
        )
    values = operand if isinstance(operand, list) else [operand]
    is_plain = all(isinstance(each, str) for each in values) or all(map(_is_number, values))
    if not values or not is_plain:
        raise refused("anything-but takes strings, or numbers, or an object with one operator.")
    return f"{_quoted('', path)} NOT IN ({_listed(values)})"


def _of_numeric(operand: Any, name: str) -> str:
    if not isinstance(operand, list) or len(operand) not in (2, 4):
        raise refused(
            "Value of numeric must be an array of one or two pairs of operator and number."
        )
    signs, bounds = tuple(operand[::2]), operand[1::2]
    if not all(map(_is_number, bounds)):
        raise refused("Value of an operator of numeric must be a number.")
    if len(signs) == 1:
        if signs[0] not in ("=", "<", "<=", ">", ">="):
            raise refused(f"Unrecognized numeric range operator: {signs[0]}.")
    elif signs not in _RANGE:
        raise refused("A range of numeric must have > or >= first, and then < or <=.")
    elif bounds[0] >= bounds[1]:
        raise refused("Bottom must be less than top of a numeric range.")
    return " AND ".join(
        f"{name} {sign} {_literal(bound)}" for sign, bound in zip(signs, bounds, strict=True)
    )


def _of_network(operand: Any, path: Path) -> str:
    try:
        network = ip_network(operand if isinstance(operand, str) else "", strict=False)
    except ValueError:
        raise refused(f"Malformed CIDR: {operand!r}.") from None
    first, last = address_text(network.network_address), address_text(network.broadcast_address)
    return f"{_quoted('ip', path)} BETWEEN {_literal(first)} AND {_literal(last)}"


def _of_wildcard(text: str) -> str:
    """Turn `*` into the pattern's `%`; a backslash makes the next `*` or backslash literal."""
    pieces: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        if character == "\\" and text[position + 1 : position + 2] in ("*", "\\"):
            position += 1
            pieces.append(_escaped(text[position]))
        elif character == "*":
            if pieces and pieces[-1] == "%":
                raise refused("wildcard match pattern must not have two asterisks in a row.")
            pieces.append("%")
        else:
            pieces.append(_escaped(character))
        position += 1
    return "".join(pieces)


def _combinations(policy: Mapping[str, Any], depth: int) -> int:
    """Multiply the numbers of values of all keys, each times its depth; branches of `$or` add up."""
    factors: list[int] = []
    for key, value in policy.items():
        if key == "$or" and _is_or(value):
            factors.append(sum(_combinations(branch, depth) for branch in value))
        elif isinstance(value, dict):
            factors.append(_combinations(value, depth + 1))
        else:
            factors.append(len(value) * depth)
    return prod(factors)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if abs(value) > NUMBER_MAX:
        raise refused(f"A number must lie between -{NUMBER_MAX} and {NUMBER_MAX}, not at {value}.")
    return True


def _literal(value: Any) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(_literal, values))


def _escaped(text: str) -> str:
    return re.sub("[!%_]", r"!\g<0>", text)


def _quoted(kind: str, path: Path) -> str:
    return '"' + header_name(kind, path).replace('"', '""') + '"'
