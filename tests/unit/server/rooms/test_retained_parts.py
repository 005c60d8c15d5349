"""What a room retains comes whole and in order, however much it is, in parts that a client reads."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

import millstream
from millstream.server.serving import running
from millstream.server.settings import Settings
from tests.unit.server.rooms.joining import joined


@pytest.mark.parametrize("size", [10, 3_000, 60_000])
@pytest.mark.parametrize("types", [None, "b", "a,b", "none"])
def test_all_that_is_retained_comes_with_the_welcome(
    tmp_path: Path, size: int, types: str | None
) -> None:
    with millstream.open(tmp_path / "store.db") as ms:
        kept = ms.room("canvas")
        kept.specify(retained=["a", "b"])
        values = [(kind, "x" * size, f"k{n:03}") for kind in "ab" for n in range(40)]
        kept.send_many(values)
    wanted = [(kind, key) for kind, _, key in values if types is None or kind in types.split(",")]
    with running(tmp_path / "store.db", Settings(port=0)) as server:
        with joined(server, types=types, options={"max_size": None}) as client:
            assert client.retained is not None
            assert [(one["type"], one["key"]) for one in client.retained] == wanted
            assert all(one["data"] == "x" * size for one in client.retained)
            client.settle()  # it is heard, and answered, behind that
        query = {"live": "sse"} | ({} if types is None else {"types": types})
        place = f"{server.url}/rooms/canvas"
        with httpx.stream("GET", place, params=query, timeout=60) as events:
            first = next(line for line in events.iter_lines() if line.startswith("data: "))
        welcome = json.loads(first.removeprefix("data: "))
        assert [(one["type"], one["key"]) for one in welcome["retained"]] == wanted
