"""Promise: an archive counts what its manifest names, and says if that cannot be right."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from millstream.errors import CannotOpen, Conflict, CorruptionError, InvalidInput
from millstream.spark.archive.archive import Archive, ArchivedFile, Move, Segment
from millstream.spark.archive.disk_folder import disk_path
from millstream.spark.source.losses import Loss


def segment(start: int, stop: int, *, created: int = 1, path: str = "f") -> Segment:
    file = ArchivedFile(path=path, partition="2026-01-01", start=start, stop=stop, rows=1, bytes=1)
    return Segment(log="a/b", created=created, start=start, stop=stop, files=[file], written=5)


def test_segments_come_back_in_order(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "kept")
    assert archive.segments("a/b") == []
    archive.add([segment(10, 20)])
    archive.add([segment(0, 10)])
    assert [one.start for one in archive.segments("a/b")] == [0, 10]
    assert archive.segments("other") == []


def test_files_without_a_note_are_removed_and_others_stay(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    tmp_path.joinpath("staged").write_bytes(b"rows")
    move = Move(staged="staged", target="log=a%2Fb/date=2026-01-01/0.parquet")
    (place,) = archive.move_in([move])
    assert place == "log=a%2Fb/date=2026-01-01/0.parquet"
    known = segment(0, 10, path=place)
    other = tmp_path / "log=a%2Fb" / "date=2026-01-01" / "1.parquet"
    other.write_bytes(b"half")
    assert archive.clean("a/b", [known]) == 1
    assert (tmp_path / place).exists()
    assert not other.exists()


def test_a_segment_takes_the_place_of_those_inside_it(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    for start in (0, 10, 20):
        archive.add([segment(start, start + 10)])
    archive.exchange([segment(0, 20, path="merged")])
    found = archive.segments("a/b")
    assert [(one.start, one.stop) for one in found] == [(0, 20), (20, 30)]
    archive.clean("a/b", found)
    assert len(list(tmp_path.glob("_manifest/log=*/*.json"))) == 2
    assert archive.segments("a/b") == found


def test_what_is_missing_is_named_up_to_an_offset(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    hurt = Loss("a/b", 2, 4, "damaged")
    archive.add([replace(segment(0, 10), lost=[hurt])])
    archive.add([replace(segment(15, 20), lost=[Loss("a/b", 16, 17, "damaged too")])])
    found = archive.losses({"a/b": 16, "other": 5})
    assert found == [
        hurt,
        Loss("a/b", 10, 15, "log 'a/b': offsets 10 to 14 were never archived"),
    ]
    assert [(one.start, one.stop) for one in archive.losses({"a/b": 12})] == [(2, 4), (10, 12)]
    assert archive.losses({"a/b": 2}) == []


def test_what_cannot_be_right_is_told(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    with pytest.raises(CannotOpen, match="there is no archive"):
        archive.check()
    archive.add([segment(0, 10)])
    archive.add([segment(5, 20)])
    with pytest.raises(CorruptionError, match="two segments for offset 5"):
        archive.segments("a/b")
    with pytest.raises(Conflict, match="written by another run meanwhile"):
        archive.add([segment(0, 11)])
    entry = tmp_path / "_manifest" / "log=a%2Fb" / "00000000000000000005.json"
    entry.write_text("{")
    with pytest.raises(CorruptionError, match="not an entry of a manifest"):
        archive.segments("a/b")
    entry.write_text(
        '{"log":"a/b","created":1,"start":20,"stop":30,"files":[],"written":1,"format":2}'
    )
    with pytest.raises(CannotOpen, match="has format 2"):
        archive.segments("a/b")


@pytest.mark.parametrize("path", ["hdfs://host/kept", ""])
def test_an_archive_is_a_directory(path: str) -> None:
    with pytest.raises(InvalidInput, match="mounted share"):
        Archive(path)


def test_file_addresses_are_paths(tmp_path: Path) -> None:
    assert disk_path(f"file://{tmp_path}/kept") == tmp_path / "kept"
