"""Filters against Jakarta Messaging 3.1, section 3.8.1, read by a parser that shares nothing with ours.

The parser below follows the standard's text: identifiers, literals, white space, precedence. With
`extended` it also follows what docs/FILTERS.md lists as differences. Of every text that the grammar
or chance makes, three things must hold: our parser accepts it exactly if the extended parser does;
it accepts all that the standard accepts; and both give the same answer for every message.
"""

from __future__ import annotations

import re
import struct
import unicodedata
from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.errors import InvalidFilter
from millstream.filters import parse
from tests.property.examples import examples
from tests.unit.filters.cases import Row, Tree, reference

KEYWORDS = ("NULL", "TRUE", "FALSE", "NOT", "AND", "OR", "BETWEEN", "LIKE", "IN", "IS", "ESCAPE")
WHITE_SPACE = " \t\f\n\r"
"""That of Java: space, horizontal tab, form feed and line terminators."""
FIELDS = {"_key": "string", "_timestamp": "number", "_log": "string"}


class Refused(Exception):
    """The text is no selector."""


# Words.


def _words(text: str, *, extended: bool) -> list[tuple[str, Any]]:
    """The words of a text, each with its kind."""
    found: list[tuple[str, Any]] = []
    at = 0
    while at < len(text):
        character = text[at]
        if character in WHITE_SPACE or (extended and character.isspace()):
            at += 1
        elif character == "'" or (extended and character == '"'):
            word, at = _quoted(text, at)
            found.append(("string" if character == "'" else "name", word))
            if character == '"' and not word:
                raise Refused
        elif character in "0123456789" or (character == "." and text[at + 1 : at + 2].isdigit()):
            number, at = _number(text, at)
            found.append(("number", number))
        elif _begins_name(character, extended=extended):
            end = at + 1
            while end < len(text) and _is_in_name(text[end], extended=extended):
                end += 1
            word, at = text[at:end], end
            is_keyword = word.isascii() and word.upper() in KEYWORDS
            found.append(("keyword", word.upper()) if is_keyword else ("plain name", word))
        else:
            sign = next((one for one in ("<=", ">=", "<>") if text.startswith(one, at)), character)
            if sign not in ("<=", ">=", "<>", "<", ">", "=", "+", "-", "*", "/", "(", ")", ","):
                raise Refused
            found.append(("sign", sign))
            at += len(sign)
    return found


def _quoted(text: str, at: int) -> tuple[str, int]:
    quote, word = text[at], ""
    at += 1
    while at < len(text):
        if text[at] != quote:
            word += text[at]
            at += 1
        elif text[at + 1 : at + 2] == quote:
            word += quote
            at += 2
        else:
            return word, at + 1
    raise Refused


def _begins_name(character: str, *, extended: bool) -> bool:
    """`Character.isJavaIdentifierStart`; extended, also digits that are no decimal ones."""
    kind = unicodedata.category(character)
    return kind[0] == "L" or kind in ("Nl", "Sc", "Pc") or (extended and kind == "No")


def _is_in_name(character: str, *, extended: bool) -> bool:
    """`Character.isJavaIdentifierPart`, without what is ignorable but for the two joiners."""
    kind = unicodedata.category(character)
    marks = kind in ("Nd", "Mn", "Mc") or character in "\u200c\u200d"
    return marks or _begins_name(character, extended=extended)


INTEGER = re.compile(r"(0[xX][0-9a-fA-F_]+|0[bB][01_]+|[0-9][0-9_]*)([lL]?)")
FLOAT = re.compile(
    r"(0[xX](?=[0-9a-fA-F_.]*[0-9a-fA-F])[0-9a-fA-F_]*\.?[0-9a-fA-F_]*[pP][+-]?[0-9][0-9_]*"
    r"|[0-9][0-9_]*\.(?:[0-9][0-9_]*)?(?:[eE][+-]?[0-9][0-9_]*)?|\.[0-9][0-9_]*(?:[eE][+-]?[0-9][0-9_]*)?"
    r"|[0-9][0-9_]*[eE][+-]?[0-9][0-9_]*|[0-9][0-9_]*(?=[fFdD]))([fFdD]?)"
)


def _number(text: str, at: int) -> tuple[int | float, int]:
    """A literal of Java's; what follows it directly must not go on as a name or a number."""
    for pattern, make in ((FLOAT, _float), (INTEGER, _integer)):
        # A keyword may follow without a space: so a suffix counts only at the end of a word.
        match = pattern.match(text, at)
        if match is None:
            continue
        digits, suffix = match[1], match[2]
        end = match.end()
        if suffix and end < len(text) and (text[end].isalnum() or text[end] in "_$"):
            if pattern is FLOAT and "." not in digits and not re.search("[eEpP]", digits):
                continue
            end, suffix = end - 1, ""
        parts = re.split(r"[.eEpP+-]", digits[2:] if digits[:2].lower() in ("0x", "0b") else digits)
        if digits[:2].lower() == "0x" and pattern is INTEGER:
            parts = [digits[2:]]
        if any(part.startswith("_") or part.endswith("_") for part in parts):
            raise Refused
        return make(digits.replace("_", ""), suffix), end
    raise Refused


def _integer(digits: str, suffix: str) -> int:
    del suffix
    base = {"0x": 16, "0b": 2}.get(digits[:2].lower(), 8 if digits[0] == "0" else 10)
    if base == 8 and re.search("[89]", digits):
        raise Refused
    return int(digits[2:] if base in (16, 2) else digits, base)


def _float(digits: str, suffix: str) -> float:
    try:
        number = float.fromhex(digits) if digits[:2].lower() == "0x" else float(digits)
    except OverflowError:  # only of hexadecimal digits: decimal digits give infinity
        raise Refused from None
    if suffix in ("f", "F") and suffix:
        try:
            number = struct.unpack("<f", struct.pack("<f", number))[0]
        except OverflowError:
            raise Refused from None
    if number == float("inf"):
        raise Refused
    return number


# Sentences.


class Reader:
    """Reads a selector by recursive descent."""

    def __init__(self, text: str, *, extended: bool) -> None:
        self.extended = extended
        self.words = [*_words(text, extended=extended), ("end", "")]
        self.at = 0

    def whole(self) -> Tree:
        found = self.condition()
        if self.words[self.at][0] != "end":
            raise Refused
        return self.checked(found)

    def next_is(self, *wanted: str) -> str | None:
        """Take the next word if it is one of these signs or keywords."""
        kind, word = self.words[self.at]
        if kind in ("sign", "keyword") and word in wanted:
            self.at += 1
            return str(word)
        return None

    def need(self, wanted: str) -> None:
        if self.next_is(wanted) is None:
            raise Refused

    def condition(self) -> Tree:
        return self._joined("OR", lambda: self._joined("AND", self.negation))

    def _joined(self, keyword: str, part: Callable[[], Tree]) -> Tree:
        found = [part()]
        while self.next_is(keyword):
            found.append(part())
        if len(found) == 1:
            return found[0]
        return (keyword.lower(), [self.checked(one) for one in found])

    def negation(self) -> Tree:
        if self.next_is("NOT"):
            return ("not", self.checked(self.negation()))
        return self.predicate()

    def predicate(self) -> Tree:
        left = self.sum()
        if symbol := self.next_is("=", "<>", "<", "<=", ">", ">="):
            right = self.sum()
            if not self.extended and symbol not in ("=", "<>"):
                self.ordered(left, right)
            return ("compare", symbol, self.value(left), self.value(right))
        negated = self.words[self.at] == ("keyword", "NOT")
        if negated:
            self.at += 1
        found = self._test(left)
        if found is None:
            if negated:
                raise Refused
            return left
        return ("not", found) if negated else found

    def _test(self, left: Tree) -> Tree | None:
        if self.next_is("BETWEEN"):
            low = self.sum()
            self.need("AND")
            high = self.sum()
            if not self.extended:
                self.ordered(left, low, high)
            return ("between", self.value(left), self.value(low), self.value(high))
        if self.next_is("IN"):
            self.need("(")
            items = [self.item()]
            while self.next_is(","):
                items.append(self.item())
            self.need(")")
            return ("in", self.named(left), items)
        if self.next_is("LIKE"):
            pattern = self.string()
            escape = self.string() if self.next_is("ESCAPE") else None
            self.check_pattern(pattern, escape)
            return ("like", self.named(left), pattern, escape)
        if self.words[self.at - 1] != ("keyword", "NOT") and self.next_is("IS"):
            is_not = self.next_is("NOT")
            self.need("NULL")
            found = ("is null", self.named(left))
            return ("not", found) if is_not else found
        return None

    def item(self) -> Any:
        kind, word = self.words[self.at]
        if kind == "string":
            self.at += 1
            return word
        if not self.extended:
            raise Refused
        if sign := self.next_is("+", "-"):
            kind, word = self.words[self.at]
            if kind != "number":
                raise Refused
            self.at += 1
            return self.in_range(-word if sign == "-" else word)
        if kind == "number":
            self.at += 1
            return self.in_range(word)
        if boolean := self.next_is("TRUE", "FALSE"):
            return boolean == "TRUE"
        raise Refused

    def string(self) -> str:
        kind, word = self.words[self.at]
        if kind != "string":
            raise Refused
        self.at += 1
        return str(word)

    def check_pattern(self, pattern: str, escape: str | None) -> None:
        if escape is None:
            return
        if len(escape) != 1:
            raise Refused
        signs = iter(pattern)
        if any(sign == escape and next(signs, "") not in ("%", "_", escape) for sign in signs):
            raise Refused

    def sum(self) -> Tree:
        left = self.product()
        while symbol := self.next_is("+", "-"):
            left = ("arithmetic", symbol, self.number(left), self.number(self.product()))
        return left

    def product(self) -> Tree:
        left = self.signed()
        while symbol := self.next_is("*", "/"):
            left = ("arithmetic", symbol, self.number(left), self.number(self.signed()))
        return left

    def signed(self) -> Tree:
        if sign := self.next_is("+", "-"):
            part = self.number(self.signed())
            if part[0] == "literal":
                return ("literal", -part[1] if sign == "-" else part[1])
            return ("sign", sign, part)
        return self.primary()

    def primary(self) -> Tree:
        if self.next_is("("):
            found = self.condition()
            self.need(")")
            return found
        if boolean := self.next_is("TRUE", "FALSE"):
            return ("literal", boolean == "TRUE")
        kind, word = self.words[self.at]
        self.at += 1
        if kind in ("string", "number"):
            return ("literal", word)
        if kind == "plain name":
            return ("field", word) if self.extended and word in FIELDS else ("header", word)
        if kind == "name":
            return ("header", word)
        raise Refused

    # What a part may be.

    def kind(self, tree: Tree) -> str:
        match tree:
            case ("literal", bool()):
                return "boolean"
            case ("literal", str()):
                return "string"
            case ("literal", _) | ("arithmetic" | "sign", *_):
                return "number"
            case ("header", _):
                return "any"
            case ("field", name):
                return FIELDS[name]
        return "condition"

    def in_range(self, number: int | float) -> int | float:
        if isinstance(number, int) and not -(2**63) <= number < 2**63:
            raise Refused
        return number

    def checked(self, tree: Tree) -> Tree:
        if self.kind(tree) in ("string", "number"):
            raise Refused
        return tree

    def value(self, tree: Tree) -> Tree:
        if self.kind(tree) == "condition":
            raise Refused
        if self.kind(tree) == "number" and tree[0] == "literal":
            self.in_range(tree[1])
        return tree

    def number(self, tree: Tree) -> Tree:
        if self.kind(tree) not in ("number", "any"):
            raise Refused
        return tree

    def named(self, tree: Tree) -> Tree:
        """What stands before IN, LIKE and IS NULL: in the standard, an identifier."""
        if not self.extended and tree[0] != "header":
            raise Refused
        return self.value(tree)

    def ordered(self, *sides: Tree) -> None:
        """In the standard only numbers have an order."""
        for side in sides:
            self.number(side)


def read(text: str, *, extended: bool) -> Tree | None:
    """What a text means; None if it is refused."""
    try:
        found = Reader(text, extended=extended).whole()
        _check_ranges(found)
    except Refused:
        return None
    return found


def _check_ranges(tree: Any) -> None:
    """Refuse integers beyond 64 bits, once the signs before them are known."""
    if isinstance(tree, tuple) and tree and tree[0] == "literal":
        if type(tree[1]) is int and not -(2**63) <= tree[1] < 2**63:
            raise Refused
        return
    for part in tree if isinstance(tree, tuple | list) else ():
        _check_ranges(part)


# Texts.

NAMES = [
    "a",
    "b",
    "c",
    "$d",
    "_e",
    "über",
    "€f",
    "x‿y",
    "e\u0301",
    "Ⅷ",
    "nicht",
    "NOTa",
    "日本",
    "a\u200db",
]
VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    2,
    7,
    15,
    -1,
    2**53 + 1,
    0.5,
    1.0,
    15.0,
    0.1,
    "",
    "a",
    "ab",
    "a%b",
    "'",
]
ROWS = [
    Row({name: random.choice(VALUES) for name in NAMES}, None, None, None)
    for random in map(Random, range(12))
]


def spaces(at_least: int = 0) -> st.SearchStrategy[str]:
    return st.text(WHITE_SPACE, min_size=at_least, max_size=2)


INTEGERS = st.sampled_from(
    [
        "0",
        "1",
        "7",
        "15",
        "017",
        "00",
        "0_1",
        "1_000",
        "10L",
        "0xF",
        "0XfL",
        "0x0_f",
        "0b1111",
        "0B1l",
        "9223372036854775807",
        "0x7fffffffffffffff",
        "0777777777777777777777",
        "2l",
    ]
)
FLOATS = st.sampled_from(
    [
        "0.5",
        "7.",
        ".5",
        "1e0",
        "1E1",
        "1.5e-1",
        "15d",
        "1f",
        "0.1f",
        ".1F",
        "7.D",
        "09.5",
        "1_5.0_0",
        "0x1p0",
        "0x1.8p3",
        "0x.8P+1f",
        "1e-400",
        "5E-1d",
    ]
)
STRINGS = st.text("ab%_!' é", max_size=4).map(lambda text: "'" + text.replace("'", "''") + "'")
PATTERNS = st.sampled_from(
    ["'a%'", "'_'", "'%'", "'a!%b' ESCAPE '!'", "'a!!%' ESCAPE '!'", "'%''%'", "'a\\_' ESCAPE '\\'"]
)
NAME = st.sampled_from(NAMES)


@st.composite
def keyword(draw: st.DrawFn, word: str) -> str:
    """A keyword in any case, with white space around each of its words."""
    cased = draw(st.sampled_from([word, word.lower(), word.title()]))
    return draw(spaces(1)) + draw(spaces(1)).join(cased.split()) + draw(spaces(1))


@st.composite
def sign(draw: st.DrawFn, symbols: str) -> str:
    return draw(spaces()) + draw(st.sampled_from(symbols.split())) + draw(spaces())


def joined(*parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(*parts).map("".join)


NUMBERS = st.recursive(
    st.one_of(INTEGERS, FLOATS, NAME),
    lambda part: st.one_of(
        joined(part, sign("+ - * /"), part),
        joined(st.sampled_from(["-", "+", "- "]), part),
        joined(st.just("("), spaces(), part, spaces(), st.just(")")),
    ),
    max_leaves=5,
)
PREDICATES = st.one_of(
    joined(NUMBERS, sign("= <> < <= > >="), NUMBERS),
    joined(NAME, sign("= <>"), STRINGS),
    joined(NAME, sign("= <>"), st.sampled_from(["TRUE", "false"])),
    joined(NUMBERS, keyword("BETWEEN"), NUMBERS, keyword("AND"), NUMBERS),
    joined(NUMBERS, keyword("NOT BETWEEN"), NUMBERS, keyword("AND"), NUMBERS),
    joined(NAME, keyword("IN"), st.just("("), STRINGS, sign(","), STRINGS, st.just(")")),
    joined(NAME, keyword("NOT IN"), st.just("("), STRINGS, st.just(")")),
    joined(NAME, st.one_of(keyword("LIKE"), keyword("NOT LIKE")), PATTERNS),
    joined(NAME, st.one_of(keyword("IS NULL"), keyword("IS NOT NULL"))),
    st.one_of(NAME, st.sampled_from(["TRUE", "FALSE"])),
)
SELECTORS = st.recursive(
    PREDICATES,
    lambda part: st.one_of(
        joined(part, st.one_of(keyword("AND"), keyword("OR")), part),
        joined(keyword("NOT"), part),
        joined(st.just("("), spaces(), part, spaces(), st.just(")")),
    ),
    max_leaves=6,
)
"""What the standard allows; its numbers are within their ranges unless signs take them out."""

LOOSE = st.lists(
    st.one_of(
        st.sampled_from([*KEYWORDS, "not", "In", "(", ")", ",", "=", "<>", "<", "+", "-", "*", "/", '"a"']),
        st.sampled_from(["08", "1__0", "1_", "0x", "0b2", "1.2.3", "12LL", "1fd", "_1", "\u00a0", "\u3000", "²"]),
        INTEGERS, FLOATS, STRINGS, NAME, PATTERNS,
    ),
    max_size=9,
)  # fmt: skip
"""Words in any order."""


def answer_of(text: str) -> Callable[[Row], bool | None] | None:
    """How our filter answers; None if it is refused."""
    try:
        found = parse(text)
    except InvalidFilter:
        return None
    return lambda row: found.evaluate(row.headers, row.key, row.timestamp, row.log)


def agree(text: str) -> None:
    """Hold our parser and evaluator against the extended ones."""
    wanted, found = read(text, extended=True), answer_of(text)
    assert (found is None) == (wanted is None), (text, wanted)
    for row in ROWS if found is not None and wanted is not None else ():
        assert found(row) == reference(wanted, row), (text, row)


@settings(max_examples=examples(600), deadline=None)
@given(SELECTORS)
@example("a = 017 AND b = 10L")
@example("NOT a = 1 AND b OR c")
@example("a - -1 * 2 = 0x.8P+1f")
@example("a=1AND b IS NULL")
def test_what_the_standard_accepts_is_accepted_and_means_the_same(text: str) -> None:
    if read(text, extended=False) is not None:
        assert read(text, extended=False) == read(text, extended=True)
        assert answer_of(text) is not None, text
    agree(text)


@settings(max_examples=examples(1_500), deadline=None)
@given(LOOSE, st.sampled_from(["", " ", "\t", "\u00a0"]))
@example(["1", "LIKE", "'x'"], "")
@example(["1", "L"], "")
@example(["a", "=", "1.5", "f"], "")
@example(["a", "=", "0x1", "L"], "")
@example(["0x1.8p3", "1_000"], "")
@example(["a", "=", "0x1.8p3", "1_000"], "")
def test_words_in_any_order_are_judged_alike(words: list[str], between: str) -> None:
    agree(between.join(words))


@settings(max_examples=examples(800), deadline=None)
@given(st.text("01789_.eExXbBpPfFdDlL+-", min_size=1, max_size=9))
@example("0x1.p1")
@example("0x.p1")
@example("1e1f")
@example("16777217.0000001f")
def test_numbers_are_read_as_java_reads_them(number: str) -> None:
    agree(f"a = {number}")
    agree(f"a IN ({number})")


EXTENSIONS = {
    "n < 'a'": "order of text",
    "n BETWEEN 'a' AND 'b'": "order of text",
    "n IN (1, 2)": "numbers in a list",
    "n IN (TRUE)": "booleans in a list",
    "n + 1 IN ('a')": "a value before IN",
    "1 LIKE 'a'": "a value before LIKE",
    "n + 1 IS NULL": "a value before IS NULL",
    '"n" = 1': "quoted names",
    "n\u00a0= 1": "other white space",
    "n\u3000=\u20031\u2028": "other white space",
    "x² = 1": "other letters and digits",
    "_key IS NULL": "fields of the record",
    "_timestamp > 1": "fields of the record",
}
"""What our filters accept and the standard does not; docs/FILTERS.md gives the reason of each."""


@pytest.mark.parametrize("text", EXTENSIONS)
def test_an_extension_is_one_and_is_accepted(text: str) -> None:
    is_of_standard = read(text, extended=False) is not None
    assert not is_of_standard or EXTENSIONS[text] == "fields of the record"
    agree(text)
    assert answer_of(text) is not None


@pytest.mark.parametrize("text", ["a = 0xFFFFFFFFFFFFFFFF", "a\u0001 = 1", "", " "])
def test_what_the_standard_accepts_and_filters_do_not_is_refused(text: str) -> None:
    assert answer_of(text) is None


@pytest.mark.parametrize("number", ["16777217.0000001f", "1.00000017881393432617187499f"])
def test_a_single_is_rounded_once(number: str) -> None:
    """As Java does: by way of float64 the second rounding would find a tie that there is not."""
    exact = Fraction(number[:-1])
    (value,) = (parse(f"a = {number}").tree.right.value,)  # type: ignore[union-attr]
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    others = [struct.unpack("<f", struct.pack("<I", bits + step))[0] for step in (-1, 1)]
    assert all(abs(Fraction(value) - exact) < abs(Fraction(one) - exact) for one in others)
