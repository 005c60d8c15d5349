"""LIKE: what it matches, and that no pattern makes it slow."""

from __future__ import annotations

import math
import time
import timeit

import pytest

from millstream.filters import parse


@pytest.mark.parametrize(
    ("text", "pattern", "expected"),
    [
        ("abc", "abc", True), ("abc", "ABC", False), ("abc", "ab", False), ("", "", True),
        ("", "%", True), ("", "_", False), ("abc", "a%", True), ("abc", "%c", True),
        ("abc", "%b%", True), ("abc", "a_c", True), ("abc", "___", True), ("abc", "____", False),
        ("abc", "%%", True), ("abc", "a%b%c", True), ("abc", "a%c%b", False), ("aba", "aba%a", False),
        ("ab", "ab%b", False), ("ab", "%a_b%", False), ("xab", "%ab%b", False), ("aaxb", "%a_b%", True),
        ("xaybz", "_a_b_", True), ("a\nb", "a%b", True), ("a\nb", "a_b", True), ("😀", "_", True),
        ("é", "_", True), ("e\u0301", "_", False), ("a.c", "a.c", True), ("abc", "a.c", False),
        ("[a]", "[a]", True), ("a\\b", "a\\b", True), ("mississippi", "m%issip%", True),
        ("mississippi", "%s_p%i", True), ("mississippi", "%ss%ss%ss%", False),
    ],
)  # fmt: skip
def test_a_pattern_matches_the_whole_text(text: str, pattern: str, expected: bool) -> None:
    assert parse(f"a LIKE '{pattern}'").evaluate({"a": text}) is expected
    assert parse(f"a NOT LIKE '{pattern}'").evaluate({"a": text}) is not expected


@pytest.mark.parametrize(
    ("text", "condition", "expected"),
    [
        ("100%", "a LIKE '100!%' ESCAPE '!'", True),
        ("1000", "a LIKE '100!%' ESCAPE '!'", False),
        ("a_b", "a LIKE 'a\\_b' ESCAPE '\\'", True),
        ("axb", "a LIKE 'a\\_b' ESCAPE '\\'", False),
        ("!x", "a LIKE '!!%' ESCAPE '!'", True),
        ("it's", "a LIKE '%''s'", True),
        ("%", "a LIKE '%%' ESCAPE '%'", True),
        ("x", "a LIKE '%%' ESCAPE '%'", False),
    ],
)
def test_an_escaped_sign_is_itself(text: str, condition: str, expected: bool) -> None:
    assert parse(condition).evaluate({"a": text}) is expected


@pytest.mark.parametrize("value", [5, 5.0, True, math.inf])
def test_what_is_no_string_is_not_like_any_pattern(value: int | float | bool) -> None:
    assert parse("a LIKE '%'").evaluate({"a": value}) is False
    assert parse("a NOT LIKE '%'").evaluate({"a": value}) is True


@pytest.mark.parametrize("value", [None, math.nan])
def test_what_is_nothing_is_unknown(value: float | None) -> None:
    assert parse("a LIKE '%'").evaluate({"a": value}) is None
    assert parse("a NOT LIKE '%'").evaluate({"a": value}) is None


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("%a%a%a%a%a%b", "a" * 100_000),
        ("%a%a%a%a%a%b%", "a" * 100_000),
        ("%a_a_a_a_b%", "a" * 100_000),
        ("%" + "a_" * 500 + "b%", "a" * 100_000),
        ("%a" * 1_000 + "%b", "a" * 100_000),
        ("%" + "_%" * 1_000 + "b_", "a" * 100_000),
    ],
    ids=["suffix", "middle", "any one", "long", "many", "wild"],
)
def test_a_hostile_pattern_takes_time_in_proportion_to_the_text(pattern: str, text: str) -> None:
    condition = parse(f"a LIKE '{pattern}'")
    headers = {"a": text}
    assert condition.evaluate(headers) is False
    seconds = timeit.timeit(lambda: condition.matches(headers), timer=time.thread_time, number=1)
    assert seconds < 1.0  # of its processor; a backtracking matcher needs years
