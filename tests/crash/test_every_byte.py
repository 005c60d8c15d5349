"""One flipped bit, anywhere in the files of a store: an error or harmless, never another answer.

By default some places of every page and frame are tried, with a seed that a failure names. With
MILLSTREAM_FLIPS=all (`make faults`) it is every byte.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import millstream
from millstream import Limits
from millstream.doctor import examine
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.errors import CorruptionError, MillstreamError
from millstream.format import keys

ALL = os.environ.get("MILLSTREAM_FLIPS") == "all"

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(0 if ALL else 300),
]

SEED = int(os.environ.get("MILLSTREAM_FLIPS_SEED", "0"))
WIDE_FLIPS = 20_000 if ALL else 150
PLACES = 150
"""Tried in each file, beside its first and last bytes."""

SMALL = Limits(inline_bytes_max=300)

BUILD = """
import os, sys
from contextlib import nullcontext
from pathlib import Path
from tests.crash.test_every_byte import SMALL, build
import millstream
from millstream.testing import Probe

path, way = sys.argv[1:]
ms = millstream.open(path, limits=SMALL)
build(ms)
if way == "folded":
    ms.fold()
ms.close()
if way == "killed":  # a part lies in the file, and a part in the log, before frames of an older one
    ms = millstream.open(path, limits=SMALL)
    for number in range(4):
        ms.log("orders").append(b"late %d" % number)
    Probe(ms).store.engine.checkpoint(nullcontext())
    ms.log("orders").append_many([b"later %d" % number for number in range(3)])
    ms.log("orders").metadata["last"] = True
    os._exit(0)
"""


def build(ms: millstream.Millstream) -> None:
    """A little of everything that a store can hold."""
    orders = ms.log("orders")
    for number in range(8):
        orders.append({"n": number}, key=f"k{number}", headers={"n": number}, timestamp=number)
    orders.append_many([b"block %d" % i + bytes(40) for i in range(20)])
    orders.append(b"large " * 900, producer=millstream.Producer("shop", 1))
    orders.cursor("billing").ack([0, 1, 5])
    orders.metadata["owner"] = {"name": "me"}
    fork = orders.fork("branch")
    fork.append(b"only here")
    orders.truncate(before=2)
    jobs = ms.queue("jobs", max_attempts=2, group_by="group", lease_max=600_000)
    for number in range(12):
        jobs.put({"job": number}, headers={"group": f"g{number % 5}"})
    claimed = jobs.claim(4, lease=600_000)
    jobs.ack(claimed[:2])
    jobs.fail(claimed[2:3], reason="no")
    ms.queue("all", sources="orders", start="earliest", lease_max=600_000).claim(2, lease=600_000)


def answers(path: Path) -> dict[str, Any]:
    """All that a store can be asked, but for what depends on the time."""
    found: dict[str, Any] = {}
    with millstream.open(path, limits=SMALL) as ms:
        for log in ms.logs():
            noun = ms.log(log.name)
            found[f"log {log.name}"] = (
                [(r.offset, r.key, r.value, r.headers, r.timestamp) for r in noun.read()],
                (noun.start_offset(), noun.end_offset(), noun.parent()),
                dict(noun.metadata),
                [(c.name, c.floor, c.ranges) for c in noun.cursors()],
            )
        for queue in ms.queues():
            noun_ = ms.queue(queue.name)
            found[f"queue {queue.name}"] = (
                (queue.available, queue.in_flight, queue.done, queue.failed),
                [
                    (m.claim_id, m.log, m.offset, m.value, m.attempt)
                    for state in ("available", "in_flight", "done", "failed")
                    for m in noun_.peek(100, state=state)
                ],
            )
    return found


@pytest.fixture(params=["folded", "unfolded", "killed"])
def original(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A store as another process has left it: closed, or killed with commits in its log."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        path = Path(name) / "original.db"
        root = Path(__file__).parents[2]
        source = str(Path(millstream.__file__).parents[1])
        subprocess.run(
            [sys.executable, "-c", BUILD, str(path), request.param],
            cwd=root,
            env={**os.environ, "PYTHONPATH": f"{source}:{root}"},
            check=True,
            timeout=60,
        )
        yield path


def files_of(path: Path) -> list[Path]:
    return [file for side in ("", "-wal") if (file := Path(f"{path}{side}")).exists()]


def copied(original: Path) -> Path:
    """The store again, under another name, as it was left."""
    copy = original.with_name("copy.db")
    for side in ("", "-wal", "-shm"):
        Path(f"{copy}{side}").unlink(missing_ok=True)
    for file in files_of(original):
        shutil.copy(file, file.with_name(file.name.replace("original", "copy")))
    return copy


def places(size: int, rng: random.Random) -> list[int]:
    if ALL:
        return list(range(size))
    ends = [*range(100), *range(size - 8, size)]
    return sorted({*rng.sample(ends, 40), *rng.sample(range(size), min(size, PLACES))})


def flip(file: Path, place: int, bit: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(place)
        (byte,) = opened.read(1)
        opened.seek(place)
        opened.write(bytes([byte ^ 1 << bit]))


def test_a_flipped_bit_is_an_error_or_harmless(original: Path) -> None:
    rng = random.Random(SEED)
    expected = answers(copied(original))
    assert expected
    noticed = tried = 0
    for file in files_of(original):
        for place in places(file.stat().st_size, rng):
            bit = rng.randrange(8)
            copy = copied(original)
            flip(Path(str(file).replace("original", "copy")), place, bit)
            tried += 1
            try:
                found = answers(copy)
            except MillstreamError as error:
                noticed += 1
                assert str(copy) in str(error) or isinstance(error, CorruptionError)  # noqa: PT017
            else:
                assert found == expected, f"byte {place}, bit {bit} of {file.name}, seed {SEED}"
    assert noticed > tried / 6, f"{noticed} of {tried}: the store is mostly empty"


def test_the_doctor_sees_every_flip_that_a_reader_could(original: Path) -> None:
    rng = random.Random(SEED + 1)
    expected = answers(copied(original))
    for file in files_of(original):
        for place in rng.sample(range(file.stat().st_size), 30):
            copy = copied(original)
            flip(Path(str(file).replace("original", "copy")), place, rng.randrange(8))
            try:
                healthy = examine(copy).healthy
            except MillstreamError:
                healthy = False
            if healthy:
                assert answers(copy) == expected, f"byte {place} of {file.name}, seed {SEED}"


# A store that is large enough for interior pages, asked row by row: what the engine answers is all
# that logs, queues and rooms know.


def build_wide(path: Path) -> None:
    with millstream.open(path, limits=SMALL) as ms:
        for number in range(250):
            ms.log(f"log {number}").append(b"v%d" % number, key=f"k{number}")
        wide = ms.log("wide")
        for number in range(250):
            wide.append(b"%d " % number * 120)
        for number in range(60):
            wide.cursor(f"c{number}").ack([number])
        jobs = ms.create_queue("jobs", group_by="g")
        jobs.put_many([{"n": n} for n in range(150)], headers=[{"g": f"g{n}"} for n in range(150)])
        jobs.claim(20)
        ms.fold()
        for number in range(60):
            wide.append(b"unfolded %d" % number * 10)


def rows_of(path: Path) -> dict[bytes, bytes]:
    """All rows, by ranges, and every record once more by its key."""
    engine = SqliteEngine(path)
    try:
        with engine.read() as snapshot:
            rows: dict[bytes, bytes] = {}
            for kind in range(256):
                start = bytes((keys.VERSION, kind))
                stop = bytes((keys.VERSION, kind + 1)) if kind < 255 else bytes((keys.VERSION + 1,))
                while some := snapshot.scan(start, stop, limit=64):
                    rows.update(some)
                    start = some[-1][0] + b"\0"
            return rows
    finally:
        engine.close()


def values_of(path: Path) -> list[bytes]:
    with millstream.open(path, limits=SMALL) as ms:
        return [record.value for record in ms.log("wide").read()]


def pages_to_damage(path: Path) -> list[int]:
    """Interior pages of all trees, all pages of indexes, the schema: where rows can vanish."""
    file = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    found = file.execute(
        "SELECT pageno FROM dbstat WHERE pagetype = 'internal' OR name LIKE '%record_%' "
        "OR name LIKE '%delta%' OR pageno = 1"
    ).fetchall()
    file.close()
    return [int(number) for (number,) in found]


def test_a_bit_in_an_index_or_an_interior_page_hides_no_row(tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    rng = random.Random(SEED)
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        original = Path(name) / "original.db"
        build_wide(original)
        pages = pages_to_damage(original)
        rows, values = rows_of(copied(original)), values_of(copied(original))
        named = {key for key in rows if key[1] not in (keys.PAYLOAD, keys.PAYLOAD_BLOCK)}
        noticed = 0
        for _ in range(WIDE_FLIPS):
            place, bit = (rng.choice(pages) - 1) * 4096 + rng.randrange(4096), rng.randrange(8)
            told = f"byte {place}, bit {bit}, seed {SEED}"
            copy = copied(original)
            flip(copy, place, bit)
            try:
                found = rows_of(copy)
                assert all(rows[key] == value for key, value in found.items()), told
                assert named <= found.keys(), told
                assert values_of(copy) == values, told  # entries name payloads and blocks
            except CorruptionError:
                noticed += 1
        assert noticed > WIDE_FLIPS / 10
