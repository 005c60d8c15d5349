"""Patterns of names in permissions: `*` matches any text, `?` matches a single character."""

from __future__ import annotations

import re
from functools import lru_cache


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern matches a name."""
    return _expression(pattern, any_one=".").fullmatch(name) is not None


def covers(pattern: str, narrower: str) -> bool:
    """Whether `pattern` matches every name that `narrower` matches.

    `narrower` is read as text: only a `*` covers a `*`; both wildcards cover a `?`. True is always
    right. False may be wrong for a few patterns with several stars.
    """
    return _expression(_sorted(pattern), any_one="[^*]").fullmatch(_sorted(narrower)) is not None


@lru_cache(maxsize=4_096)
def _expression(pattern: str, *, any_one: str) -> re.Pattern[str]:
    """Compile a pattern without backtracking: a star stops where its next text first occurs."""
    head, *texts = re.split(r"\*+", pattern)
    expression = [_literal(head, any_one)]
    for inner in texts[:-1]:
        expression.append(f"(?>.*?{_literal(inner, any_one)})")
    if texts:
        expression.append(f".*{_literal(texts[-1], any_one)}")
    return re.compile("".join(expression), re.DOTALL)


def _literal(text: str, any_one: str) -> str:
    return "".join(any_one if char == "?" else re.escape(char) for char in text)


def _sorted(pattern: str) -> str:
    """Sort adjacent wildcards, whose order has no meaning: question marks first, then a star."""
    return re.sub(r"[*?]{2,}", lambda run: "?" * run[0].count("?") + "*" * ("*" in run[0]), pattern)
