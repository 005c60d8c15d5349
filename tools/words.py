"""Measures how plainly the sources are written: dark sentences and vague names.

Usage: words.py [--worst N] [PATH ...]

A dark sentence has four words or more, and a quarter of them are pronouns or other stand-ins. A vague
name is a local variable or parameter that does not say what it holds. Both measures are crude, and
the same for every project: trio, h11 and httpx have 1 to 7 % dark sentences and 0.3 to 1.1 % vague
names. `tests/unit/test_tidy.py` holds both shares as ceilings.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAND_INS = frozenset(
    [
        "what",
        "which",
        "that",
        "those",
        "these",
        "this",
        "it",
        "its",
        "one",
        "ones",
        "some",
        "such",
        "there",
        "other",
        "others",
        "so",
        "who",
        "whom",
        "whose",
        "they",
        "them",
        "their",
        "none",
        "any",
        "all",
        "another",
        "same",
        "else",
        "where",
        "then",
        "both",
        "each",
        "either",
        "neither",
        "whatever",
        "whoever",
        "whichever",
    ]
)
VAGUE = frozenset(
    [
        "found",
        "one",
        "some",
        "told",
        "own",
        "asked",
        "given",
        "most",
        "least",
        "other",
        "others",
        "left",
        "more",
        "rest",
        "kept",
        "seen",
        "taken",
        "wanted",
        "known",
        "begun",
        "thing",
        "things",
        "such",
        "same",
        "those",
        "these",
        "what",
        "which",
        "whole",
        "part",
        "parts",
        "once",
        "another",
        "side",
        "sides",
        "here",
        "there",
    ]
)
WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
WORDS_MIN = 4
DARK_SHARE = 0.25


@dataclass(slots=True)
class Measure:
    """Counts over many files; `dark` lists (share, path, line, sentence)."""

    sentences: int = 0
    names: int = 0
    vague: int = 0
    dark: list[tuple[float, str, int, str]] = field(default_factory=list)

    @property
    def dark_percent(self) -> float:
        """The share of dark sentences."""
        return 100 * len(self.dark) / max(1, self.sentences)

    @property
    def vague_percent(self) -> float:
        """The share of vague names."""
        return 100 * self.vague / max(1, self.names)

    def add(self, path: str, text: str) -> None:
        """Count the sentences and names of one file."""
        tree = ast.parse(text)
        for line, prose in prose_of(text, tree):
            for sentence in sentences_of(prose):
                self._add_sentence(path, line, sentence)
        for name in names_of(tree):
            self.names += 1
            self.vague += name in VAGUE

    def _add_sentence(self, path: str, line: int, sentence: str) -> None:
        words = [word.lower() for word in WORD.findall(sentence)]
        if len(words) < WORDS_MIN:
            return
        self.sentences += 1
        share = sum(word in STAND_INS for word in words) / len(words)
        if share >= DARK_SHARE:
            self.dark.append((share, path, line, sentence))


def sentences_of(prose: str) -> Iterator[str]:
    """Yield the sentences of a docstring or comment, without code and tables."""
    prose = re.sub(r"```.*?```", " ", prose, flags=re.DOTALL)
    prose = re.sub(r"^\s*[|>+].*$", " ", prose, flags=re.MULTILINE)
    prose = re.sub(r"`[^`]*`", " CODE ", prose)
    for sentence in re.split(r"(?<=[.!?:;])\s+|\n\s*\n", prose):
        if words := " ".join(sentence.split()):
            yield words


def prose_of(text: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield each docstring, and each block of comments, with its line."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for child in body if isinstance(body, list) else ():
            match child:
                case ast.Expr(value=ast.Constant(value=str(docstring))):
                    yield child.lineno, docstring
    block: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if block and token.start[0] != last + 1:
                yield last - len(block) + 1, " ".join(block)
                block = []
            block.append(token.string.lstrip("#: "))
            last = token.start[0]
    if block:
        yield last - len(block) + 1, " ".join(block)


def names_of(tree: ast.Module) -> Iterator[str]:
    """Yield every name that is bound: variables and parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg) and node.arg not in ("self", "cls"):
            yield node.arg


def measure(paths: Iterable[Path]) -> Measure:
    """Measure files and folders; generated files are left out."""
    total = Measure()
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            text = file.read_text(encoding="utf-8")
            if not text.startswith("# Generated"):
                total.add(str(file), text)
    return total


def main() -> int:
    """Print both shares, and the darkest sentences if asked for."""
    parser = argparse.ArgumentParser(description="Measure how plainly the sources are written.")
    parser.add_argument("paths", nargs="*", type=Path, default=[ROOT / "src" / "millstream"])
    parser.add_argument("--worst", type=int, default=0, help="list this number of dark sentences")
    options = parser.parse_args()
    total = measure(options.paths)
    for share, path, line, sentence in sorted(total.dark, reverse=True)[: options.worst]:
        print(f"{share:4.0%} {path}:{line}: {sentence}")
    print(
        f"dark sentences {len(total.dark)} of {total.sentences} ({total.dark_percent:.1f} %), "
        f"vague names {total.vague} of {total.names} ({total.vague_percent:.1f} %)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
