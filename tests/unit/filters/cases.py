"""Random filters and rows, and a slow evaluator to hold against the real ones.

A case is a tree of plain tuples; `render` writes it as text, `reference` says what it should give.
The reference shares nothing with the package: exact arithmetic on fractions, logic as minimum and
maximum of 0, ½ and 1, LIKE by a table. Everything draws from a `random.Random`, so the same
generator serves Hypothesis (which shrinks it) and Spark (which wants thousands at once).
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any

Tree = tuple[Any, ...]

STRINGS = [
    "", "a", "A", "ab", "b", "aab", "abab", "é", "e\u0301", "ß", "\uffff", "😀", "a😀b", "a%b", "a_b",
    "\\", "\\%", "'", "''", '"', "`", "\n", "a\nb", "a\0b", "${x}", " ", "a ", "1", "true", "日本",
]  # fmt: skip
INTEGERS = [
    0, 1, -1, 2, -2, 3, 7, 10, 100, 2**31, 2**53, 2**53 + 1, -(2**53) - 1, 2**62,
    2**63 - 1, 2**63 - 2, 2**63 - 512, -(2**63), -(2**63) + 1,
]  # fmt: skip
FINITE = [
    0.0, -0.0, 0.5, -0.5, 0.1, 1.0, -1.0, 1.5, 2.0, -2.5, 3.0, 100.0, 2.0**53, 2.0**53 + 2, 2.0**62,
    2.0**63, -(2.0**63), 2.0**63 - 1024, 2.0**64, -1e19, 1e300, 1.7976931348623157e308, 5e-324, 1e-7,
]  # fmt: skip
FLOATS = [*FINITE, math.inf, -math.inf, math.nan]
NAMES = ["a", "b", "c", "ü", "$d", "_e", "order.id", 'quo"ted', "_key", "AND", "x'y\\z`"]
PLAIN_NAMES = {"a", "b", "c", "ü", "$d", "_e"}
PATTERNS = ["", "%", "_", "a%", "%b", "%a%", "a_b", "a%b%", "%_a%b", "__", "%a_%_b", "%a%b%", "é%"]
ESCAPED = [
    ("a!%b", "!"),
    ("%!_%", "!"),
    ("\\\\%", "\\"),
    ("%%%%", "%"),
    ("a__b", "_"),
    ("😀%!!", "!"),
]
COMPARISONS = ["=", "<>", "<", "<=", ">", ">="]

AT_THE_CAPS = {
    "bytes": "a = '" + "x" * 16_378 + "'",
    "bytes of two": "a = '" + "é" * 8_189 + "'",
    "or": " OR ".join(["a"] * 1_999),
    "comparisons": " AND ".join(f"a <> {number}" for number in range(666)),
    "names": " OR ".join(["a = b"] * 666),
    "integers": "a IN (" + ", ".join(map(str, range(1_998))) + ")",
    "strings": "a NOT IN (" + ",".join(f"'{number}'" for number in range(1_997)) + ")",
    "not": "NOT " * 99 + "a",
    "not and or": "NOT (b OR NOT (b AND " * 24 + "a" + "))" * 24,
    "and or": "b = 1 AND (b OR (" * 49 + "a" + "))" * 49,
    "sum": "a" + " + a" * 98 + " = 1",
    "quotient": "a" + " / b" * 98 + " = 1",
    "differences": "a - (" * 98 + "b" + ")" * 98 + " = 1",
    "long sum": "a" + " + a" * 998 + " = 1",
    "long sum of products": "a" + " + a * 2 - b / 3" * 249 + " <> b",
    "signs": "-" * 98 + "a = 1",
    "constants": "a" + " + 1" * 98 + " <= b",
    "floats": "1.5 * a" + " + 1.5 * a" * 97 + " > b",
    "many sums": " OR ".join(["a" + " + b" * 30 + " > 1"] * 31),
    "parentheses": "(" * 100 + "a" + ")" * 100,
    "parentheses in a string": "a = '" + "(" * 101 + "'",
    "long pattern": "a LIKE '" + "x_%" * 5_000 + "'",
    "pattern of one segment": "a LIKE '" + "x_" * 8_000 + "'",
    "pattern of many segments": "a NOT LIKE '" + "%x" * 7_999 + "%'",
    "pattern of many steps": "a LIKE '%" + "a_" * 2_000 + "%c'",
}
"""Filters that are as large as one may be, each in another way."""


@dataclass(frozen=True)
class Row:
    """A message, as far as a filter sees it."""

    headers: dict[str, Any]
    key: bytes | None
    timestamp: int | None
    log: str | None
    has_value: bool = True


def random_scalar(random: Random) -> Any:
    pools: list[list[Any]] = [STRINGS, INTEGERS, FLOATS, [True, False], [None], [0, 1, 2, 3, 0.5]]
    return random.choice(random.choice(pools))


def random_row(random: Random) -> Row:
    headers = {name: random_scalar(random) for name in NAMES if random.random() < 0.8}
    key = random.choice([None, b"", b"a", "é".encode(), b"\xff", b"\xed\xa0\x80", b"ab"])
    timestamp = random.choice([None, 0, 1, 1_700_000_000_000])
    log = random.choice([None, "a", "ab"])
    return Row(headers, key, timestamp, log, has_value=random.random() < 0.7)


def random_condition(random: Random, depth: int = 4) -> Tree:
    shape = random.randrange(12) if depth > 0 else random.randrange(6)
    value = random_value(random, depth - 2)
    match shape:
        case 0 | 1 | 2:
            return ("compare", random.choice(COMPARISONS), value, random_value(random, depth - 2))
        case 3:
            return ("header", random.choice(NAMES))
        case 4:
            null = ("is null", random.choice([value, value, ("field", "_value")]))
            return random.choice([null, ("literal", random.choice([True, False]))])
        case 5 | 6:
            # Spark makes a set of more than ten.
            count = random.choice([1, 2, 3, 15])
            return ("in", value, [random_literal(random) for _ in range(count)])
        case 7:
            return ("like", value, *random.choice([*((p, None) for p in PATTERNS), *ESCAPED]))
        case 8:
            bounds = [random_value(random, depth - 2) for _ in range(2)]
            return ("between", value, *bounds)
        case 9:
            return ("not", random_condition(random, depth - 1))
        case _:
            parts = [random_condition(random, depth - 1) for _ in range(random.randint(2, 3))]
            return (random.choice(["and", "or"]), parts)


def random_literal(random: Random) -> Any:
    pools: list[list[Any]] = [STRINGS, INTEGERS, FINITE]
    return random.choice([*random.choice(pools), 1, 2, 0.5, True, "a", "b"])


def random_value(random: Random, depth: int) -> Tree:
    if random.random() < 0.4:
        return ("literal", random_literal(random))
    return random_number(random, depth)


def random_number(random: Random, depth: int) -> Tree:
    shape = random.randrange(8 if depth > 0 else 5)
    match shape:
        case 0 | 1 | 2:
            return ("header", random.choice(NAMES))
        case 3:
            return ("field", random.choice(["_key", "_timestamp", "_log"]))
        case 4:
            return ("literal", random.choice([*INTEGERS, *FINITE, 1, 2, 3]))
        case 5:
            return ("sign", random.choice("+-"), random_operand(random, depth - 1, signed=True))
        case _:
            # Sometimes so many that they are computed step by step in Spark.
            number = random_operand(random, depth - 1)
            for _ in range(random.choice([1, 1, 1, 1, 2, 8])):
                sides = [number, random_operand(random, depth - 1)]
                random.shuffle(sides)
                number = ("arithmetic", random.choice("+-*/"), *sides)
            return number


def random_operand(random: Random, depth: int, *, signed: bool = False) -> Tree:
    """A number that no parser can know to be anything else; a sign before a literal is its own."""
    number = random_number(random, depth)
    known = number[0] == "field" and number[1] != "_timestamp"
    return ("header", "a") if known or (signed and number[0] == "literal") else number


# Text


def render(tree: Tree, random: Random, level: int = 0) -> str:
    """The tree as text, in parentheses where the grammar needs them, and sometimes elsewhere."""
    text, own_level = _render(tree, random)
    return f"({text})" if own_level < level or random.random() < 0.1 else text


def _render(tree: Tree, random: Random) -> tuple[str, int]:
    def word(text: str) -> str:
        return random.choice([text, text.lower()])

    def at(part: Tree, level: int) -> str:
        return render(part, random, level)

    match tree:
        case ("or", parts):
            return f" {word('OR')} ".join(at(part, 2) for part in parts), 1
        case ("and", parts):
            return f" {word('AND')} ".join(at(part, 3) for part in parts), 2
        case ("not", part):
            return f"{word('NOT')} {at(part, 3)}", 3
        case ("compare", symbol, left, right):
            return f"{at(left, 5)}{random.choice(['', ' '])}{symbol} {at(right, 5)}", 4
        case ("between", value, low, high):
            return f"{at(value, 5)} {word('BETWEEN')} {at(low, 5)} AND {at(high, 5)}", 4
        case ("in", value, items):
            return (
                f"{at(value, 5)} {word('IN')} ({', '.join(_literal(item, random) for item in items)})",
                4,
            )
        case ("like", value, pattern, escape):
            ending = "" if escape is None else f" {word('ESCAPE')} {_literal(escape, random)}"
            return f"{at(value, 5)} {word('LIKE')} {_literal(pattern, random)}{ending}", 4
        case ("is null", value):
            return f"{at(value, 5)} {word('IS NULL')}", 4
        case ("arithmetic", symbol, left, right):
            level = 5 if symbol in "+-" else 6
            return f"{at(left, level)} {symbol} {at(right, level + 1)}", level
        case ("sign", sign, part):
            return f"{sign}{at(part, 7)}", 7
        case ("literal", value):
            return _literal(value, random), 7
        case ("field", name):
            return name, 8
        case ("header", name):
            quoted = '"' + name.replace('"', '""') + '"'
            return name if name in PLAIN_NAMES else quoted, 8
    raise AssertionError(tree)


def _literal(value: Any, random: Random) -> str:
    match value:
        case str():
            return "'" + value.replace("'", "''") + "'"
        case bool():
            return str(value).upper()
        case int() if random.random() < 0.4:
            return _integer(value, random)
        case _:
            return repr(value)


def _integer(value: int, random: Random) -> str:
    """An integer in one of the forms that Java has for it."""
    sign, number = "-" * (value < 0), abs(value)
    grouped = f"{number:_}"
    forms = [hex(number), f"{number:#X}", bin(number), f"0{number:o}", grouped, str(number)]
    return sign + random.choice(forms) + random.choice(["", "", "L", "l"])


# Meaning

FALSE, UNKNOWN, TRUE = Fraction(0), Fraction(1, 2), Fraction(1)


def reference(tree: Tree, row: Row) -> bool | None:
    """What the filter should answer."""
    return {FALSE: False, UNKNOWN: None, TRUE: True}[_truth(tree, row)]


def _truth(tree: Tree, row: Row) -> Fraction:
    match tree:
        case ("or", parts):
            return max(_truth(part, row) for part in parts)
        case ("and", parts):
            return min(_truth(part, row) for part in parts)
        case ("not", part):
            return 1 - _truth(part, row)
        case ("compare", symbol, left, right):
            return _compare(symbol, _value(left, row), _value(right, row))
        case ("between", value, low, high):
            found = _value(value, row)
            lower = _compare(">=", found, _value(low, row))
            return min(lower, _compare("<=", found, _value(high, row)))
        case ("in", value, items):
            return max(_compare("=", _value(value, row), item) for item in items)
        case ("like", value, pattern, escape):
            found = _value(value, row)
            if _is_nothing(found):
                return UNKNOWN
            return Fraction(isinstance(found, str) and like_by_table(found, pattern, escape))
        case ("is null", value):
            return Fraction(_value(value, row) is None)
        case _:
            found = _value(tree, row)
            return UNKNOWN if _is_nothing(found) else Fraction(found is True)


def _compare(symbol: str, left: Any, right: Any) -> Fraction:
    if _is_nothing(left) or _is_nothing(right):
        return UNKNOWN
    if isinstance(left, str) and isinstance(right, str):
        pair: tuple[Any, Any] = (left.encode(), right.encode())
    elif isinstance(left, bool) and isinstance(right, bool) and symbol in ("=", "<>"):
        pair = (left, right)
    elif _is_number(left) and _is_number(right):
        pair = (_line(left), _line(right))
    else:
        return FALSE
    functions = {
        "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
        ">=": operator.ge,
    }  # fmt: skip
    return Fraction(functions[symbol](*pair))


def _is_nothing(value: Any) -> bool:
    """NULL or NaN, which nothing compares with."""
    return value is None or value != value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _line(number: int | float) -> tuple[int, Fraction]:
    """A place on the number line: infinities outside, everything else exact."""
    if number in (math.inf, -math.inf):
        return (1 if number > 0 else -1, Fraction(0))
    return (0, Fraction(number))


def _value(tree: Tree, row: Row) -> Any:
    match tree:
        case ("literal", value):
            return value
        case ("header", name):
            return row.headers.get(name)
        case ("field", "_key"):
            text = None if row.key is None else row.key.decode(errors="replace")
            return text if text is not None and text.encode() == row.key else None
        case ("field", "_value"):
            return row.has_value or None
        case ("field", name):
            return row.timestamp if name == "_timestamp" else row.log
        case ("sign", sign, part):
            return _compute(sign, 0, _value(part, row))
        case ("arithmetic", symbol, left, right):
            return _compute(symbol, _value(left, row), _value(right, row))
    raise AssertionError(tree)


def _compute(symbol: str, left: Any, right: Any) -> Any:
    if not (_is_number(left) and _is_number(right)):
        return None
    floating = isinstance(left, float) or isinstance(right, float)
    if symbol == "/" and right in (math.inf, -math.inf) and math.isfinite(left):
        return 0.0  # the one finite result with an infinite operand
    try:
        a = Fraction(float(left) if floating else left)
        b = Fraction(float(right) if floating else right)
        exact = {
            "+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "/": lambda: a / b,
        }[symbol]()  # fmt: skip
        if floating:
            return float(exact)
    except (ZeroDivisionError, OverflowError, ValueError):  # of zero, beyond float64, of NaN
        return None
    whole = math.trunc(exact)
    return whole if -(2**63) <= whole < 2**63 else None


def like_by_table(text: str, pattern: str, escape: str | None) -> bool:
    """Which beginnings of the text the pattern so far can produce, one step per sign."""
    reached = {0}
    signs = iter(pattern)
    for sign in signs:
        if sign == escape:
            wanted = next(signs)
            reached = {at + 1 for at in reached if text[at : at + 1] == wanted}
        elif sign == "%":
            reached = set(range(min(reached, default=len(text) + 1), len(text) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(text) and sign in ("_", text[at])}
    return len(text) in reached
