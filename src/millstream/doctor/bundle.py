"""The bundle of `millstream doctor --bundle`: facts for a maintainer, without data of users.

A bundle holds numbers, versions, settings and findings. It never holds payloads, keys, headers, names of
logs and queues, or texts of the application: findings are counted by kind, since their messages may quote
names. Settings whose names sound like secrets, and addresses with a password, are left out.
"""

from __future__ import annotations

import os
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from typing import Any

import apsw
import msgspec

from millstream import __version__
from millstream.doctor import Report
from millstream.doctor.environment import survey
from millstream.doctor.log_lines import cleaned_lines
from millstream.engine.sqlite.schema import PREFIX
from millstream.errors import CannotOpen
from millstream.format.version import FORMAT

PACKAGES = ("apsw", "msgspec", "typer", "starlette", "uvicorn", "websockets", "slatedb", "nats-py")
PRAGMAS = (
    "application_id",
    "auto_vacuum",
    "encoding",
    "freelist_count",
    "journal_mode",
    "page_count",
    "page_size",
    "schema_version",
    "user_version",
)
SECRET_WORDS = ("secret", "token", "password", "key", "credential", "auth")
VARIABLES = "MILLSTREAM_"


def write_bundle(
    path: Path,
    store: Path,
    report: Report,
    *,
    environ: Mapping[str, str] = os.environ,
    log_lines: Iterable[bytes] | None = None,
) -> list[str]:
    """Write the bundle into a new file; return the names of its parts.

    `log_lines` are JSON lines of a server; their facts are cleaned (`log_lines.py`).
    """
    parts = {
        "versions.json": _versions(),
        "environment.json": _environment(store, environ),
        "store.json": _store(store),
        "findings.json": _findings(report),
        "settings.json": _settings(environ),
    }
    if log_lines is not None:
        lines, unreadable = cleaned_lines(log_lines)
        parts["log_lines.json"] = {"unreadable": unreadable, "lines": lines}
    archive = BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, facts in parts.items():
            bundle.writestr(name, msgspec.json.format(msgspec.json.encode(facts)))
    try:
        with open(path, "xb") as file:
            file.write(archive.getvalue())
    except OSError as error:
        advice = "name another file" if isinstance(error, FileExistsError) else "is it writable?"
        raise CannotOpen(
            f"{path} cannot be written: {error.strerror}; {advice}", path=str(path)
        ) from error
    return list(parts)


def _versions() -> dict[str, Any]:
    packages: dict[str, str | None] = {}
    for name in PACKAGES:
        packages[name] = None
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    return {
        "millstream": __version__,
        "format": FORMAT,
        "sqlite": apsw.sqlite_lib_version(),
        "packages": packages,
    }


def _environment(store: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return facts of the machine, without its name, its addresses and the paths of users."""
    machine = survey(store, environ=environ)
    disks = {
        name: {"total_bytes": disk.total_bytes, "free_bytes": disk.free_bytes}
        for name, disk in machine.disks.items()
    }
    return {
        "python": machine.python,
        "platform": machine.platform,
        "cores": machine.cores,
        "packages": machine.packages,
        "java": None if machine.java is None else machine.java.major,
        "disks": disks,
    }


def _store(path: Path) -> dict[str, Any]:
    """Return the sizes, settings and schema of a store's file; only our own objects are named."""
    facts: dict[str, Any] = {
        "file_bytes": path.stat().st_size,
        "wal_bytes": _size(Path(f"{path}-wal")),
        "file_mode": oct(path.stat().st_mode & 0o777),
    }
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        facts["pragmas"] = {name: connection.pragma(name) for name in PRAGMAS}
        rows: list[Any] = connection.execute(
            "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL"
        ).fetchall()
    except (apsw.Error, UnicodeDecodeError) as error:
        return facts | {"unreadable": type(error).__name__}
    finally:
        connection.close()
    own_objects = [(kind, sql) for kind, name, sql in rows if str(name).startswith(PREFIX)]
    facts["schema"] = [sql for _, sql in own_objects]
    facts["application_objects"] = dict(
        Counter(kind for kind, *_ in rows) - Counter(kind for kind, _ in own_objects)
    )
    return facts


def _findings(report: Report) -> dict[str, Any]:
    """Return the figures of an examination; findings are counted, because they quote names."""
    facts = {
        name: value
        for name, value in msgspec.structs.asdict(report).items()
        if isinstance(value, int | float | bool) or name == "rows"
    }
    kinds = Counter(f"{problem.severity} {problem.kind}" for problem in report.problems)
    return facts | {"healthy": report.healthy, "problems": dict(kinds)}


def _settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the names of Millstream's variables; values only of numbers and switches."""
    return {
        name: value if value.isdecimal() or value.lower() in ("true", "false") else "(set)"
        for name, value in sorted(environ.items())
        if name.startswith(VARIABLES) and not any(word in name.lower() for word in SECRET_WORDS)
    }


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
