"""Text to tree: the only place that knows `lark`.

A filter is either a tree within its caps, or refused with the line, the column and what was
expected there. Both count from 1; a column is a character, not a byte.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from math import inf, isfinite, isinf
from struct import pack, unpack
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedToken, v_args

from millstream.errors import InvalidFilter, TooLarge
from millstream.filters import tree
from millstream.filters.grammar import GRAMMAR, NUMBERS, NoNameCharacter, retag, words
from millstream.filters.like import parse_pattern

if TYPE_CHECKING:
    from millstream.filters.tree import AnyNode, Condition, Constant, Value

_A_NUMBER: Final = "a number such as 12, 12.5, 1e3 or 0x1F"
_DIGITS_MAX: Final = 70
"""More of them are beyond 64 bits in any base; Python refuses to read thousands."""

_WORD: Final = re.compile(r"[\w$.]+")
_QUOTED_TEXT: Final = re.compile(r"""'[^']*'|"[^"]*\"""")


def parse_tree(text: str) -> Condition:
    """Return the tree of a filter; raise `InvalidFilter` or `TooLarge`."""
    size = len(text.encode(errors="surrogatepass"))
    if size > tree.TEXT_BYTES_MAX:
        message = f"the filter has {size} bytes in UTF-8; at most {tree.TEXT_BYTES_MAX} are allowed"
        raise TooLarge(message, limit=tree.TEXT_BYTES_MAX, size=size)
    try:
        text.encode()
        root = cast("AnyNode", _parser().parse(text))
        condition = _condition(root)
    except UnicodeEncodeError as error:
        _refuse(text, error.start, "half of a surrogate pair", ("a character",))
    except UnexpectedToken as error:
        _refuse_token(text, error)
    except UnexpectedCharacters as error:
        _refuse_character(text, cast("int", error.pos_in_stream))
    except NoNameCharacter as error:
        try:
            _refuse_character(text, error.at)
        except UnexpectedToken as earlier:  # the name that it stands in is out of place already
            _refuse_token(text, earlier)
    except _Misplaced as error:
        _refuse(text, error.at, error.found, (error.expected,))
    tree.check_size(condition)
    tree.check_depth(_parentheses_deep(text))
    for node, _ in tree.walk(condition):
        if isinstance(node, tree.Constant):
            _check_range(text, node)
    return condition


@lru_cache(maxsize=1)
def _parser() -> Lark:
    return Lark(
        GRAMMAR,
        parser="lalr",
        lexer="basic",
        transformer=_Builder(),
        lexer_callbacks={"NAME": retag},
        maybe_placeholders=False,
    )


def _parentheses_deep(text: str) -> int:
    deepest = depth = 0
    for character in _QUOTED_TEXT.sub("", text):
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    return deepest


def _check_range(text: str, node: Constant) -> None:
    # Not earlier: -9223372036854775808 is a sign before a number that is too large alone.
    value = node.value
    if isinstance(value, int) and not tree.INT64_MIN <= value <= tree.INT64_MAX:
        _refuse(text, node.at, "an integer beyond 64 bits", ("a 64-bit integer",))
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        _refuse(text, node.at, "a number that is too large", ("a finite number",))


def _refuse_token(text: str, error: UnexpectedToken) -> NoReturn:
    if error.token.type == "$END":
        _refuse(text, len(text), "the end", _accepted_after(text))
    at = _start(error.token)
    _refuse_number(text, at)
    _refuse(text, at, f"{str(error.token)[:40]!r}", _accepted_after(text[:at]))


def _refuse_number(text: str, at: int) -> None:
    """Refuse `12x`, `0b2`, `1_` or `1.2.3` as one number, not as a number and a word."""
    for token in _parser().lex(text[:at]):
        if token.type in NUMBERS and token.end_pos == at:
            word = str(_WORD.findall(text, _start(token))[0])
            if len(word) > len(token):
                _refuse(text, _start(token), f"the number {word[:40]!r}", (_A_NUMBER,))


def _accepted_after(beginning: str) -> tuple[str, ...]:
    # Asked anew: by the time an LALR parser sees its error, it has forgotten some of the choices.
    state = _parser().parse_interactive()
    for token in _parser().lex(beginning):
        state.feed_token(token)
    return words(state.accepts())  # type: ignore[no-untyped-call]


def _refuse_character(text: str, at: int) -> NoReturn:
    character = text[at]
    if text.startswith('""', at):
        _refuse(text, at, "an empty name", ("a name",))
    if character in "'\"":
        _refuse(text, at, "a quote that is not closed", (f"a closing {character}",))
    _refuse(text, at, f"the character {character!r}", _accepted_after(text[:at]))


def _refuse(text: str, at: int, given: str, expected: tuple[str, ...]) -> NoReturn:
    line = text.count("\n", 0, at) + 1
    column = at - (text.rfind("\n", 0, at) + 1) + 1
    *alternatives, last = expected
    phrase = f"{', '.join(alternatives)} or {last}" if alternatives else last
    message = f"filter, line {line}, column {column}: found {given}; expected {phrase}"
    raise InvalidFilter(message, line=line, column=column, expected=expected) from None


class _Misplaced(Exception):
    """A construct that parses, but has no meaning at its position."""

    def __init__(self, at: int, given: str, expected: str) -> None:
        super().__init__(given)
        self.at, self.found, self.expected = at, given, expected


_FOUND: Final = {
    "string": "a string",
    "number": "a number",
    "boolean": "TRUE or FALSE",
    "presence": "'_value', of which a filter knows only whether it is null",
    "condition": "a condition",
}
_IS_NULL: Final = "'IS NULL' or 'IS NOT NULL' behind '_value'"


def _checked_kind(node: AnyNode) -> tree.Kind:
    """What is known about a node; `_value` is refused, since only `IS NULL` can be asked of it."""
    kind = tree.kind(node)
    if kind == "presence":
        raise _Misplaced(node.at, _FOUND[kind], _IS_NULL)
    return kind


def _condition(node: AnyNode) -> Condition:
    kind = _checked_kind(node)
    if kind in ("string", "number"):
        raise _Misplaced(node.at, _FOUND[kind], "a condition")
    return cast("Condition", node)


def _value(node: AnyNode) -> Value:
    if _checked_kind(node) == "condition":
        raise _Misplaced(node.at, "a condition", "a value")
    return cast("Value", node)


def _number(node: AnyNode) -> Value:
    kind = _checked_kind(node)
    if kind not in ("number", "any"):
        raise _Misplaced(node.at, _FOUND[kind], "a number")
    return cast("Value", node)


def _unquote(token: Token) -> str:
    quote = token[0]
    return token[1:-1].replace(quote * 2, quote)


def _start(token: Token) -> int:
    return cast("int", token.start_pos)


@v_args(inline=True)
class _Builder(Transformer[Token, Any]):
    """Builds the tree bottom-up while lark parses, with a method for each alternative."""

    def either(self, *operands: AnyNode) -> tree.Or:
        return tree.Or(operands[0].at, tuple(map(_condition, operands)))

    def both(self, *operands: AnyNode) -> tree.And:
        return tree.And(operands[0].at, tuple(map(_condition, operands)))

    def negate(self, operand: AnyNode) -> tree.Not:
        return tree.Not(operand.at, _condition(operand))

    def compare(self, first: AnyNode, operator: Token, second: AnyNode) -> tree.Compare:
        symbol = cast("tree.ComparisonOperator", str(operator))
        return tree.Compare(first.at, symbol, _value(first), _value(second))

    def between(self, value: AnyNode, low: AnyNode, high: AnyNode) -> tree.Between:
        return tree.Between(value.at, _value(value), _value(low), _value(high))

    def not_between(self, value: AnyNode, low: AnyNode, high: AnyNode) -> tree.Not:
        return tree.Not(value.at, self.between(value, low, high))

    def member(self, value: AnyNode, *items: Constant) -> tree.In:
        return tree.In(value.at, _value(value), items)

    def not_member(self, value: AnyNode, *items: Constant) -> tree.Not:
        return tree.Not(value.at, self.member(value, *items))

    def like(self, value: AnyNode, pattern: Token, escape: Token | None = None) -> tree.Like:
        character = None if escape is None else _unquote(escape)
        if escape is not None and len(character or "") != 1:
            raise _Misplaced(_start(escape), str(escape)[:40], "a string of one character")
        try:
            parsed = parse_pattern(_unquote(pattern), character)
        except ValueError as error:
            expected = f"a pattern in which {error}"
            raise _Misplaced(_start(pattern), str(pattern)[:40], expected) from None
        return tree.Like(value.at, _value(value), parsed)

    def not_like(self, value: AnyNode, pattern: Token, escape: Token | None = None) -> tree.Not:
        return tree.Not(value.at, self.like(value, pattern, escape))

    def is_null(self, value: AnyNode) -> tree.IsNull:
        operand = value if isinstance(value, tree.Field) else _value(value)
        return tree.IsNull(value.at, operand)

    def is_not_null(self, value: AnyNode) -> tree.Not:
        return tree.Not(value.at, self.is_null(value))

    def arithmetic(self, first: AnyNode, operator: Token, second: AnyNode) -> tree.Arithmetic:
        symbol = cast("tree.ArithmeticOperator", str(operator))
        return tree.Arithmetic(first.at, symbol, _number(first), _number(second))

    def sign(self, sign: Token, operand: AnyNode) -> tree.Signed | Constant:
        number, at = _number(operand), _start(sign)
        if isinstance(number, tree.Constant):
            value = cast("int | float", number.value)
            return tree.Constant(at, -value if sign == "-" else value)
        return tree.Signed(at, cast("tree.Sign", str(sign)), number)

    def name(self, token: Token) -> tree.Header | tree.Field:
        if token in tree.FIELD_KINDS:
            return tree.Field(_start(token), cast("tree.FieldName", str(token)))
        return tree.Header(_start(token), str(token))

    def quoted(self, token: Token) -> tree.Header:
        return tree.Header(_start(token), _unquote(token))

    def string(self, token: Token) -> Constant:
        return tree.Constant(_start(token), _unquote(token))

    def boolean(self, token: Token) -> Constant:
        return tree.Constant(_start(token), token.type == "TRUE")

    def floating(self, token: Token) -> Constant:
        return tree.Constant(_start(token), _floating(str(token)))

    def integer(self, token: Token) -> Constant:
        digits = _digits(token)
        if digits[0] != "0" or len(digits) == 1:
            return tree.Constant(_start(token), int(digits[:_DIGITS_MAX]))
        if "8" in digits or "9" in digits:
            octal = f"{str(token)[:40]!r}, which the zero before it makes octal"
            raise _Misplaced(_start(token), octal, "digits from 0 to 7, or no zero before them")
        return tree.Constant(_start(token), _in_base(digits, 8))

    def hexadecimal(self, token: Token) -> Constant:
        digits = _digits(token)[2:]
        if not digits:
            raise _Misplaced(_start(token), f"{token!s} without digits", "a hexadecimal digit")
        return tree.Constant(_start(token), _in_base(digits, 16))

    def binary(self, token: Token) -> Constant:
        return tree.Constant(_start(token), _in_base(_digits(token)[2:], 2))


def _digits(token: Token) -> str:
    """An integer without the signs that only readers look at: underscores, and L."""
    return token.rstrip("lL").replace("_", "")


def _in_base(digits: str, base: int) -> int:
    return int((digits.lstrip("0") or "0")[:_DIGITS_MAX], base)


def _floating(text: str) -> float:
    """The float64 of a literal; with the suffix f, the nearest float32."""
    plain = text.replace("_", "").lower()
    is_hexadecimal = plain.startswith("0x")
    single = plain.endswith("f")
    plain = plain.rstrip("fd") if not is_hexadecimal else _without_suffix(plain)
    try:
        number = float.fromhex(plain) if is_hexadecimal else float(plain)
        if not single or not number or isinf(number):
            return number
        return _nearest_single(number, Fraction(number) if is_hexadecimal else Fraction(plain))
    except OverflowError:
        return inf


def _without_suffix(plain: str) -> str:
    """A hexadecimal float without its suffix: behind the exponent, f and d are no digits."""
    mantissa, _, exponent = plain.partition("p")
    return f"{mantissa}p{exponent.rstrip('fd')}"


def _nearest_single(number: float, exact: Fraction) -> float:
    """The float32 that is nearest to a number: `number`, a float64, is already rounded once."""
    (bits,) = unpack("<I", pack("<f", abs(number)))
    near = [unpack("<f", pack("<I", max(0, bits + step)))[0] for step in (-1, 0, 1)]
    steps = zip(near, (-1, 0, 1), strict=True)
    finite = [(number, step) for number, step in steps if isfinite(number)]
    best, _ = min(finite, key=lambda pair: (abs(Fraction(pair[0]) - exact), (bits + pair[1]) & 1))
    return float(best)
