"""Files with page checksums: those that a stock SQLite has written to are converted, damage is not.

The files are made as earlier versions made them: checksums in each page, one index of the records.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

import millstream
from millstream import SqliteOptions
from millstream.doctor import examine
from millstream.engine.sqlite.convert import convert_file, was_touched
from millstream.engine.sqlite.file import FILE_MODE
from millstream.engine.sqlite.pages import checksum_layer
from millstream.errors import CannotOpen, CorruptionError
from tests.crash.test_other_tools import RECORDS, USES, check, run_tool, writer

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(checksum_layer() is None, reason="apsw came without the checksum layer"),
]

CHECKED = SqliteOptions(page_checksums=True)

KILLED = """
import os, sys
from pathlib import Path
import apsw
from millstream.engine.sqlite import convert as sqlite_convert

stage = sys.argv[2]
complete = sqlite_convert.complete

def killed(connection, **said):
    steps = [0]
    def step():
        steps[0] += 1
        if steps[0] == int(stage):
            import os
            os.kill(os.getpid(), 9)
        return False
    connection.set_progress_handler(step, 5)
    complete(connection, **said)

sqlite_convert.complete = killed
copy = Path(sys.argv[1] + ".old") if len(sys.argv) > 3 else None
def heard(stage, done, total):
    if stage == sys.argv[2]:
        os.kill(os.getpid(), 9)
if not stage.isdecimal():
    complete = None
    sqlite_convert.complete = lambda *given, **named: os.kill(os.getpid(), 9)
sqlite_convert.convert_file(Path(sys.argv[1]), heard, copy=copy)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store as earlier versions have made it."""
    place = tmp_path / "store.db"
    with millstream.open(place, options=CHECKED) as ms:
        with ms.transaction() as tx:
            tx.sql("CREATE TABLE mine (id, text)")
        for number in range(30):
            ms.log("orders").append(b"%d" % number * 100, key=f"k{number}")
        ms.log("orders").append_many([b"%d" % number for number in range(50)])
        ms.create_queue("jobs").put_many([{"n": n} for n in range(20)])
        ms.fold()
        ms.log("orders").append(b"unfolded")
    file = apsw.Connection(str(place), vfs=checksum_layer())
    file.execute("DROP INDEX millstream_record_again; DROP TABLE millstream_file")
    file.close()
    assert not was_touched(place)
    return place


def has_checksums(path: Path) -> bool:
    with millstream.open(path, mode="r") as ms:
        return bool(ms.stats()["page_checksums"])


def test_a_file_of_an_earlier_version_opens_as_it_is(path: Path) -> None:
    check(path, RECORDS)
    assert has_checksums(path)
    assert examine(path).page_checksums


@pytest.mark.parametrize("use", ["insert", "alter", "vacuum", "user version", "shrunk and grown"])
def test_one_that_another_tool_wrote_to_is_converted(path: Path, use: str) -> None:
    run_tool(path, USES[use])
    assert was_touched(path)
    check(path, RECORDS)
    assert not has_checksums(path)
    assert path.stat().st_mode & 0o777 == FILE_MODE


def test_one_whose_log_another_tool_has_replayed_is_converted(path: Path) -> None:
    with writer(path) as process:
        process.kill()
        process.wait()
    run_tool(path, USES["select"])
    check(path, RECORDS + 1)
    assert not has_checksums(path)


def test_a_damaged_one_is_left_as_it_is(path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = data.index(b"unfolded")
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match="checksum does not fit"):
        millstream.open(path)
    with pytest.raises(CorruptionError, match="checksum does not fit"):
        convert_file(path)
    assert path.read_bytes()[20:] == data[20:]


def test_one_that_is_open_elsewhere_is_not_converted(path: Path) -> None:
    with writer(path), pytest.raises(CannotOpen, match="close it everywhere"):
        convert_file(path)
    assert has_checksums(path)


def test_a_sound_one_is_converted_on_request_and_once(path: Path) -> None:
    done = convert_file(path)
    assert done.had_page_checksums
    assert done.rows > 10
    assert not has_checksums(path)
    check(path, RECORDS)
    assert convert_file(path).rows == 0


def test_a_store_that_keeps_its_checksums_refuses_what_another_tool_wrote(path: Path) -> None:
    run_tool(path, USES["vacuum"])
    with pytest.raises(CorruptionError, match="millstream migrate"):
        millstream.open(path, options=CHECKED).close()


@pytest.mark.parametrize("stage", [1, 3, 10, 30, 60, 100, 200, 400])
def test_a_kill_in_the_middle_leaves_the_old_file_or_the_new_one(path: Path, stage: int) -> None:
    source = str(Path(millstream.__file__).parents[1])
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), str(stage)],
        env={**os.environ, "PYTHONPATH": source},
        check=False,
        timeout=60,
    )
    assert ended.returncode in (-9, 0)
    check(path, RECORDS)


@pytest.mark.parametrize("stage", ["keeping a copy", "copied", "20"])
def test_a_kill_with_a_copy_keeps_one_good_store_and_the_next_run_completes(
    path: Path, stage: str
) -> None:
    source = str(Path(millstream.__file__).parents[1])
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), stage, "with a copy"],
        env={**os.environ, "PYTHONPATH": source},
        check=False,
        timeout=60,
    )
    assert ended.returncode == -9
    copy = Path(f"{path}.old")
    if copy.exists():
        check(copy, RECORDS)
        copy.unlink()
    convert_file(path, copy=copy)
    assert not has_checksums(path)
    check(path, RECORDS)
