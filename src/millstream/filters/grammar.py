"""The grammar of filters, and the words for what it expected.

LALR(1), so parsing is linear and takes no recursion. Keywords are names to the lexer; `retag` turns
them into keywords afterwards, in ASCII and any case, so no keyword can be an unquoted name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from unicodedata import category

from lark import Token

KEYWORDS: Final = frozenset(
    {"AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"}
)

_DIGITS: Final = r"[0-9](?:_*[0-9])*"
_HEX_DIGITS: Final = r"[0-9a-fA-F](?:_*[0-9a-fA-F])*"
_END: Final = r"(?![\w$])"
"""A suffix ends its number: `1LIKE 'x'` is the number 1, not 1L."""
_LONG: Final = rf"(?:[lL]{_END})?"
_EXPONENT: Final = rf"[eE][+-]?{_DIGITS}"
_FLOATING: Final = "|".join(
    (
        rf"0[xX](?:{_HEX_DIGITS}\.?|(?:{_HEX_DIGITS})?\.{_HEX_DIGITS})[pP][+-]?{_DIGITS}(?:[fFdD]{_END})?",
        rf"(?:{_DIGITS}\.(?:{_DIGITS})?|\.{_DIGITS})(?:{_EXPONENT})?(?:[fFdD]{_END})?",
        rf"{_DIGITS}{_EXPONENT}(?:[fFdD]{_END})?",
        rf"{_DIGITS}[fFdD]{_END}",
    )
)
"""Numbers are written as in Java (JLS 3.10.1 and 3.10.2), as Jakarta Messaging has it."""

GRAMMAR: Final = (
    r"""
?start: condition

?condition: conjunction
          | conjunction (_OR conjunction)+          -> either
?conjunction: negation
          | negation (_AND negation)+               -> both
?negation: _NOT negation                            -> negate
          | predicate
?predicate: sum
          | sum COMPARISON sum                      -> compare
          | sum _BETWEEN sum _AND sum               -> between
          | sum _NOT _BETWEEN sum _AND sum          -> not_between
          | sum _IN _OPEN item (_COMMA item)* _CLOSE        -> member
          | sum _NOT _IN _OPEN item (_COMMA item)* _CLOSE   -> not_member
          | sum _LIKE STRING (_ESCAPE STRING)?      -> like
          | sum _NOT _LIKE STRING (_ESCAPE STRING)? -> not_like
          | sum _IS _NULL                           -> is_null
          | sum _IS _NOT _NULL                      -> is_not_null
?sum: product
          | sum SIGN product                        -> arithmetic
?product: signed
          | product SCALE signed                    -> arithmetic
?signed: SIGN signed                                -> sign
          | atom
?atom: literal
          | number
          | NAME                                    -> name
          | QUOTED                                  -> quoted
          | _OPEN condition _CLOSE
?item: literal
          | number
          | SIGN number                             -> sign
?literal: STRING                                    -> string
          | TRUE                                    -> boolean
          | FALSE                                   -> boolean
?number: FLOAT                                      -> floating
          | HEXADECIMAL                             -> hexadecimal
          | BINARY                                  -> binary
          | INTEGER                                 -> integer

NAME: /(?:[^\W\d]|\$|[^\x00-\x7f\w\s])(?:[\w$]|[^\x00-\x7f\w\s])*/
QUOTED: /"(?:[^"]|"")+"/
STRING: /'(?:[^']|'')*'/
COMPARISON: /<=|>=|<>|<|>|=/
SIGN: /[+-]/
SCALE: /[*\/]/
_OPEN: "("
_CLOSE: ")"
_COMMA: ","

%declare _AND _OR _NOT _BETWEEN _IN _LIKE _ESCAPE _IS _NULL TRUE FALSE
%ignore /\s+/
"""
    + rf"""
FLOAT.3: /{_FLOATING}/
HEXADECIMAL.2: /0[xX](?:{_HEX_DIGITS})?{_LONG}/
BINARY.2: /0[bB][01](?:_*[01])*{_LONG}/
INTEGER: /{_DIGITS}{_LONG}/
"""
)

_WORDS: Final = {
    "NAME": "a name",
    "QUOTED": "a name",
    "STRING": "a string",
    "INTEGER": "a number",
    "HEXADECIMAL": "a number",
    "BINARY": "a number",
    "FLOAT": "a number",
    "COMPARISON": "a comparison",
    "SIGN": "a sign",
    "_OPEN": "(",
    "_CLOSE": ")",
    "_COMMA": ",",
    "$END": "the end",
}
NUMBERS: Final = frozenset({"INTEGER", "HEXADECIMAL", "BINARY", "FLOAT"})
_VALUE: Final = NUMBERS | {"NAME", "QUOTED", "STRING", "TRUE", "FALSE", "SIGN", "_OPEN"}
_ARITHMETIC: Final = frozenset({"SIGN", "SCALE"})


class NoNameCharacter(Exception):
    """A character in a name that cannot be in one."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


_BEGINS_NAMES: Final = frozenset({"Sc", "Pc", "Nl"})
"""Categories of characters that may begin a name in Java, beside letters: currencies, connectors."""
_IN_NAMES: Final = _BEGINS_NAMES | {"Mn", "Mc"}
"""Categories of characters that may follow in a name: also combining marks."""
_JOINERS: Final = "\u200c\u200d"
"""Zero-width characters that some scripts need inside words; further zero-width characters are refused."""


def retag(token: Token) -> Token:
    """Return a name token, or its keyword; raise `NoNameCharacter` for a bad character."""
    if not token.isascii():
        _check_name(token)
    word = token.upper()
    if not token.isascii() or word not in KEYWORDS:
        return token
    kind = word if word in ("TRUE", "FALSE") else f"_{word}"
    return Token.new_borrow_pos(kind, str(token), token)


def _check_name(token: Token) -> None:
    for index, character in enumerate(token):
        if character.isalnum() or character in "_$":
            continue
        allowed = _IN_NAMES if index else _BEGINS_NAMES
        if category(character) not in allowed and not (index and character in _JOINERS):
            raise NoNameCharacter((token.start_pos or 0) + index)


def words(terminals: Iterable[str]) -> tuple[str, ...]:
    """Return the terminals that the grammar would accept, in words for people."""
    names = set(terminals)
    phrases: set[str] = set()
    if names >= _VALUE:
        phrases.add("a condition" if "_NOT" in names else "a value")
        names -= _VALUE | {"_NOT"}
    if names >= _ARITHMETIC:
        phrases.add("an arithmetic operator")
        names -= _ARITHMETIC
    phrases.update(_WORDS.get(name, name.removeprefix("_")) for name in names)
    return tuple(sorted(phrases))
