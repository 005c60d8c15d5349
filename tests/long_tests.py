"""Which tests are long: `make test` leaves them to `make test-all`.

`long.toml` lists them by what they are called: a folder, a file, a test, or one case of a test. An
entry means everything below it. `cases` are texts in the name of a case, such as `remote`: they mean
every such case of the folder or file. `kept` are cases that `make test` runs all the same, as its
share of a test that is long because it has many. `slow` are unit tests that `make quick` leaves to
`make test`, and `slow_cases` are such cases, written as `cases`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class LongTests:
    """The entries of the list."""

    tests: frozenset[str]
    cases: tuple[tuple[str, str], ...] = ()
    """A folder or file, and the case of its tests that is long."""
    kept: frozenset[str] = frozenset()
    """Cases that are not long, whatever they lie below."""
    slow: frozenset[str] = frozenset()
    """Tests that `make test` runs and `make quick` does not."""
    slow_cases: tuple[tuple[str, str], ...] = ()
    """A folder or file, and the case of its tests that `make quick` leaves to `make test`."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the list. Raises `ValueError` for an entry whose file does not exist."""
        listed = tomllib.loads(path.read_text())
        tests = frozenset(listed["tests"])
        cases = tuple(listed.get("cases", {}).items())
        slow_cases = tuple(listed.get("slow_cases", {}).items())
        kept = frozenset(listed.get("kept", ()))
        slow = frozenset(listed.get("slow", ()))
        places = [place for place, _ in (*cases, *slow_cases)]
        for entry in [*tests, *kept, *slow, *places]:
            if not (path.parent.parent / entry.partition("::")[0]).exists():
                raise ValueError(f"{path.name} lists {entry}, and there is no such file")
        return cls(tests, cases, kept, slow, slow_cases)

    def has(self, node: str) -> bool:
        """Return whether a test, by its pytest node id, is long."""
        if node in self.kept:
            return False
        return any(name in self.tests for name in _names(node)) or _is_case(node, self.cases)

    def is_in(self, tier: str, node: str) -> bool:
        """Return whether a tier has a test: `quick`, `short` (that of `make test`) or `long`."""
        if self.has(node):
            return tier == "long"
        if tier == "quick" and _is_case(node, self.slow_cases):
            return False
        is_slow = any(name in self.slow for name in _names(node))
        return tier == "short" or (tier == "quick" and not is_slow)


def _names(node: str) -> list[str]:
    """Return a node id, and everything that it lies below: its test, its file, its folders."""
    file = node.partition("::")[0]
    folders = ["/".join(file.split("/")[:count]) for count in range(1, file.count("/") + 2)]
    return [*folders, node.partition("[")[0], node]


def _is_case(node: str, cases: tuple[tuple[str, str], ...]) -> bool:
    return any(_is_below(node, place) and case in _case(node) for place, case in cases)


def _is_below(node: str, place: str) -> bool:
    return node.startswith((f"{place}/", f"{place}::"))


def _case(node: str) -> list[str]:
    """Return the parts of the name of a case: `remote` and `1` for `test_x[remote-1]`."""
    return node.partition("[")[2].rstrip("]").split("-")
