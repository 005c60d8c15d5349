"""The compiled closures against a slow evaluator that shares nothing with them."""

from __future__ import annotations

import string
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.errors import InvalidInput
from millstream.filters import parse
from millstream.filters.like import compile_pattern, parse_pattern
from tests.property.examples import examples
from tests.unit.filters.cases import (
    like_by_table,
    random_condition,
    random_row,
    reference,
    render,
)


@settings(max_examples=examples(1_000))
@given(st.randoms(use_true_random=False))
def test_a_filter_answers_as_the_slow_evaluator_does(random: Random) -> None:
    tree = random_condition(random)
    text = render(tree, random)
    parsed = parse(text)
    for _ in range(3):
        row = random_row(random)
        fields = (row.key, row.timestamp, row.log)
        answer = parsed.evaluate(row.headers, *fields, has_value=row.has_value)
        assert answer == reference(tree, row), (text, row)
        found = parsed.matches(row.headers, *fields, has_value=row.has_value)
        assert found is (answer is True)
        if answer and parsed.anchor is not None:
            name, texts = parsed.anchor
            assert row.headers[name] in texts, (text, row)


def test_ten_thousand_seeded_filters_answer_as_the_slow_evaluator_does() -> None:
    random = Random(20_240_501)
    for number in range(10_000):
        tree, row = random_condition(random), random_row(random)
        text = render(tree, random)
        fields = (row.key, row.timestamp, row.log)
        answer = parse(text).evaluate(row.headers, *fields, has_value=row.has_value)
        assert answer == reference(tree, row), (number, text, row)


@settings(max_examples=examples(1_000))
@given(st.text("ab%_!", max_size=12), st.text("ab%_!😀", max_size=24))
@example("%a_b%ab%", "aabab")
@example("%ab%b", "aab")
def test_like_finds_what_a_table_finds(pattern: str, text: str) -> None:
    assert compile_pattern(parse_pattern(pattern))(text) == like_by_table(text, pattern, None)


def refusal(text: str) -> InvalidInput | None:
    try:
        parse(text)
    except InvalidInput as error:
        return error
    return None


@settings(max_examples=examples(500))
@given(st.text(alphabet=string.printable + "é😀\x00", max_size=60))
def test_any_text_is_a_filter_or_refused_as_invalid(text: str) -> None:
    error = refusal(text)
    assert error is None or error.message


WORDS = [
    "a",
    "1",
    "2.5",
    "0x1F",
    "0x",
    "017",
    "12L",
    "'x'",
    "TRUE",
    "AND",
    "OR",
    "NOT",
    "IN",
    "LIKE",
    "IS",
    "NULL",
    '"q"',
    "\n",
]
SIGNS = ["(", ")", ",", "=", "<>", "<", "+", "-", "*", "/", "BETWEEN", "ESCAPE", "_key", "?", "'"]


@settings(max_examples=examples(1_000))
@given(st.lists(st.sampled_from(WORDS + SIGNS), max_size=12))
def test_words_in_any_order_are_a_filter_or_refused_where_they_stand(words: list[str]) -> None:
    text = " ".join(words)
    if error := refusal(text):
        lines = text.split("\n")
        assert 1 <= error.line <= len(lines)
        assert 1 <= error.column <= len(lines[error.line - 1]) + 1
        assert error.expected
