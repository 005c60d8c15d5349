"""The Python of Spark's workers on this machine: this one, started through a small script.

Spark starts several processes for the first row that it reads, and one for each stream. Its own search
path has archives of its packages, whose modules every process compiles anew: a third of the
processor's time until it is ready. `STARTER` leaves them out, and lets a process that plans a stream
connect to Java before it imports anything, because Java waits ten seconds for it at most. Where a
fork server runs (`fork_server.py`), it asks that for a process first.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import MutableMapping
from pathlib import Path

STARTER = Path(__file__).resolve().with_name("starter") / "python"
STARTED_VARIABLE = "MILLSTREAM_PYTHON"
ARCHIVES_VARIABLE = "MILLSTREAM_PYSPARK_ARCHIVES"


def set_interpreter(environ: MutableMapping[str, str]) -> None:
    """Let workers run in this Python, unless the environment names another.

    They must see the same packages: `python3` on the path may be another one.
    """
    if "PYSPARK_PYTHON" in environ:
        return
    environ["PYSPARK_PYTHON"] = str(STARTER)
    environ[STARTED_VARIABLE] = sys.executable
    environ[ARCHIVES_VARIABLE] = _archives()


def _archives() -> str:
    """What Spark adds to the search path without need, if its packages are installed here."""
    installed = Path(sysconfig.get_path("purelib"))
    folder = installed / "pyspark" / "python" / "lib"
    found = [folder / "pyspark.zip", *folder.glob("py4j-*.zip")]
    if not all(path.exists() for path in (*found, installed / "py4j")):
        return ""
    return "".join(f"{path}{os.pathsep}" for path in found)
