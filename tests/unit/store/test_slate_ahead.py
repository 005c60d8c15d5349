"""Reading ahead: blocks read in order come several at a time, and a block read alone comes alone."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from millstream.engine.slate.rows import BYTES_MAX, ReadAhead
from millstream.format import keys

ROWS = {keys.payload_block(n * 1_000): b"%d" % n for n in range(200)}


class Counted:
    """A binding over a dict that notes what it is asked for."""

    def __init__(self, rows: dict[bytes, bytes]) -> None:
        self.rows, self.asked = rows, []

    asked: list[Any]
    fails = False

    def get(self, view: Any, key: bytes) -> bytes | None:
        self.asked.append(1)
        return self.rows.get(key)

    def scan(self, view: Any, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        self.asked.append(limit)
        return [row for row in sorted(self.rows.items()) if start <= row[0] < stop][:limit]

    def begin(self, view: Any, start: bytes, stop: bytes, reach: str) -> Any:
        self.asked.append(reach)
        return iter([row for row in sorted(self.rows.items()) if start <= row[0] < stop])

    def following(self, rows: Any, limit: int) -> list[tuple[bytes, bytes]]:
        if self.fails:
            raise TimeoutError
        return list(islice(rows, limit))


def read(rows: dict[bytes, bytes], wanted: list[bytes]) -> tuple[list[bytes | None], list[Any]]:
    binding = Counted(rows)
    ahead = ReadAhead(binding, None)  # type: ignore[arg-type]
    return [ahead.get(key) for key in wanted], binding.asked


def test_blocks_in_order_come_several_at_a_time() -> None:
    found, asked = read(ROWS, sorted(ROWS))
    assert found == [ROWS[key] for key in sorted(ROWS)]
    assert asked == [1, 2, 8, "stream"]


def test_a_block_alone_comes_alone() -> None:
    key = keys.payload_block(50_000)
    assert read(ROWS, [key]) == ([b"50"], [1])


def test_blocks_in_another_order_are_right_too() -> None:
    wanted = [keys.payload_block(n * 1_000) for n in (5, 3, 4, 9, 1, 1, 2, 3, 4, 7, 0, 199, 198)]
    found, _ = read(ROWS, wanted)
    assert found == [ROWS[key] for key in wanted]


def test_a_block_that_is_missing_is_missing() -> None:
    wanted = [keys.payload_block(n) for n in (1_000, 2_000, 2_500, 3_000, 999_999)]
    found, _ = read(ROWS, wanted)
    assert found == [b"1", b"2", None, b"3", None]


def test_large_blocks_are_not_fetched_by_the_dozen() -> None:
    large = {key: bytes(BYTES_MAX // 2) for key in sorted(ROWS)[:10]}
    _, asked = read(large, sorted(large))
    assert asked == [1, 2, 2, "stream"]


def test_a_reader_that_leaves_its_stream_begins_anew() -> None:
    order = [*range(40), 150, 151, 152, 20]
    wanted = [keys.payload_block(n * 1_000) for n in order]
    found, asked = read(ROWS, wanted)
    assert found == [ROWS[key] for key in wanted]
    assert asked == [1, 2, 8, "stream", 1, 2, 1]


def test_a_stream_that_failed_is_begun_again_by_the_next_reader() -> None:
    binding = Counted(ROWS)
    ahead = ReadAhead(binding, None)  # type: ignore[arg-type]
    order = sorted(ROWS)
    for key in order[:11]:
        ahead.get(key)
    binding.fails = True
    with pytest.raises(TimeoutError):
        ahead.get(order[11])
    binding.fails = False
    assert ahead.get(order[11]) == ROWS[order[11]]
    assert binding.asked == [1, 2, 8, "stream", "stream"]
