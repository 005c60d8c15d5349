"""What a filter answers: three-valued logic, types, numbers, strings, the record's own fields."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest

from millstream import Headers
from millstream.filters import Filter, parse

T, F, U = True, False, None
HEADERS: dict[str, Any] = {
    "region": "eu",
    "amount": 250,
    "price": 2.5,
    "test": False,
    "vip": True,
    "none": None,
    "nan": math.nan,
    "inf": math.inf,
    "zero": 0,
    "minus": -0.0,
    "max": 2**63 - 1,
    "min": -(2**63),
    "big": 2**53 + 1,
    "huge": 1.7976931348623157e308,
    "empty": "",
    "order.id": 7,
    'a"b': "quoted",
    "AND": "keyword",
    "_key": "a header",
}


def answer(text: str, **record: Any) -> bool | None:
    return parse(text).evaluate(HEADERS, **record)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vip AND vip", T), ("vip AND test", F), ("vip AND none", U), ("test AND none", F),
        ("none AND none", U), ("vip OR none", T), ("test OR none", U), ("test OR test", F),
        ("NOT vip", F), ("NOT test", T), ("NOT none", U), ("NOT NOT vip", T), ("NOT absent", U),
        ("vip OR vip AND test", T), ("(vip OR vip) AND test", F), ("NOT test AND vip", T),
        ("NOT test OR vip", T), ("NOT (test OR vip)", F), ("TRUE", T), ("false", F),
        ("test or test or test or test or test or vip", T),
        ("vip and vip and vip and vip and vip and test", F),
        ("NOT region = 'us'", T), ("NOT amount > 100", F), ("not amount + 1 = 251", F),
    ],
)  # fmt: skip
def test_logic_has_three_values(text: str, expected: bool | None) -> None:
    assert answer(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("region = 'eu'", T), ("region <> 'eu'", F), ("'eu' = region", T), ("region = 'EU'", F),
        ("region < 'ev'", T), ("'et' < region", T), ("region >= 'eu'", T), ("empty = ''", T),
        ("Region = 'eu'", U), ("absent = 'eu'", U), ("absent <> 'eu'", U), ("none = none", U),
        ("region = 5", F), ("region <> 5", F), ("amount = '250'", F), ("amount <> 'x'", F),
        ("vip = 1", F), ("vip <> 0", F), ("zero = FALSE", F), ("test = 0", F), ("vip = vip", T),
        ("vip = TRUE", T), ("vip <> TRUE", F), ("test <> vip", T), ("vip > FALSE", F),
        ("vip > test", F), ("'a' > 3", F), ("1 = 1.0", T), ("'\uffff' < '😀'", T), ("3 > 2", T),
        ("region", F), ("amount", F), ("amount AND test", F), ("region OR vip", T),
    ],
)  # fmt: skip
def test_only_like_compares_with_like(text: str, expected: bool | None) -> None:
    assert answer(text) is expected


UNLIKE = [
    "region = 5", "region <> 5", "region < 5", "region <= 5", "region > 5", "region >= 5.5",
    "5 = region", "5 <> region", "5 < region", "region = TRUE", "region <> FALSE", "region < TRUE",
    "region = amount", "region <> amount", "amount >= region", "region <> vip", "vip <> amount",
    "amount = '250'", "amount <> 'x'", "amount < 'x'", "amount = TRUE", "amount <> TRUE",
    "price = '2.5'", "price <> FALSE", "vip = 1", "vip <> 0", "vip > 0", "vip <> 'true'",
    "zero = FALSE", "test = 0", "test = minus", "vip > FALSE", "vip <= vip", "test < vip",
    "region BETWEEN 1 AND 2", "amount BETWEEN 'a' AND 'z'", "vip BETWEEN FALSE AND TRUE",
    "amount BETWEEN 1 AND 'z'", "amount BETWEEN 'a' AND 300", "5 BETWEEN region AND 9",
    "region IN (1, 2.5)", "region IN (TRUE)", "region IN (1, TRUE, 'us')", "amount IN ('250')",
    "amount IN ('a', TRUE)", "vip IN (1, 0, 'true')", "vip IN (1)", "vip IN (FALSE, 1)", "test IN (0, 5)",
    "amount IN ('a', 1)", "zero IN (FALSE, 'a')", "inf IN ('inf')",
    "amount LIKE '2%'", "price LIKE '%'", "vip LIKE '%'", "5 LIKE '5'", "TRUE LIKE '%'",
    "amount + 1 LIKE '%'", "amount + 1 = 'x'", "amount + 1 <> TRUE", "amount + 1 IN ('a')",
    "region", "amount", "price", "empty", "inf", "1 = 'a'", "1 <> 'a'", "TRUE <> 'a'", "TRUE > FALSE",
    "_timestamp = '1'", "_timestamp LIKE '%'", "_key = 5", "_key <> 5", "_log IN (1, TRUE)",
]  # fmt: skip
"""Both sides are there, and can never be alike."""


@pytest.mark.parametrize("text", UNLIKE)
def test_unlike_types_compare_as_false_so_not_makes_it_true(text: str) -> None:
    record: dict[str, Any] = {"key": b"k", "timestamp": 1, "log": "orders"}
    assert answer(text, **record) is False
    assert answer(f"NOT ({text})", **record) is True
    assert answer(f"NOT NOT ({text})", **record) is False
    assert answer(f"NOT ({text} OR test)", **record) is True
    assert answer(f"NOT ({text} AND none)", **record) is True
    assert answer(f"({text}) OR none", **record) is None


@pytest.mark.parametrize(
    "text",
    [
        "region NOT BETWEEN 1 AND 2", "region NOT IN (1, 2)", "region NOT IN (1, TRUE, 'us')",
        "vip NOT IN (1, 0)", "amount NOT LIKE '2%'", "amount NOT IN ('250', TRUE)", "NOT region",
        "vip NOT BETWEEN FALSE AND TRUE", "vip NOT LIKE 'true'", "NOT amount AND NOT price",
    ],
)  # fmt: skip
def test_a_negated_test_holds_for_what_it_can_never_fit(text: str) -> None:
    assert answer(text) is True


@pytest.mark.parametrize("value", ["none", "absent", "nan", "region + 1", "vip * 2", "-region",
                                   "amount / 0", "max + 1", "huge * 10", "inf - inf"])  # fmt: skip
@pytest.mark.parametrize(
    "test", ["= 5", "<> 5", "= 'x'", "<> 'x'", "< TRUE", "= nan", "<> absent", "> region",
             "BETWEEN 'a' AND 'b'", "IN (1, 'a', TRUE)", "IN (1, 2)", "IN ('a')", "LIKE '%'"],
)  # fmt: skip
def test_what_is_nothing_compares_as_unknown_even_with_unlike_types(value: str, test: str) -> None:
    assert answer(f"{value} {test}") is None
    assert answer(f"NOT ({value} {test})") is None


def test_a_header_that_is_nothing_is_an_unknown_condition() -> None:
    for name in ("none", "absent", "nan"):
        assert answer(name) is None
        assert answer(f"NOT {name}") is None


@pytest.mark.parametrize("value", [[1], {"a": 1}, (1,), 1j])
def test_a_value_that_no_header_may_hold_is_like_nothing(value: Any) -> None:
    for text in ("a = 1", "a <> 'x'", "a < b", "a IN ('x', 1)", "a IN ('x')", "a LIKE '%'", "a"):
        assert parse(text).evaluate({"a": value, "b": 1}) is False
        assert parse(f"NOT ({text})").evaluate({"a": value, "b": 1}) is True
    assert parse("a + 1 > 0").evaluate({"a": value}) is None


@pytest.mark.parametrize(
    "headers", [{"a": b"x"}, Headers({"a": b"x"}), Headers([("a", 1), ("a", b"x")])]
)
def test_bytes_are_null(headers: Any) -> None:
    for text in ("a = 1", "a <> 'x'", "a IN ('x', 1)", "a LIKE '%'", "a", "a + 1 > 0"):
        assert parse(text).evaluate(headers) is None
        assert parse(f"NOT ({text})").evaluate(headers) is None
    assert parse("a IS NULL").matches(headers)
    assert parse("a IS NULL AND _key = 'k'").matches(headers, "k")


def test_of_a_repeated_name_the_last_value_counts() -> None:
    headers = Headers([("a", 1), ("b", 5), ("a", "x")])
    assert parse("a = 'x' AND b = 5").matches(headers)
    assert parse("a = 1").evaluate(headers) is False


@pytest.mark.parametrize(
    "text", ["a + 1.5 > 0", "a / 0.5 > 0", "a * 2 > 0", "-a < 0", "1.5 - a < 0"]
)
def test_an_integer_that_no_header_may_hold_has_no_arithmetic(text: str) -> None:
    assert parse(text).evaluate({"a": 10**400}) is None
    assert parse("a > 1e300").evaluate({"a": 10**400}) is True


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("amount > 100", T), ("amount > 250.5", F), ("price < 3", T), ("price = 2.5", T),
        ("big = 9007199254740992.0", F), ("big > 9007199254740992.0", T), ("zero = minus", T),
        ("big = 9007199254740993", T), ("max < 9223372036854775808.0", T), ("zero = 0", T),
        ("max = 9223372036854775808.0", F), ("min = -9223372036854775808.0", T),
        ("min = -9223372036854775808", T), ("inf > max", T), ("inf > huge", T), ("inf = inf", T),
        ("-1e19 < min", T), ("nan = nan", U), ("nan <> nan", U), ("nan < 1", U), ("nan <> 1", U),
        ("nan >= 1", U), ("nan IN (1)", U), ("nan NOT IN (1)", U), ("nan BETWEEN 0 AND 1", U),
        (".5 = 0.5", T), ("5. = 5", T), ("1e3 = 1000", T), ("1E-1 < 1", T), ("007.5 = 7.5", T),
        ("0x1F = 31", T), ("0XfF = 255", T), ("0x0 = 0", T), ("0x00ff = 255", T), ("-0x10 = -16", T),
        ("amount = 0xFA", T), ("amount IN (0xfa)", T), ("min = -0x8000000000000000", T),
        ("max = 0x7fffffffffffffff", T), ("amount + 0x1 = 251.0", T), ("amount-0xA=240", T),
    ],
)  # fmt: skip
def test_integers_and_floats_compare_exactly(text: str, expected: bool | None) -> None:
    assert answer(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3 = 7", T), ("(1 + 2) * 3 = 9", T), ("10 - 4 - 3 = 3", T), ("-2 * -3 = 6", T),
        ("8 / 4 / 2 = 1", T), ("7 / 2 = 3", T), ("-7 / 2 = -3", T), ("7 / -2 = -3", T),
        ("7 / 2.0 = 3.5", T), ("7.0 / 2 = 3.5", T), ("- -amount = 250", T), ("+amount = 250", T),
        ("amount - -1 = 251", T), ("amount--1 = 251", T), ("max + 1 IS NULL", T),
        ("max + 1.0 > max", T), ("min - 1 > 0", U), ("max * 2 > 0", U), ("-min = 0", U),
        ("min / -1 > 0", U), ("min / 1 = min", T), ("amount / 0 = 1", U), ("amount / zero = 1", U),
        ("amount / 0.0 = 1", U), ("amount / minus = 1", U), ("huge * 10 > 0", U),
        ("huge * 10 IS NULL", T), ("inf + 1 > 0", U), ("inf - inf = 0", U), ("1 / inf = 0", T),
        ("nan + 1 > 0", U), ("nan + 1 IS NULL", T), ("-nan = 1", U), ("region + 1 = 2", U),
        ("vip + 1 = 2", U), ("absent + 1 = 1", U), ("-region = 1", U), ("big * 1.0 = big", F),
        ("amount + price = 252.5", T), ("amount * 2 > 499 AND price + 0.5 = 3", T),
    ],
)  # fmt: skip
def test_arithmetic_is_int64_and_float64(text: str, expected: bool | None) -> None:
    assert answer(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("amount BETWEEN 250 AND 300", T), ("amount BETWEEN 251 AND 300", F),
        ("amount NOT BETWEEN 251 AND 300", T), ("amount BETWEEN 300 AND 200", F),
        ("amount BETWEEN 'a' AND 300", F), ("amount BETWEEN 'a' AND 200", F),
        ("amount between zero and amount + 1 and vip", T), ("region BETWEEN 'a' AND 'f'", T),
        ("absent BETWEEN 1 AND 2", U), ("absent NOT BETWEEN 1 AND 2", U),
        ("region IN ('eu', 'us')", T), ("region IN ('us')", F), ("region NOT IN ('us')", T),
        ("absent IN ('us')", U), ("absent NOT IN ('us')", U), ("amount IN (1, 250.0)", T),
        ("amount NOT IN (-1, +2.5)", T), ("vip IN (1)", F), ("vip NOT IN (1)", T),
        ("vip IN (TRUE)", T), ("vip IN (FALSE, 1)", F), ("amount IN ('250')", F),
        ("amount IN ('a', 250)", T), ("amount IN ('a', 1)", F), ("amount + 1 IN (251)", T),
        ("_log IN ('orders')", T), ("zero IN (0.0, 5)", T), ("test IN (0, 5)", F),
        ("absent IS NULL", T), ("none IS NULL", T), ("amount IS NULL", F), ("nan IS NULL", F),
        ("none IS NOT NULL", F), ("region is not null", T), ("absent + 1 IS NULL", T),
        ("'a' IS NULL", F), ("NOT none IS NULL", F),
    ],
)  # fmt: skip
def test_ranges_lists_and_null(text: str, expected: bool | None) -> None:
    assert answer(text, log="orders") is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"order.id" = 7', T), ('"a""b" = \'quoted\'', T), ("\"AND\" = 'keyword'", T),
        ("\"region\" = 'eu'", T), ('"order id" IS NULL', T), ("\"_key\" = 'a header'", T),
        ("_key = 'ключ'", T), ("_timestamp >= 1700000000000", T), ("_log = 'orders'", T),
        ("_log LIKE 'ord%' AND _timestamp / 1000 = 1700000000", T), ("_KEY IS NULL", T),
        ("_key = _log", F), ("_timestamp = '1'", F),
    ],
)  # fmt: skip
def test_names_and_the_records_own_fields(text: str, expected: bool | None) -> None:
    assert answer(text, key="ключ".encode(), timestamp=1_700_000_000_000, log="orders") is expected


@pytest.mark.parametrize("key", [None, b"\xff", b"\xed\xa0\x80", b"\xc0\x80"])
def test_a_key_that_is_absent_or_no_text_is_null(key: bytes | None) -> None:
    assert answer("_key IS NULL", key=key) is True
    assert answer("_key = ''", key=key) is None


def test_a_match_is_true_only() -> None:
    assert parse("vip").matches(HEADERS) is True
    assert parse("test").matches(HEADERS) is False
    assert parse("absent").matches(HEADERS) is False
    assert parse("NOT absent").matches(HEADERS) is False


def test_a_batch_matches_as_its_messages_do() -> None:
    batch = [{"n": n} for n in range(5)]
    assert parse("n > 2").match_many(batch) == [False, False, False, True, True]
    keyed = parse("_key = 'b' AND n > 0 AND _log = 'x'")
    assert keyed.match_many(batch[:3], keys=[b"b", b"a", b"b"], log="x") == [False, False, True]
    timed = parse("_timestamp = n AND _key IS NULL")
    assert timed.match_many(batch[:2], timestamps=[0, 5]) == [True, False]


def test_of_the_value_it_is_known_whether_it_is_null() -> None:
    null, present = parse("_value IS NULL"), parse("_value IS NOT NULL AND n > 0")
    assert not null.matches({})
    assert null.matches({}, has_value=False)
    assert null.evaluate({}, has_value=True) is False
    assert present.evaluate({}, has_value=True) is None
    assert present.evaluate({}, has_value=False) is False
    assert null.fields == {"_value"}
    batch = [{"n": n} for n in range(3)]
    assert present.match_many(batch) == [False, True, True]
    assert present.match_many(batch, valid=[True, False, True]) == [False, False, True]
    assert present.count_unknown([{}, {}], keys=[None] * 2, timestamps=[0, 0], log="x") == 2
    columns: dict[str, Any] = {"keys": [None] * 2, "timestamps": [0, 0], "log": "x"}
    assert present.count_unknown([{}, {}], valid=[True, False], **columns) == 1
    assert parse('"_value" = 1').matches({"_value": 1})


def test_a_filter_says_what_it_looks_at() -> None:
    parsed = parse("a = 1 AND (_key = 'x' OR \"b.c\" + a > 2)")
    assert parsed.names == {"a", "b.c"}
    assert parsed.fields == {"_key"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 'x'", ("a", {"x"})),
        ("a IN ('x', 'y') AND b = 'z' AND c > 1", ("b", {"z"})),
        ("a IN ('x', 'y')", ("a", {"x", "y"})),
        ("(a = 'x' AND b > 1) AND c", ("a", {"x"})),
        ("a = 1", None),
        ("a IN ('x', 1)", None),
        ("a = 'x' OR b = 'y'", None),
        ("NOT a = 'x'", None),
        ("a <> 'x'", None),
        ("_key = 'x'", None),
    ],
)
def test_a_filter_knows_which_texts_of_a_header_can_match(
    text: str, expected: tuple[str, set[str]] | None
) -> None:
    assert parse(text).anchor == expected


def test_filters_are_equal_by_text_and_can_be_copied() -> None:
    parsed = parse("a = 1")
    assert parsed == Filter("a = 1") != parse("a = 2")
    assert copy.deepcopy(parsed).matches({"a": 1})
    assert len({parsed, parse("a = 1")}) == 1
    assert repr(parsed) == "Filter(text='a = 1')"


def test_the_truth_tables_of_the_documentation_are_true() -> None:
    values = {
        "`7`": [7, 7.0],
        "`'Bonn'`": ["Bonn"],
        "`TRUE`": [True],
        "absent or NaN": [None, math.nan],
    }
    words = {"true": True, "false": False, "unknown": None}
    lines = (Path(__file__).parents[3] / "docs" / "FILTERS.md").read_text().splitlines()
    tables = [at for at, line in enumerate(lines) if line.startswith("| `x` |")]
    assert len(tables) == 2
    for at in tables:
        conditions = [cell.strip(" `") for cell in lines[at].strip("|").split("|")][1:]
        rows = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in lines[at + 2 : at + 6]
        ]
        assert {row[0] for row in rows} == set(values)
        for name, *answers in rows:
            for value in values[name]:
                found = [parse(condition).evaluate({"x": value}) for condition in conditions]
                assert found == [words[answer] for answer in answers], (name, conditions)
