"""Permissions: a noun, an action and a pattern of names, written `log:write:orders*`.

In a pattern `*` matches any text, and `?` matches a single character. The word `admin` alone stands for
all rights: it is read as `*:admin` and `store:admin`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, get_args

from msgspec import Struct

from millstream.command import Action
from millstream.errors import InvalidInput
from millstream.limits import NAME_CHARS_MAX
from millstream.log.model.names import ROOM
from millstream.queue.model.own_logs import INBOX, LATER
from millstream.server.auth.need import RESERVED, Need, Noun

PERMISSIONS_MAX = 100
"""Most permissions of a token or ticket: every command may look at all of them."""

EVERYTHING = "admin"
"""The text that stands for all rights, including the right to manage tokens."""

_NOUNS = (*get_args(Noun), "*")
_INCLUDED: dict[str, frozenset[Action]] = {
    "read": frozenset(("read",)),
    "put": frozenset(("put",)),
    "write": frozenset(("read", "put", "write")),
    "admin": frozenset(("read", "put", "write", "admin", "backup")),
    "backup": frozenset(("backup",)),
}
"""A right to one action includes the rights to these actions."""


class Permission(Struct, frozen=True):
    """Allows `action`, and the actions that it includes, on every `noun` whose name matches the pattern."""

    noun: Noun | Literal["*"]
    action: Action
    pattern: str = "*"

    def allows(self, need: Need) -> bool:
        """Whether the permission covers a need."""
        if self.noun != need.noun and (self.noun != "*" or need.is_explicit):
            return False
        if need.action not in _INCLUDED[self.action]:
            return False
        if need.is_pattern:
            return covers(self.pattern, need.name)
        return self.pattern == "*" or matches(self.pattern, need.name)

    def __str__(self) -> str:
        """Return the text that `parse_permission` reads."""
        return f"{self.noun}:{self.action}" + ("" if self.pattern == "*" else f":{self.pattern}")

    def worth(self) -> list[Need]:
        """Return the strongest needs that the permission covers."""
        action, pattern = self.action, self.pattern
        if self.noun == "store":
            return [Need("store", action, "", is_explicit=action in ("admin", "backup"))]
        if self.noun != "*":
            return [Need(self.noun, action, pattern, is_pattern=True)]
        nouns: tuple[Noun, ...] = ("log", "queue", "job", "room", "replica")
        needs = [Need(noun, action, pattern, is_pattern=True) for noun in nouns]
        return [*needs, Need("store", action, "")] if matches(pattern, "") else needs


ALL_RIGHTS = (Permission("*", "admin"), Permission("store", "admin"))
"""The rights of an administrator."""


def parse_permission(text: str) -> Permission:
    """Parse a permission such as `log:write:orders*`, `queue:admin:mail`, `store:read` or `*:admin`."""
    noun, _, right = text.partition(":")
    action, colon, pattern = right.partition(":")
    if noun not in _NOUNS or action not in _INCLUDED or (colon and not pattern):
        raise InvalidInput(
            f"a permission is NOUN:ACTION or NOUN:ACTION:PATTERN, with the nouns "
            f"{', '.join(_NOUNS)} and the actions {', '.join(_INCLUDED)}, such as "
            f"log:write:orders*, or the word admin for everything; not {text[:300]!r}"
        )
    pattern = pattern or "*"
    if len(pattern) > NAME_CHARS_MAX or not pattern.isprintable():
        raise InvalidInput(
            f"a pattern has up to {NAME_CHARS_MAX} characters that can be printed, "
            f"not {pattern[:300]!r}"
        )
    if action == "put" and noun not in ("queue", "*"):
        raise InvalidInput(f"put is an action on queues, not on a {noun}; write {noun}:write")
    if action == "backup" and noun != "store":
        raise InvalidInput(f"backup is an action on the store, not on {noun}: write store:backup")
    if noun == "store" and pattern != "*":
        raise InvalidInput(f"there is one store: write store:{action}, without a pattern")
    if noun == "log" and pattern.startswith((INBOX, LATER)):
        queue = pattern.partition(":")[2]
        raise InvalidInput(
            f"the log {pattern!r} belongs to a queue: write queue:{action}:{queue or '*'}"
        )
    if noun == "log" and pattern.startswith(ROOM):
        room = pattern.removeprefix(ROOM)
        raise InvalidInput(
            f"the log {pattern!r} belongs to a room: write room:{action}:{room or '*'}"
        )
    if noun == "log" and pattern.startswith(RESERVED):
        raise InvalidInput(f"logs named {RESERVED}… are the store's own: only store:admin has them")
    return Permission(noun, action, pattern)  # type: ignore[arg-type]


def parse_permissions(texts: Iterable[str]) -> tuple[Permission, ...]:
    """Parse permissions, without duplicates; raises `InvalidInput` for an empty list.

    `admin` becomes two permissions, because `*` does not include the management of tokens. So the
    register has the same texts as before, and servers of earlier versions can read them.
    """
    permissions = tuple(
        dict.fromkeys(
            permission
            for text in texts
            for permission in (ALL_RIGHTS if text == EVERYTHING else (parse_permission(text),))
        )
    )
    if not permissions:
        raise InvalidInput("without a permission it could do nothing; name one: log:read:orders*")
    if len(permissions) > PERMISSIONS_MAX:
        raise InvalidInput(f"{len(permissions)} permissions; the limit is {PERMISSIONS_MAX}")
    return permissions


def matches(pattern: str, name: str) -> bool:
    """Return whether a pattern matches a name."""
    return _expression(pattern, any_one=".").fullmatch(name) is not None


def covers(pattern: str, narrower: str) -> bool:
    """Return whether `pattern` matches every name that `narrower` matches.

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
