"""Promise: a stream's position is small, whatever the number of logs, and comes back as it was."""

from __future__ import annotations

import base64
import json
import lzma
import random

import msgspec
import pytest

from millstream.errors import CorruptionError
from millstream.spark.source.positions import PLAIN_MAX, ids_in, packed, unpacked


def test_a_position_of_few_logs_is_written_out() -> None:
    position = {"packed": 5, "logs": 7, "ü": 0}
    assert packed(position) == position
    assert unpacked(json.loads(json.dumps(position))) == position


@pytest.mark.parametrize("count", [PLAIN_MAX + 1, 1_000])
def test_a_position_of_many_logs_comes_back(count: int) -> None:
    position = {f"Log ü/{n}, {'x' * (n % 50)}": n**3 for n in range(count)}
    stored = packed(position)
    assert (stored["logs"], stored["offsets"]) == (count, sum(position.values()))
    assert unpacked(json.loads(json.dumps(stored))) == position


@pytest.mark.parametrize("count", [1, PLAIN_MAX, PLAIN_MAX + 1, 1_000])
def test_the_ids_of_logs_come_back_and_one_that_is_not_known_is_left_out(count: int) -> None:
    position = {f"log-{n}": n for n in range(count)}
    ids = {name: 7 + 3 * at * at for name, at in position.items() if at != 50}
    stored = json.loads(json.dumps(packed(position, ids)))
    assert unpacked(stored) == position
    assert ids_in(stored) == ids
    assert ids_in(json.loads(json.dumps(packed(position)))) == {}


def test_a_log_may_be_named_as_the_ids_are() -> None:
    position = {"logIds": 5, "other": 6}
    stored = json.loads(json.dumps(packed(position, {"logIds": 1, "other": 2})))
    assert (unpacked(stored), ids_in(stored)) == (position, {})


def test_a_packed_position_of_an_older_version_has_no_ids() -> None:
    position = {f"log-{n}": n for n in range(500)}
    names = sorted(position)
    data = msgspec.msgpack.encode(("\n".join(names), [position[name] for name in names]))
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6}]
    small = lzma.compress(data, format=lzma.FORMAT_RAW, filters=filters)
    stored = {"logs": 500, "offsets": 0, "packed": base64.b85encode(small).decode()}
    assert (unpacked(stored), ids_in(stored)) == (position, {})


def test_the_same_position_is_always_stored_as_the_same() -> None:
    names = [f"log-{n}" for n in range(500)]
    one = {name: len(name) for name in names}
    random.Random(1).shuffle(names)
    assert packed({name: len(name) for name in names}) == packed(one)


def test_ten_thousand_logs_take_kilobytes() -> None:
    chance = random.Random(7)
    busy = {f"tenant-{n:05}": chance.randrange(100_000) for n in range(10_000)}
    quiet = dict.fromkeys(busy, 500)
    ids = {name: number for number, name in enumerate(busy, 1)}
    assert len(json.dumps(packed(quiet, ids))) < 4_000
    assert len(json.dumps(packed(quiet))) < 4_000
    assert len(json.dumps(packed(busy))) < 60_000


def test_a_position_that_cannot_be_read_is_told() -> None:
    stored = packed({f"log-{n}": n for n in range(500)})
    for text in ("§", stored["packed"][:-20], ""):
        with pytest.raises(CorruptionError, match="restore the checkpoint"):
            unpacked({**stored, "packed": text})
