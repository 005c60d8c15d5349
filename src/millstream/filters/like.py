"""LIKE patterns: `%` matches any text, `_` any character, other characters match themselves.

Matching takes time in proportion to the text, whatever the pattern. Between two `%` lies a
*segment* of fixed length; the leftmost place where a segment fits is always the best one, since it
leaves most room for the rest, so nothing is ever tried twice. A segment without `_` is found by
`str.find`, one with `_` by the shift-and automaton: one integer holds, bit by bit, which beginnings
of the segment end at the current character.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

Segment: TypeAlias = tuple[str | None, ...]
"""Consecutive characters of a pattern; None matches every character."""

Finder: TypeAlias = Callable[[str, int, int], int]
"""(text, start, stop) → the end of the leftmost match inside that range, or -1."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """The segments of a pattern in order, with any text between two segments."""

    segments: tuple[Segment, ...]


def parse_pattern(text: str, escape: str | None = None) -> Pattern:
    """Read a pattern; `ValueError` if an escape stands before anything but `%`, `_` or itself."""
    segments: list[Segment] = []
    segment: list[str | None] = []
    characters = iter(text)
    for character in characters:
        if character == escape:
            segment.append(_escaped(next(characters, ""), escape))
        elif character == "%":
            segments.append(tuple(segment))
            segment = []
        else:
            segment.append(None if character == "_" else character)
    return Pattern((*segments, tuple(segment)))


def _escaped(character: str, escape: str) -> str:
    if character not in ("%", "_", escape):
        raise ValueError(f"{escape!r} must stand before %, _ or itself")
    return character


def literal(segment: Segment) -> str | None:
    """The segment as a string, unless a `_` is in it."""
    text = "".join(character for character in segment if character is not None)
    return text if len(text) == len(segment) else None


def compile_pattern(pattern: Pattern) -> Callable[[str], bool]:
    """A function that says whether a whole text is as the pattern asks."""
    match [literal(segment) for segment in pattern.segments]:
        case [str(whole)]:
            return lambda text: text == whole
        case [str(prefix), ""]:
            return lambda text: text.startswith(prefix)
        case ["", str(suffix)]:
            return lambda text: text.endswith(suffix)
        case ["", str(part), ""]:
            return lambda text: part in text
        case [None]:
            return _exactly(pattern.segments[0])
        case _:
            return _in_order(pattern.segments)


def _exactly(segment: Segment) -> Callable[[str], bool]:
    length, fits = len(segment), _fits(segment)
    return lambda text: len(text) == length and fits(text, 0)


def _in_order(segments: tuple[Segment, ...]) -> Callable[[str], bool]:
    first, *middle, last = segments
    first_fits, last_fits = _fits(first), _fits(last)
    finders = [_finder(segment) for segment in middle if segment]
    first_length, last_length = len(first), len(last)
    shortest = sum(map(len, segments))

    def matches(text: str) -> bool:
        if len(text) < shortest:
            return False
        stop = len(text) - last_length
        if not (first_fits(text, 0) and last_fits(text, stop)):
            return False
        position = first_length
        for find in finders:
            position = find(text, position, stop)
            if position < 0:
                return False
        return True

    return matches


def _fits(segment: Segment) -> Callable[[str, int], bool]:
    """Whether the segment stands at a position of a text that is long enough."""
    runs = _runs(segment)
    return lambda text, at: all(text.startswith(run, at + offset) for offset, run in runs)


def _runs(segment: Segment) -> list[tuple[int, str]]:
    """The segment's stretches without `_`, each with its offset."""
    runs: list[tuple[int, str]] = []
    offset = 0
    for run in "".join("\0" if character is None else "x" for character in segment).split("\0"):
        if run:
            characters = segment[offset : offset + len(run)]
            runs.append((offset, "".join(filter(None, characters))))
        offset += len(run) + 1
    return runs


def _finder(segment: Segment) -> Finder:
    text = literal(segment)
    return _shift_and(segment) if text is None else _find_literal(text)


def _find_literal(literal: str) -> Finder:
    length = len(literal)

    def find(text: str, start: int, stop: int) -> int:
        position = text.find(literal, start, stop)
        return position if position < 0 else position + length

    return find


def _shift_and(segment: Segment) -> Finder:
    anywhere = sum(1 << bit for bit, character in enumerate(segment) if character is None)
    masks = {character: anywhere for character in segment if character is not None}
    for bit, character in enumerate(segment):
        if character is not None:
            masks[character] |= 1 << bit
    complete = 1 << (len(segment) - 1)

    def find(text: str, start: int, stop: int) -> int:
        state = 0
        for position in range(start, stop):
            state = (state << 1 | 1) & masks.get(text[position], anywhere)
            if state & complete:
                return position + 1
        return -1

    return find
