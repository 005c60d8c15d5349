"""The grammar of filters, and the words for what it expected.

LALR(1), so parsing is linear and takes no recursion. Keywords are names to the lexer; `retag` turns
them into keywords afterwards, in ASCII and any case, so no keyword can be an unquoted name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lark import Token

KEYWORDS: Final = frozenset(
    {"AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"}
)

GRAMMAR: Final = r"""
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
          | INTEGER                                 -> integer

NAME: /[^\W\d][\w$]*|\$[\w$]*/
QUOTED: /"(?:[^"]|"")+"/
STRING: /'(?:[^']|'')*'/
FLOAT.2: /(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
HEXADECIMAL.2: /0[xX][0-9a-fA-F]*/
INTEGER: /[0-9]+/
COMPARISON: /<=|>=|<>|<|>|=/
SIGN: /[+-]/
SCALE: /[*\/]/
_OPEN: "("
_CLOSE: ")"
_COMMA: ","

%declare _AND _OR _NOT _BETWEEN _IN _LIKE _ESCAPE _IS _NULL TRUE FALSE
%ignore /\s+/
"""

_WORDS: Final = {
    "NAME": "a name",
    "QUOTED": "a name",
    "STRING": "a string",
    "INTEGER": "a number",
    "HEXADECIMAL": "a number",
    "FLOAT": "a number",
    "COMPARISON": "a comparison",
    "SIGN": "a sign",
    "_OPEN": "(",
    "_CLOSE": ")",
    "_COMMA": ",",
    "$END": "the end",
}
NUMBERS: Final = frozenset({"INTEGER", "HEXADECIMAL", "FLOAT"})
_VALUE: Final = NUMBERS | {"NAME", "QUOTED", "STRING", "TRUE", "FALSE", "SIGN", "_OPEN"}
_ARITHMETIC: Final = frozenset({"SIGN", "SCALE"})


def retag(token: Token) -> Token:
    """A name, or the keyword that it is."""
    word = token.upper()
    if not token.isascii() or word not in KEYWORDS:
        return token
    kind = word if word in ("TRUE", "FALSE") else f"_{word}"
    return Token.new_borrow_pos(kind, str(token), token)


def words(terminals: Iterable[str]) -> tuple[str, ...]:
    """What the grammar would have accepted, in words for people, each once."""
    rest = set(terminals)
    found: set[str] = set()
    if rest >= _VALUE:
        found.add("a condition" if "_NOT" in rest else "a value")
        rest -= _VALUE | {"_NOT"}
    if rest >= _ARITHMETIC:
        found.add("an arithmetic operator")
        rest -= _ARITHMETIC
    found.update(_WORDS.get(name, name.removeprefix("_")) for name in rest)
    return tuple(sorted(found))
