"""Filter policies of SNS: AWS's documented examples, refusals, and a plain evaluation beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.server.gateways.sqs.digests import Attribute
from millstream.server.gateways.sqs.filter_policy import parse_filter_policy
from millstream.server.gateways.sqs.policy_views import VIEWS_MAX, PolicyRefused
from tests.property.examples import examples


def of_attributes(policy: Any, **values: Any) -> bool:
    """Ask a policy about attributes: numbers and lists get the types that clients give them."""
    attributes = {}
    for name, value in values.items():
        if isinstance(value, list):
            attributes[name] = Attribute("String.Array", json.dumps(value))
        elif isinstance(value, bytes):
            attributes[name] = Attribute("Binary", value)
        elif isinstance(value, str):
            attributes[name] = Attribute("String", value)
        else:
            attributes[name] = Attribute("Number", str(value))
    return parse_filter_policy(json.dumps(policy)).matches(attributes, "")


def of_body(policy: Any, body: Any) -> bool:
    """Ask a policy of the scope MessageBody about a body."""
    text = body if isinstance(body, str) else json.dumps(body)
    return parse_filter_policy(json.dumps(policy), "MessageBody").matches({}, text)


@pytest.mark.parametrize(
    ("conditions", "matching", "others"),
    [
        (
            ["rugby", "tennis"],
            ["rugby", ["golf", "tennis"]],
            ["golf", "Rugby", [], ["golf"], 3, b"rugby"],
        ),
        (
            [{"anything-but": ["rugby", "tennis"]}],
            ["golf", ["rugby", "golf"], 4],
            ["rugby", ["tennis"]],
        ),
        ([{"anything-but": {"prefix": "or"}}], ["rugby", 1], ["order", "or"]),
        ([{"anything-but": {"suffix": ".png"}}], ["a.jpg"], ["a.png"]),
        ([{"anything-but": {"wildcard": "a*c"}}], ["abd"], ["abc", "ac"]),
        ([{"anything-but": {"equals-ignore-case": ["ÄB", "c"]}}], ["d", 7], ["äb", "C"]),
        ([{"equals-ignore-case": "Tennis"}], ["TENNIS", "tennis"], ["tenni", "tennis "]),
        ([{"prefix": "100%_"}], ["100%_x", "100%_"], ["100xx", "1"]),
        ([{"suffix": "!'s"}], ["it!'s"], ["it's", "!'"]),
        ([{"wildcard": "a*b\\*"}], ["aXXb*", "ab*"], ["aXXb", "ab*c"]),
        (
            [{"cidr": "10.0.0.0/24"}],
            ["10.0.0.0", "10.0.0.255"],
            ["10.0.1.0", "::10.0.0.1", "x", 10],
        ),
        ([{"cidr": "2001:db8::/32"}], ["2001:db8::1"], ["2001:db9::1", "1.2.3.4"]),
        ([{"numeric": ["=", 301.5]}], [301.5], [301, "301.5"]),
        ([{"numeric": [">", 0, "<=", 150]}], [150, 0.1, [0, 7]], [0, 150.1, -1]),
        ([{"numeric": ["<", -1e9]}], [-1e10], [5]),
        ([100], [100, 100.0], ["100"]),
        ([{"anything-but": [100]}], [101, "100"], [100]),
        ([{"exists": True}], ["x", 0, ["a"]], []),
        ([True, None], [[True], [None]], ["true", [False]]),
        (["a", {"prefix": "b"}, {"numeric": [">", 5]}], ["a", "bcd", 6], ["c", 5]),
    ],
)
def test_conditions_match_as_sns_documents_them(
    conditions: list[Any], matching: list[Any], others: list[Any]
) -> None:
    for value in matching:
        assert of_attributes({"sport": conditions}, sport=value), value
    for value in others:
        assert not of_attributes({"sport": conditions}, sport=value), value
    assert not of_attributes({"sport": conditions}, other="a")


def test_a_missing_key_matches_only_beside_another_property() -> None:
    assert of_attributes({"store": [{"exists": False}]}, other="x")
    assert not of_attributes({"store": [{"exists": False}]}, store="x")
    assert not of_attributes({"store": [{"exists": False}]})
    assert not of_body({"store": [{"exists": True}]}, {"store": None})
    assert not of_body({"store": [{"exists": False}]}, {"store": None})
    assert of_body({"store": [None]}, {"store": None})
    assert of_body({"a": [{"anything-but": ["x"]}, {"exists": False}]}, {"b": 1})


def test_all_keys_must_match_and_or_needs_one_branch() -> None:
    policy = {"source": ["shop"], "$or": [{"price": [{"numeric": [">", 9]}]}, {"vip": ["yes"]}]}
    assert of_attributes(policy, source="shop", price=10)
    assert of_attributes(policy, source="shop", vip="yes", price=1)
    assert not of_attributes(policy, source="shop", price=9)
    assert not of_attributes(policy, vip="yes")
    assert of_attributes({"$or": ["a", "b"]}, **{"$or": "b"})  # a key, as it holds no objects
    assert of_attributes({}, anything="x")
    assert of_attributes({})


def test_a_body_is_compared_by_its_nested_properties() -> None:
    policy = {"order": {"total": [{"numeric": [">", 5]}], "state": ["open"]}}
    assert of_body(policy, {"order": {"total": 6, "state": "open", "x": [1]}})
    assert not of_body(policy, {"order": {"total": 5, "state": "open"}})
    assert of_body(policy, {"order.total": 6, "order.state": "open"})  # SNS reads dots as nesting
    lines = [{"total": 6, "state": "done"}, {"total": 1, "state": "open"}]
    assert not of_body(policy, {"order": lines})  # no single object matches both
    assert of_body(policy, {"order": [*lines, {"total": 7, "state": "open"}]})
    for body in ("plain text", "[]", '"order"', "{", "[" * 5000, "NaN", '{"order": NaN}', ""):
        assert not of_body(policy, body)
    assert of_body({"a.b": [1], "\\": [2], 'q"q': [3]}, {"a.b": 1, "\\": 2, 'q"q': 3})
    assert of_body({"n": [{"numeric": [">", 5]}]}, '{"n": 1%s}' % ("0" * 400))


def test_a_key_with_dots_names_nested_objects() -> None:
    policy = {"a.b.c": ["x"]}
    for body in (
        {"a": {"b": {"c": "x"}}},
        {"a.b.c": "x"},
        {"a.b": {"c": "x"}},
        {"a": {"b.c": ["y", "x"]}},
        {"a": [{"b": 1}, {"b.c": "x"}]},
    ):
        assert of_body(policy, body)
    for body in ({"a": {"b": {"c": "y"}}}, {"a": {"b": "x"}}, {"a.b.c.d": "x"}, {"c": "x"}):
        assert not of_body(policy, body)
    assert of_attributes({"a.b": ["x"]}, **{"a.b": "x"})


def test_only_outermost_keys_count_for_bodies() -> None:
    nested = {"state": ["x"], "finding": {name: [{"exists": True}] for name in "abcde"}}
    parse_filter_policy(json.dumps(nested), "MessageBody")
    with pytest.raises(PolicyRefused, match="not have more than 5 keys"):
        parse_filter_policy(json.dumps({name: ["x"] for name in "abcdef"}), "MessageBody")


@pytest.mark.parametrize(
    "policy",
    [
        "",
        "[]",
        "{",
        '"x"',
        '{"a": [NaN]}',
        "{" + '"a":{' * 100_000,
        {"a": "x"},
        {"a": []},
        {"a": {"b": ["x"]}},
        {"a": [["x"]]},
        {"a": [{"prefix": 3}]},
        {"a": [{"prefix": ""}]},
        {"a": [{"prefix": "x", "suffix": "y"}]},
        {"a": [{"regex": "x"}]},
        {"a": [{"exists": "yes"}]},
        {"a": [{"anything-but": []}]},
        {"a": [{"anything-but": ["x", 1]}]},
        {"a": [{"anything-but": {"numeric": ["=", 1]}}]},
        {"a": [{"numeric": []}]},
        {"a": [{"numeric": ["~", 1]}]},
        {"a": [{"numeric": [">", "1"]}]},
        {"a": [{"numeric": ["<", 1, ">", 0]}]},
        {"a": [{"numeric": [">", 5, "<", 5]}]},
        {"a": [{"numeric": ["=", True]}]},
        {"a": [{"cidr": "10.0.0.0/33"}]},
        {"a": [{"cidr": 7}]},
        {"a": [{"wildcard": "a**b"}]},
        {"a": [10_000_000_000]},
        {name: ["x"] for name in "abcdef"},
        {"a": ["x"] * 16, "b": ["y"] * 10},
        {"a": ["x" * 20_000]},
    ],
)
def test_what_cannot_be_obeyed_is_refused(policy: Any) -> None:
    text = policy if isinstance(policy, str) else json.dumps(policy)
    with pytest.raises(PolicyRefused) as caught:
        parse_filter_policy(text)
    assert caught.value.code == "InvalidParameter"
    assert str(caught.value).startswith("Invalid parameter: Filter")


def test_limits_of_scope_and_size() -> None:
    with pytest.raises(PolicyRefused, match=r"Invalid value \[Body\]"):
        parse_filter_policy("{}", "Body")
    with pytest.raises(PolicyRefused, match="bytes"):
        parse_filter_policy('{"a": ["' + "x" * 262_144 + '"]}')
    assert of_attributes({"a": ["x"] * 15, "b": ["y"] * 10}, a="x", b="y")
    with pytest.raises(
        PolicyRefused, match="too complex"
    ):  # ten values, three levels deep: 10 × 3 × 6
        of_body({"a": {"b": {"c": ["x"] * 10}}, "d": ["y"] * 6}, {})
    many = list(range(200))
    with pytest.raises(PolicyRefused, match=str(VIEWS_MAX)):
        of_body({"a": [1], "b": [2]}, {"a": many, "b": many})
    with pytest.raises(PolicyRefused, match="at least 12000"):  # the third array is never read
        of_body({"a": [1]}, {"a": [[2] * 6_000] * 3})


# --- a plain evaluation ---

CONDITIONS: list[Any] = [
    "a", "ab", "A", 1, 2.5, True, None,
    {"prefix": "a"}, {"suffix": "b"}, {"wildcard": "*a*"}, {"equals-ignore-case": "AB"},
    {"anything-but": ["a", "b"]}, {"anything-but": 1}, {"anything-but": {"prefix": "a"}},
    {"anything-but": {"equals-ignore-case": "ab"}}, {"numeric": [">=", 1, "<", 3]},
    {"numeric": ["=", 2.5]}, {"exists": True}, {"exists": False}, {"cidr": "1.2.3.0/24"},
]  # fmt: skip
VALUES: list[Any] = [
    "a",
    "ab",
    "AB",
    "b",
    "ba",
    "",
    1,
    2.5,
    3,
    True,
    False,
    None,
    "1.2.3.4",
    "1.2.4.4",
]


def plainly(policy: dict[str, Any], flat: dict[str, Any]) -> bool:
    """Evaluate a policy over values without arrays, step by step."""
    for key, conditions in policy.items():
        if key == "$or":
            if not any(plainly(branch, flat) for branch in conditions):
                return False
        elif not any(holds(each, flat.get(key, ...)) for each in conditions):
            return False
    return True


def holds(condition: Any, value: Any) -> bool:
    """Whether a condition holds for a value; `...` stands for an absent key."""
    if condition == {"exists": False}:
        return value is ...
    if value is ...:
        return False
    if not isinstance(condition, dict):
        return type(condition) is type(value) and condition == value
    ((operator, operand),) = condition.items()
    text = value if isinstance(value, str) else None
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if operator == "anything-but":
        if value is None:
            return False
        if isinstance(operand, dict):
            return not holds(operand, value)
        listed = operand if isinstance(operand, list) else [operand]
        return not any(holds(each, value) for each in listed)
    answers = {
        "exists": lambda: value is not None and value != "",
        "prefix": lambda: text is not None and text.startswith(operand),
        "suffix": lambda: text is not None and text.endswith(operand),
        "wildcard": lambda: text is not None and fnmatchcase(text, operand),
        "equals-ignore-case": lambda: text is not None and text.lower() == operand.lower(),
        "cidr": lambda: text is not None and text.startswith("1.2.3."),
        "numeric": lambda: (
            number is not None
            and (number == operand[1] if operand[0] == "=" else operand[1] <= number < operand[3])
        ),
    }
    return answers[operator]()


def flattened(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every choice of one value from each array; an empty array is as good as no key."""
    keys = [key for key, value in values.items() if value != []]
    columns = [value if isinstance(value, list) else [value] for value in map(values.get, keys)]
    for row in product(*columns):
        yield dict(zip(keys, row, strict=True))


@settings(max_examples=examples(30))
@given(st.randoms(use_true_random=False))
def test_a_policy_answers_as_a_plain_evaluation_does(random: Random) -> None:
    def keys(names: str) -> dict[str, Any]:
        return {name: random.sample(CONDITIONS, random.randint(1, 3)) for name in names}

    policy = keys("xy"[: random.randint(1, 2)])
    if random.random() < 0.4:
        policy["$or"] = [keys("z"), keys("w")]
    parsed = parse_filter_policy(json.dumps(policy), "MessageBody")
    for _ in range(20):
        body: dict[str, Any] = {"other": 1}
        for name in "xyzw":
            if random.random() < 0.8:
                value = random.choice(VALUES)
                is_array = random.random() < 0.2
                body[name] = random.sample(VALUES, random.randint(0, 3)) if is_array else value
        expected = any(plainly(policy, flat) for flat in flattened(body))
        assert parsed.matches({}, json.dumps(body)) is expected, (policy, body)
