"""What can be opened, what is refused, and how damage shows: a clear error, and untouched bytes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import apsw
import pytest

import millstream
from millstream.engine.checksum import row_checksum
from millstream.engine.sqlite.file import APPLICATION_ID, connect, create
from millstream.errors import (
    CannotOpen,
    CorruptionError,
    InvalidName,
    TooLarge,
)
from millstream.format import keys
from millstream.format.version import FORMAT

MiB = 1024 * 1024


def make_store(path: Path, *, fold: bool = True, records: int = 30) -> None:
    with millstream.open(path) as ms:
        for number in range(records):
            ms.log("a").append(b"a%d" % number)
            ms.log("b").append(b"b%d" % number)
            if fold:
                ms.fold()  # so that records of a log are not joined
        ms.log("a").append_many([b"block %d" % i + bytes(100) for i in range(100)])
        ms.log("c").append(b"the newest commit is never folded")
        if fold:
            ms.fold()


def edit(path: Path, statement: str, parameters: tuple[object, ...] = ()) -> None:
    """Change the file behind our back."""
    connection = apsw.Connection(str(path))
    connection.execute(statement, parameters)
    assert connection.changes() or "PRAGMA" in statement or "CREATE" in statement
    connection.close()


def files(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.is_file()}


# Files that are not ours.


def a_text(path: Path) -> None:
    path.write_text("Dear diary,\n" * 50)


def a_short_text(path: Path) -> None:
    path.write_text("hello")


def half_a_header(path: Path) -> None:
    make_store(path)
    path.write_bytes(path.read_bytes()[:50])


def another_database(path: Path) -> None:
    edit(path, "CREATE TABLE recipes (name TEXT)")


def a_newer_store(path: Path) -> None:
    make_store(path)
    connection = apsw.Connection(str(path))
    become_newer(connection)
    connection.close()


def become_newer(connection: apsw.Connection) -> None:
    """Say a format in the row of the file that nobody knows yet."""
    value = connection.execute("SELECT value FROM millstream_file").get
    value = value.replace(b'"format":%d' % FORMAT, b'"format":%d' % (FORMAT + 1))
    crc = row_checksum(b"millstream_file", value)
    connection.execute("UPDATE millstream_file SET value = ?, crc = ?", (value, crc))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (a_text, "not a Millstream store"),
        (a_short_text, "not a Millstream store"),
        (half_a_header, "not a Millstream store"),
        (another_database, "adopt=True"),
        (a_newer_store, f"format {FORMAT + 1}"),
    ],
)
def test_what_is_not_ours_is_refused_and_left_alone(
    tmp_path: Path, make: Callable[[Path], None], says: str
) -> None:
    path = tmp_path / "file.db"
    make(path)
    before = files(tmp_path)
    with pytest.raises(CannotOpen, match=says) as refused:
        millstream.open(path)
    assert str(path) in str(refused.value)
    assert refused.value.path == str(path)
    assert files(tmp_path) == before


def test_a_newer_format_that_is_still_in_the_write_ahead_log_is_refused(tmp_path: Path) -> None:
    """A newer version upgraded the file and was killed: the header alone does not tell."""
    path = tmp_path / "file.db"
    make_store(path)
    newer = apsw.Connection(str(path))
    become_newer(newer)
    assert Path(f"{path}-wal").stat().st_size
    before = path.read_bytes()
    with pytest.raises(CannotOpen, match=f"format {FORMAT + 1}"):
        millstream.open(path).close()
    assert path.read_bytes() == before
    newer.close()


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "file.db"
    path.touch()
    with millstream.open(path) as ms:
        assert ms.log("x").append(b"v") == 0
    connection = apsw.Connection(str(path))
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    connection.close()


def test_a_directory_and_a_missing_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotOpen, match="is a directory") as refused:
        millstream.open(tmp_path)
    assert str(tmp_path) in str(refused.value)
    missing = tmp_path / "missing" / "file.db"
    with pytest.raises(CannotOpen, match="does not exist") as refused:
        millstream.open(missing)
    assert str(missing) in str(refused.value)
    assert not missing.parent.exists()


def test_a_link_to_a_store_is_the_store(tmp_path: Path) -> None:
    path, link = tmp_path / "file.db", tmp_path / "link.db"
    link.symlink_to(path)
    with millstream.open(path) as ms, millstream.open(link) as same:
        ms.log("x").append(b"v")
        assert same.log("x").end_offset() == 1
        same.log("x").append(b"w")
        assert ms.log("x").end_offset() == 2


AS_NOBODY = """
import os, sys, tempfile
import millstream
with tempfile.TemporaryDirectory() as warm, millstream.open(warm + "/warm.db") as ms:
    ms.log("x").append(b"v")  # imports everything while the interpreter can still be read
path, directory_mode, file_mode = sys.argv[1], int(sys.argv[2], 8), int(sys.argv[3], 8)
os.chmod(os.path.dirname(path), directory_mode)
if os.path.exists(path):
    os.chmod(path, file_mode)
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    with millstream.open(path) as ms:
        ms.log("x").append(b"v")
except millstream.MillstreamError as error:
    print(type(error).__name__, error)
else:
    print("opened")
"""


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that everybody may reach; pytest's own are for their owner only."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        place = Path(name) / "place"
        place.mkdir()
        yield place
        place.chmod(0o755)


@pytest.mark.parametrize(
    ("exists", "directory_mode", "file_mode"),
    [
        (False, "555", "0"),
        (True, "555", "444"),
        (True, "777", "444"),
        (True, "777", "0"),
        (True, "0", "644"),
    ],
    ids=["directory, new file", "directory and file", "file", "unreadable file", "unreachable"],
)
def test_what_is_read_only_is_refused_and_left_alone(
    open_place: Path, exists: bool, directory_mode: str, file_mode: str
) -> None:
    path = open_place / "file.db"
    if exists:
        make_store(path)
    before = files(open_place)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(path), directory_mode, file_mode],
        env={**os.environ, "PYTHONPATH": str(Path(millstream.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    open_place.chmod(0o755)
    if exists:
        path.chmod(0o644)
    assert done.stdout.startswith("CannotOpen"), done.stdout + done.stderr
    assert str(path) in done.stdout
    assert files(open_place) == before


# Damage.


def read_both(path: Path) -> None:
    with millstream.open(path) as ms:
        for name in "ab":
            list(ms.log(name).read())


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.95])
def test_a_truncated_file_is_noticed_and_left_alone(tmp_path: Path, share: float) -> None:
    path = tmp_path / "file.db"
    make_store(path)
    whole = path.read_bytes()
    pages = len(whole) // 4096
    cut = whole[: max(1, int(pages * share)) * 4096]
    path.write_bytes(cut)
    with pytest.raises(CorruptionError) as noticed:
        read_both(path)
    there = len(cut) // 4096
    assert f"the file was cut: it ends in page {there + 1} of {pages}" in str(noticed.value)
    assert str(path) in str(noticed.value)
    assert path.read_bytes() == cut


def flip(path: Path, table: str, where: str, parameters: tuple[object, ...] = ()) -> None:
    """Flip a bit in the middle of the first row that the condition finds."""
    connection = apsw.Connection(str(path))
    key = "key" if table.endswith("record") else "id"
    found = connection.execute(
        f"SELECT {key}, value FROM {table} WHERE {where} ORDER BY {key}", parameters
    ).fetchone()
    assert found is not None
    damaged = bytearray(found[1])
    damaged[len(damaged) // 2] ^= 0x10
    connection.execute(f"UPDATE {table} SET value = ? WHERE {key} = ?", (damaged, found[0]))
    connection.close()


def read_all(path: Path, name: str) -> list[millstream.Record]:
    """What can be read of a log before damage stops it."""
    found: list[millstream.Record] = []
    with millstream.open(path) as ms:
        found.extend(ms.log(name).read())
    return found


def test_a_flipped_bit_in_a_payload_names_log_and_offset(tmp_path: Path) -> None:
    path = tmp_path / "file.db"
    make_store(path)
    flip(path, "millstream_payload", "CAST(value AS TEXT) = 'a7'")
    with pytest.raises(CorruptionError) as noticed:
        read_all(path, "a")
    assert noticed.value.log == "a"
    assert noticed.value.offset <= 7
    assert "'a'" in str(noticed.value)
    with millstream.open(path) as ms:
        with pytest.raises(CorruptionError):
            ms.log("a").get(7)
        assert ms.log("a").get(29).value == b"a29"


def test_damage_in_one_log_leaves_the_others_readable(tmp_path: Path) -> None:
    path = tmp_path / "file.db"
    make_store(path)
    flip(path, "millstream_payload", "CAST(value AS TEXT) = 'a7'")
    assert [record.value for record in read_all(path, "b")] == [b"b%d" % i for i in range(30)]


def test_a_flipped_bit_in_a_payload_block_names_log_and_offset(tmp_path: Path) -> None:
    path = tmp_path / "file.db"
    make_store(path)
    flip(path, "millstream_block", "1")
    with pytest.raises(CorruptionError) as noticed:
        read_all(path, "a")
    assert (noticed.value.log, noticed.value.offset) == ("a", 30)
    with millstream.open(path) as ms:
        assert len(list(ms.log("a").read(0, 30))) == 30


def test_a_flipped_bit_in_an_entry_names_log_and_offset(tmp_path: Path) -> None:
    path = tmp_path / "file.db"
    make_store(path)
    flip(path, "millstream_record", "key = ?", (keys.entry(1, 129),))
    with pytest.raises(CorruptionError) as noticed:
        read_all(path, "a")
    assert (noticed.value.data.get("log"), noticed.value.data.get("offset")) == ("a", 30)
    assert len(read_all(path, "b")) == 30


def test_a_flipped_bit_in_a_delta_is_noticed_on_opening(tmp_path: Path) -> None:
    path = tmp_path / "file.db"
    make_store(path, fold=False)
    flip(path, "millstream_delta", "id = 10")
    before = path.read_bytes()
    with pytest.raises(CorruptionError):
        millstream.open(path)
    assert path.read_bytes() == before


def use_everything(path: Path) -> None:
    with millstream.open(path) as ms:
        log = ms.log("a")
        list(log.read())
        log.cursors()
        dict(log.metadata)
        log.append(b"w", producer=millstream.Producer("p", 1))


@pytest.mark.parametrize("kind", [keys.HEAD, keys.NAME, keys.CURSOR, keys.PRODUCER, keys.METADATA])
def test_a_flipped_bit_in_any_other_record_is_noticed(tmp_path: Path, kind: int) -> None:
    path = tmp_path / "file.db"
    with millstream.open(path) as ms:
        log = ms.log("a")
        log.append(b"v", producer=millstream.Producer("p", 0))
        log.cursor("c").ack(0)
        log.metadata["k"] = "v"
        ms.log("b").append(b"newest")
        ms.fold()
    start, stop = keys.range_of(keys.prefix(kind))
    flip(path, "millstream_record", "key >= ? AND key < ?", (start, stop))
    with pytest.raises(CorruptionError):
        use_everything(path)


@pytest.mark.parametrize(
    ("table", "where", "offset"),
    [
        ("millstream_record", "key = x'" + keys.entry(1, 129).hex() + "'", 30),
        ("millstream_record", "key = x'" + keys.entry(1, 0).hex() + "'", 0),
        ("millstream_payload", "CAST(value AS TEXT) = 'a7'", 7),
        ("millstream_block", "1", 30),
    ],
    ids=["entry", "first entry", "payload", "payload block"],
)
def test_a_vanished_row_is_noticed(tmp_path: Path, table: str, where: str, offset: int) -> None:
    path = tmp_path / "file.db"
    make_store(path)
    edit(path, f"DELETE FROM {table} WHERE {where}")
    with pytest.raises(CorruptionError) as noticed:
        read_all(path, "a")
    assert noticed.value.log == "a"
    assert noticed.value.offset <= offset
    assert [record.value for record in read_all(path, "b")] == [b"b%d" % i for i in range(30)]


@pytest.mark.parametrize(
    "where",
    [
        "id = 10",
        "id = (SELECT min(id) FROM millstream_delta)",
        "id < 10",
        "1",
    ],
    ids=["in the middle", "the oldest", "the oldest few", "all"],
)
@pytest.mark.parametrize("fold", [False, True], ids=["unfolded", "folded"])
def test_a_vanished_delta_is_noticed(tmp_path: Path, where: str, fold: bool) -> None:
    """Except the newest alone: that file looks as it did one commit earlier."""
    path = tmp_path / "file.db"
    make_store(path, fold=fold)
    if fold:
        with millstream.open(path) as ms:
            for number in range(12):
                ms.log("a").append(b"more %d" % number)
        where = where.replace("10", "(SELECT max(id) - 3 FROM millstream_delta)")
    edit(path, f"DELETE FROM millstream_delta WHERE {where}")
    with pytest.raises(CorruptionError):
        read_both(path)


# Values at the limits.


def test_the_largest_value_fits_and_one_byte_more_stores_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file.db"
    largest = os.urandom(MiB) * 16
    with millstream.open(path) as ms:
        log = ms.log("x")
        assert log.append(largest) == 0
        with pytest.raises(TooLarge) as refused:
            log.append(largest + b"x")
        assert (refused.value.limit, refused.value.size) == (16 * MiB, 16 * MiB + 1)
        with pytest.raises(TooLarge):
            log.append_many([b"fine", largest + b"x"])
        with pytest.raises(TooLarge):
            ms.log("y").append(largest + b"x")
        assert log.end_offset() == 1
    with millstream.open(path) as ms:
        assert [info.name for info in ms.logs()] == ["x"]
        assert ms.log("x").get(0).value == largest
        assert ms.log("x").append_many([largest, b"small"]) == range(1, 3)
        assert [len(record.value) for record in ms.log("x").read()] == [16 * MiB, 16 * MiB, 5]


def test_headers_and_keys_have_limits(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "file.db") as ms:
        log = ms.log("x")
        overhead = 10
        log.append(b"v", headers={"h": "x" * (64 * 1024 - overhead)}, key=b"k" * 64 * 1024)
        large_headers, large_key = {"h": "x" * 64 * 1024}, b"k" * (64 * 1024 + 1)
        with pytest.raises(TooLarge):
            log.append(b"v", headers=large_headers)
        with pytest.raises(TooLarge):
            log.append(b"v", key=large_key)
        with pytest.raises(TooLarge):
            log.append_many([b"v", b"w"], headers=[None, large_headers])
        with pytest.raises(TooLarge):
            log.append_many([b"v", b"w"], keys=[None, large_key])
        assert log.end_offset() == 1
        record = log.get(0)
        assert len(record.headers["h"]) == 64 * 1024 - overhead
        assert record.key == b"k" * 64 * 1024


@pytest.mark.parametrize(
    "name",
    ["x", "n" * 255, "日本語のログ", "🦆" * 255, "a/../b", "a b", "'; DROP TABLE x", "%00", "é"],
)
def test_names_may_hold_any_text(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file.db"
    with millstream.open(path) as ms:
        ms.log(name).append(b"v", key=name, headers={name: name})
        ms.log(name).cursor(name).ack(0)
        ms.fold()
    with millstream.open(path) as ms:
        assert [info.name for info in ms.logs()] == [name]
        assert ms.log(name).first().headers[name] == name
        assert [cursor.name for cursor in ms.log(name).cursors()] == [name]
    assert [p.name for p in tmp_path.iterdir()] == ["file.db"]


@pytest.mark.parametrize("name", ["", "n" * 256, "a\nb", "a\x00b", "\x7f", "\x85", "\ud800"])
def test_names_without_sense_are_refused(tmp_path: Path, name: str) -> None:
    with millstream.open(tmp_path / "file.db") as ms:
        with pytest.raises(InvalidName):
            ms.log(name)
        log = ms.log("x")
        log.append(b"v")
        with pytest.raises(InvalidName):
            log.cursor(name)
        with pytest.raises(InvalidName):
            log.append(b"v", producer=millstream.Producer(name, 0))
        assert log.end_offset() == 1


@pytest.mark.parametrize("fold", [False, True])
def test_empty_and_binary_values_come_back_as_they_were(tmp_path: Path, fold: bool) -> None:
    path = tmp_path / "file.db"
    values = [b"", b"\x00", bytes(range(256)), b"\xff" * 5_000, b"", b"\x00" * 2_048, b"x" * 2_049]
    with millstream.open(path) as ms:
        for value in values:
            ms.log("single").append(value, key=b"")
        ms.log("many").append_many(values, keys=[b""] * len(values))
        if fold:
            ms.log("other").append(b"newest")
            ms.fold()
    with millstream.open(path) as ms:
        for name in ("single", "many"):
            found = list(ms.log(name).read())
            assert [record.value for record in found] == values
            assert [record.key for record in found] == [b""] * len(values)


@pytest.mark.parametrize("mode", ["r", "rw"])
@pytest.mark.parametrize("guarded", ["file", "folder"])
def test_what_this_user_may_not_write_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Literal["r", "rw"], guarded: str
) -> None:
    path = tmp_path / "s.db"
    make_store(path, fold=False, records=1)
    before = files(tmp_path)
    barred = path if guarded == "file" else tmp_path
    # The tests may run as a user who may do everything.
    monkeypatch.setattr(os, "access", lambda place, _: Path(place) != barred)
    with pytest.raises(CannotOpen, match="cannot be read and written by this user") as refused:
        millstream.open(path, mode=mode)
    assert str(refused.value).count(str(path)) == 1
    assert (f"its folder {tmp_path}" in str(refused.value)) == (guarded == "folder")
    assert files(tmp_path) == before


@pytest.mark.parametrize("statement", range(1, 5))
def test_another_connection_may_create_the_store_before_any_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: int
) -> None:
    """The tables of a store that appears meanwhile are not taken for those of an application."""
    path = tmp_path / "a.db"
    statements: list[str] = []

    def create_before(_: object, text: str, __: object) -> bool:
        statements.append(text)
        if len(statements) == statement:
            create(path, busy=lambda attempt: False, vfs=None)  # not yet in write-ahead mode
        return True

    def watch(connection: apsw.Connection) -> None:
        monkeypatch.setattr(apsw, "connection_hooks", [])  # the first connection alone
        connection.exec_trace = create_before

    monkeypatch.setattr(apsw, "connection_hooks", [watch])
    with millstream.open(path) as ms:
        assert ms.log("x").append(b"v") == 0
    assert len(statements) >= statement


def test_a_refused_change_to_write_ahead_mode_is_repeated(tmp_path: Path) -> None:
    """SQLite gives up at once when several processes change the mode of a new file."""
    path = tmp_path / "a.db"
    create(path, busy=lambda attempt: False, vfs=None)
    other = apsw.Connection(str(path))
    other.set_busy_timeout(60_000)
    other.execute("BEGIN IMMEDIATE")

    def let_go(_: int) -> bool:
        other.execute("ROLLBACK")
        return True

    handlers = iter([lambda attempt: False, let_go])
    connection = connect(path, make_busy=lambda: next(handlers), vfs=None)
    assert connection.pragma("journal_mode") == "wal"
    connection.close()
    other.close()


@pytest.mark.parametrize("statement", ["PRAGMA auto_vacuum = 2", "PRAGMA user_version = 3"])
def test_a_database_without_tables_becomes_a_store(tmp_path: Path, statement: str) -> None:
    """A kill in the middle of a creation, or another tool, leaves such a file of one page."""
    path = tmp_path / "a.db"
    connection = apsw.Connection(str(path))
    connection.execute(statement)
    connection.close()
    assert path.stat().st_size > 0
    with millstream.open(path) as ms:
        assert ms.log("x").append(b"first") == 0
