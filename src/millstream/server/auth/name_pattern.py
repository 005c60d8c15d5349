"""Patterns of names in permissions: `*` is any text, `?` one character, everything else itself."""

from __future__ import annotations

import re
from functools import lru_cache


def matches(pattern: str, name: str) -> bool:
    """Whether a name is one that the pattern means."""
    return _expression(pattern, any_one=".").fullmatch(name) is not None


def covers(pattern: str, other: str) -> bool:
    """Whether every name that `other` means is one that `pattern` means.

    `other` is read as text in which a `*` can be covered only by a `*`, and a `?` by either. It
    never says yes wrongly; of some patterns with several stars it says no although they cover.
    """
    return _expression(_sorted(pattern), any_one="[^*]").fullmatch(_sorted(other)) is not None


@lru_cache(maxsize=4_096)
def _expression(pattern: str, *, any_one: str) -> re.Pattern[str]:
    """Stars are possessive up to where the text behind them first occurs: no backtracking."""
    head, *parts = re.split(r"\*+", pattern)
    text = [_literal(head, any_one)]
    for part in parts[:-1]:
        text.append(f"(?>.*?{_literal(part, any_one)})")
    if parts:
        text.append(f".*{_literal(parts[-1], any_one)}")
    return re.compile("".join(text), re.DOTALL)


def _literal(text: str, any_one: str) -> str:
    return "".join(any_one if char == "?" else re.escape(char) for char in text)


def _sorted(pattern: str) -> str:
    """Wildcards side by side mean the same in any order: question marks first, then one star."""
    return re.sub(r"[*?]{2,}", lambda run: "?" * run[0].count("?") + "*" * ("*" in run[0]), pattern)
