"""What is typed becomes values; what makes no sense is refused."""

from __future__ import annotations

import pytest
import typer

from millstream.cli import display
from millstream.cli.arguments import (
    parse_duration,
    parse_headers,
    parse_position,
    parse_size,
    parse_timestamp,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("250ms", 0.25), ("1.5h", 5400), ("7d", 604_800), ("2w", 1_209_600)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "count"),
    [("500", 500), ("10kB", 10_000), ("64MiB", 64 << 20), ("1.5GiB", 3 << 29), ("1g", 10**9)],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "-1s", "1y", "soon", "1h30"])
def test_what_is_no_duration_or_size_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_duration(text)
    with pytest.raises(typer.BadParameter):
        parse_size(text)


def test_positions_count_from_the_end_and_stop_at_the_start() -> None:
    assert parse_position("earliest", start=5, end=9) == 5
    assert parse_position("latest", start=5, end=9) == 9
    assert parse_position("7", start=5, end=9) == 7
    assert parse_position("-2", start=5, end=9) == 7
    assert parse_position("-100", start=5, end=9) == 5


def test_times_are_milliseconds_or_iso() -> None:
    assert parse_timestamp("1500") == 1500
    assert parse_timestamp("1970-01-01T02:00:00+02:00") == 0


def test_a_header_that_looks_like_a_list_is_text_unless_json_is_asked_for() -> None:
    assert parse_headers(["a=[1]", "b={", "c="]) == {"a": "[1]", "b": "{", "c": ""}
    with pytest.raises(typer.BadParameter):
        parse_headers(["a:=[1]"])


def test_sizes_and_spans_are_shown_in_their_unit() -> None:
    assert [display.size(n) for n in (0, 1023, 1024, 3 << 29)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 GiB",
    ]
    assert [display.span(n) for n in (0, 1, 60_000, 604_800_000)] == ["0ms", "1ms", "1m", "7d"]
    assert display.plural(1, "record") == "1 record"
    assert display.offsets(3, 4) == "offset 3"
    assert display.offsets(3, 6) == "offsets 3 to 5"


@pytest.mark.parametrize("hostile", ["\x1b[2J", "\u202eabc", "a\x07", "\x9b31m"])
def test_text_is_made_safe_for_a_terminal(hostile: str) -> None:
    assert display.safe(hostile).isprintable()
    assert display.safe(hostile.encode()).isprintable()
