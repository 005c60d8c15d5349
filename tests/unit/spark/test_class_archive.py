"""Where an archive of Spark's classes lies, and what a Java is told of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from millstream.errors import CannotOpen, WriteFailed
from millstream.spark.local import class_archive
from millstream.spark.local.class_archive import (
    PATH_VARIABLE,
    find_archive,
    java_options,
    keep_archive,
    write_archive,
)
from millstream.spark.local.java import Java

pytestmark = pytest.mark.requires("spark")


@pytest.fixture
def java(tmp_path: Path) -> Java:
    """A Java of which only its home and its release are known."""
    home = tmp_path / "java"
    (home / "lib" / "server").mkdir(parents=True)
    (home / "lib" / "server" / "classes.jsa").touch()
    (home / "release").write_text('JAVA_VERSION="17.0.15"')
    return Java(home, 17, "JAVA_HOME")


@pytest.fixture
def cache(tmp_path: Path) -> dict[str, str]:
    """An environment that names a cache folder; a path with a blank is one option, too."""
    (tmp_path / "a cache" / "millstream").mkdir(parents=True)
    return {"XDG_CACHE_HOME": str(tmp_path / "a cache")}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """What a Java has written."""
    path = tmp_path / "written"
    path.write_bytes(b"classes")
    return path


def test_an_archive_belongs_to_one_spark_on_one_java(
    tmp_path: Path, java: Java, cache: dict[str, str], written: Path
) -> None:
    assert find_archive(java, cache) is None
    kept = keep_archive(written, java, cache)
    assert kept.parent == tmp_path / "a cache" / "millstream"
    assert find_archive(java, cache) == kept
    assert find_archive(replace(java, home=tmp_path), cache) is None
    (java.home / "release").write_text('JAVA_VERSION="17.0.16"')
    assert find_archive(java, cache) is None


def test_part_of_an_archive_is_none(java: Java, cache: dict[str, str], written: Path) -> None:
    kept = keep_archive(written, java, cache)
    kept.write_bytes(b"class")
    assert find_archive(java, cache) is None
    assert java_options(java, cache) == ""


def test_a_java_is_told_to_use_an_archive_or_to_write_one(
    tmp_path: Path, java: Java, cache: dict[str, str], written: Path
) -> None:
    assert java_options(java, cache) == ""
    kept = keep_archive(written, java, cache)
    assert f'-XX:SharedArchiveFile="{kept}"' in java_options(java, cache)
    writing = cache | {PATH_VARIABLE: str(tmp_path / "new")}
    assert f'-XX:ArchiveClassesAtExit="{tmp_path / "new"}"' in java_options(java, writing)


def test_a_java_that_writes_none_is_told_and_leaves_the_last_one(
    java: Java, cache: dict[str, str], written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = keep_archive(written, java, cache)
    monkeypatch.setattr(class_archive, "find_java", lambda environ: java)
    monkeypatch.setattr(class_archive, "_rehearse", lambda environ: None)
    with pytest.raises(CannotOpen, match=r"writes no archive.*JAVA_HOME"):
        write_archive(cache)
    assert find_archive(java, cache) == kept


def test_a_java_without_an_archive_of_its_own_classes_writes_that_first(
    java: Java, cache: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (java.home / "lib" / "server" / "classes.jsa").unlink()
    program = java.home / "bin" / "java"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "own classes" > "${2#*=}"\n')
    program.chmod(0o755)
    told = []

    def rehearse(environ: dict[str, str]) -> None:
        told.append(java_options(java, environ))
        Path(environ[PATH_VARIABLE]).write_bytes(b"classes")

    monkeypatch.setattr(class_archive, "find_java", lambda environ: java)
    monkeypatch.setattr(class_archive, "_rehearse", rehearse)
    made = write_archive(cache)
    assert find_archive(java, cache) == made
    (base,) = (path for path in made.parent.iterdir() if path != made)
    assert base.read_text() == "own classes"
    assert f'-XX:SharedArchiveFile="{base}" -XX:ArchiveClassesAtExit' in told[0]

    base.write_text("own")  # as after a crash
    assert find_archive(java, cache) is None
    assert write_archive(cache) == made
    assert base.read_text() == "own classes"

    base.unlink()
    program.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(CannotOpen, match="writes no archive"):
        write_archive(cache)


def test_an_archive_takes_the_place_of_the_last_one_when_it_is_complete(
    java: Java, cache: dict[str, str], written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = keep_archive(written, java, cache)
    found_while_writing = []

    def rehearse(environ: dict[str, str]) -> None:
        Path(environ[PATH_VARIABLE]).write_bytes(b"more classes")
        found_while_writing.append(find_archive(java, cache))

    monkeypatch.setattr(class_archive, "find_java", lambda environ: java)
    monkeypatch.setattr(class_archive, "_rehearse", rehearse)
    made = write_archive(cache)
    assert found_while_writing == [last]
    assert made.read_bytes() == b"more classes"
    assert list(made.parent.iterdir()) == [made]


def test_a_cache_folder_that_cannot_be_made_is_told(
    tmp_path: Path, java: Java, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(class_archive, "find_java", lambda environ: java)
    with pytest.raises(WriteFailed, match="no archive can be kept in"):
        write_archive({"XDG_CACHE_HOME": str(tmp_path / "file")})
