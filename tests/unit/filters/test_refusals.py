"""What a filter refuses, and how exactly it says why."""

from __future__ import annotations

import inspect
import sys

import pytest

from millstream.errors import InvalidFilter, TooLarge
from millstream.filters import parse
from tests.unit.filters.cases import AT_THE_CAPS

A_NUMBER = "a number such as 12, 12.5, 1e3 or 0x1F"

OCTAL = "digits from 0 to 7, or no zero before them"

ONLY_NULL = "'IS NULL' or 'IS NOT NULL' behind '_value'"


@pytest.mark.parametrize(
    ("text", "line", "column", "expected"),
    [
        ("", 1, 1, "a condition"),
        ("  \n ", 2, 2, "a condition"),
        ("a =", 1, 4, "a value"),
        ("a = 1 AND", 1, 10, "a condition"),
        ("a = 1\nAND b <\n  < 3", 3, 3, "a value"),
        ("a = 1 b", 1, 7, "AND"),
        ("a < b < c", 1, 7, "the end"),
        ("(a = 1", 1, 7, ")"),
        ("a = 1)", 1, 6, "the end"),
        ("AND = 3", 1, 1, "a condition"),
        ("a = and", 1, 5, "a value"),
        ("a = NULL", 1, 5, "a value"),
        ("a IS 3", 1, 6, "NULL"),
        ("a NOT 3", 1, 7, "BETWEEN"),
        ("a IN 'x'", 1, 6, "("),
        ("a IN ()", 1, 7, "a string"),
        ("a IN (b)", 1, 7, "a number"),
        ("a IN ('x' 'y')", 1, 11, ","),
        ("a BETWEEN 1 OR 2", 1, 13, "AND"),
        ("a LIKE b", 1, 8, "a string"),
        ("a LIKE 'x' ESCAPE 'ab'", 1, 19, "a string of one character"),
        ("a LIKE 'x' ESCAPE ''", 1, 19, "a string of one character"),
        ("UPPER(a) = 'X'", 1, 6, "a comparison"),
        ("a.b = 1", 1, 2, "a comparison"),
        ("a = 0x", 1, 5, "a hexadecimal digit"),
        ("a = 0X AND b", 1, 5, "a hexadecimal digit"),
        ("a IN (1,\n 0x)", 2, 2, "a hexadecimal digit"),
        ("a = 0xG", 1, 5, A_NUMBER),
        ("a = 0x1G", 1, 5, A_NUMBER),
        ("a = 1.2.3", 1, 5, A_NUMBER),
        ("a = 1e", 1, 5, A_NUMBER),
        ("a = 12 L", 1, 8, "AND"),
        ("a = 08", 1, 5, OCTAL),
        ("a = -018L", 1, 6, OCTAL),
        ("a IN (1, 0_9)", 1, 10, OCTAL),
        ("a = 12LL", 1, 5, A_NUMBER),
        ("a = 1.5fd", 1, 5, A_NUMBER),
        ("a = 1.5L", 1, 5, A_NUMBER),
        ("a = 0b", 1, 5, A_NUMBER),
        ("a = 0b12", 1, 5, A_NUMBER),
        ("a = 1_", 1, 5, A_NUMBER),
        ("a = 0x_1", 1, 5, A_NUMBER),
        ("a = 0x1.8", 1, 5, A_NUMBER),
        ("a = 1e40f", 1, 5, "a finite number"),
        ("a = 0x1p1024", 1, 5, "a finite number"),
        ("a = 0b1" + "0" * 63, 1, 5, "a 64-bit integer"),
        ("a = 01" + "0" * 21, 1, 5, "a 64-bit integer"),
        ("a\u200b = 1", 1, 2, "a comparison"),
        ("\ufeffa = 1", 1, 1, "a condition"),
        ("\u0301a = 1", 1, 1, "a condition"),
        ("a \u2264 1", 1, 3, "a comparison"),
        ("a = \u201cx\u201d", 1, 5, "a value"),
        ("a = 0x8000000000000000", 1, 5, "a 64-bit integer"),
        ("a = 0xFFFFFFFFFFFFFFFF", 1, 5, "a 64-bit integer"),
        ("a = -0x8000000000000001", 1, 5, "a 64-bit integer"),
        ("a = 0x" + "0" * 9_000 + "1" + "0" * 16, 1, 5, "a 64-bit integer"),
        ("a = " + "9" * 16_000, 1, 5, "a 64-bit integer"),
        ("a = " + "9" * 16_000 + ".0", 1, 5, "a finite number"),
        ("a != 2", 1, 3, "a comparison"),
        ("a == 2", 1, 4, "a value"),
        ("a = :b", 1, 5, "a value"),
        ("a = 'x", 1, 5, "a closing '"),
        ('"a = 1', 1, 1, 'a closing "'),
        ('"" = 1', 1, 1, "a name"),
        ("é = 'ü' oder b", 1, 9, "AND"),
        ("a = 9223372036854775808", 1, 5, "a 64-bit integer"),
        ("a = -9223372036854775809", 1, 5, "a 64-bit integer"),
        ("a = 1e999", 1, 5, "a finite number"),
        ("a \ud800", 1, 3, "a character"),
        ("'a'", 1, 1, "a condition"),
        ("3", 1, 1, "a condition"),
        ("a + 1", 1, 1, "a condition"),
        ("a AND 3", 1, 7, "a condition"),
        ("NOT 'x'", 1, 5, "a condition"),
        ("_key OR a", 1, 1, "a condition"),
        ("a + 'x' > 1", 1, 5, "a number"),
        ("-TRUE = a", 1, 2, "a number"),
        ("_log * 2 > 1", 1, 1, "a number"),
        ("(a > 1) = TRUE", 1, 2, "a value"),
        ("(a > 1) + 1 > 2", 1, 2, "a number"),
        ("(a AND b) IS NULL", 1, 2, "a value"),
        ("_value", 1, 1, ONLY_NULL),
        ("NOT _value", 1, 5, ONLY_NULL),
        ("_value = 'x'", 1, 1, ONLY_NULL),
        ("a > 1 AND 'x' = _value", 1, 17, ONLY_NULL),
        ("_value LIKE '%x%'", 1, 1, ONLY_NULL),
        ("_value IN ('x')", 1, 1, ONLY_NULL),
        ("_value + 1 IS NULL", 1, 1, ONLY_NULL),
        ("-_value IS NULL", 1, 2, ONLY_NULL),
        ("a BETWEEN 1 AND _value", 1, 17, ONLY_NULL),
    ],
)
def test_a_malformed_filter_names_line_column_and_what_was_expected(
    text: str, line: int, column: int, expected: str
) -> None:
    with pytest.raises(InvalidFilter) as caught:
        parse(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert expected in caught.value.expected
    assert f"line {line}, column {column}" in str(caught.value)


@pytest.mark.parametrize("pattern", ["a!", "!a", "a!!!"])
def test_an_escape_before_an_ordinary_character_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidFilter, match="must stand before"):
        parse(f"a LIKE '{pattern}' ESCAPE '!'")


def test_the_whole_message_reads_well() -> None:
    with pytest.raises(InvalidFilter) as caught:
        parse("a = 1 b")
    assert str(caught.value) == (
        "filter, line 1, column 7: found 'b'; expected AND, OR, an arithmetic operator or the end"
    )


def test_a_keyword_is_one_in_ascii_only() -> None:
    # dotless i: ordinary names, though they fold to keywords
    assert set(parse("lıke = 1 AND ıs = 2").names) == {"lıke", "ıs"}


@pytest.mark.parametrize(
    ("text", "limit", "size", "words"),
    [
        ("a = '" + "x" * 16_379 + "'", 16_384, 16_385, "16385 bytes"),
        ("a = '" + "é" * 8_190 + "'", 16_384, 16_386, "16386 bytes"),
        ("(" * 1_000_000, 16_384, 1_000_000, "1000000 bytes"),
        (" OR ".join(["a"] * 2_000), 2_000, 2_001, "2001 parts"),
        ("a IN (" + ", ".join(["1"] * 1_999) + ")", 2_000, 2_001, "2001 parts"),
        ("NOT " * 100 + "a", 100, 101, "nested 101 deep"),
        ("-" * 150 + "a = 1", 100, 152, "nested 152 deep"),
        ("-" * 4_000 + "a = 1", 2_000, 4_003, "4003 parts"),
        ("a" + " + a" * 2_000 + " = 1", 2_000, 4_003, "4003 parts"),
        ("a - (" * 100 + "a" + ")" * 100 + " = 1", 100, 102, "nested 102 deep"),
        (" AND ".join(["(a)"] * 2_000), 2_000, 2_001, "2001 parts"),
        ("(" * 2_000 + "a" + ")" * 2_000, 100, 2_000, "nested 2000 deep"),
        ("(" * 101 + "a" + ")" * 101, 100, 101, "nested 101 deep"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_filter_over_a_cap_is_too_large(text: str, limit: int, size: int, words: str) -> None:
    with pytest.raises(TooLarge) as caught:
        parse(text)
    assert (caught.value.limit, caught.value.size) == (limit, size)
    assert words in str(caught.value)
    assert f"at most {limit}" in str(caught.value)


@pytest.mark.parametrize("name", AT_THE_CAPS)
def test_a_filter_at_a_cap_is_accepted_with_little_stack_left(name: str) -> None:
    depth, limit = len(inspect.stack()), sys.getrecursionlimit()
    sys.setrecursionlimit(depth + 500)
    try:
        parsed = parse(AT_THE_CAPS[name])
        for a in (1, 2.5, "x", True, None):
            assert parsed.evaluate({"a": a, "b": 1}) in (True, False, None)
    finally:
        sys.setrecursionlimit(limit)
