"""A declarative pipeline over a log: run it again, and it takes only what is new.

    python examples/spark/declarative/run.py [DIRECTORY]

Each run appends three orders, and lets `spark-pipelines run` bring the tables up to date. Tables,
checkpoints and the store lie in the directory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark

import millstream
from millstream.spark.local.session import prepare

HERE = Path(__file__).resolve().parent
COUNTRIES = ("de", "fr", "it")
SPEC = """\
name: orders
storage: {storage}
libraries:
  - glob:
      include: transformations/**
"""


def append_orders(store: Path) -> int:
    """Append three orders; answers how many there are now."""
    with millstream.open(store) as ms:
        log = ms.log("orders")
        first = log.end_offset() + 1
        log.append_many(
            {"id": number, "country": COUNTRIES[number % 3], "total": 10 * number}
            for number in range(first, first + 3)
        )
        return log.end_offset()


def run_pipeline(directory: Path) -> None:
    """Bring the tables up to date."""
    shutil.copytree(HERE / "transformations", directory / "transformations", dirs_exist_ok=True)
    spec = directory / "spark-pipeline.yml"
    spec.write_text(SPEC.format(storage=(directory / "storage").as_uri()), encoding="utf-8")
    environ = dict(os.environ)
    prepare(environ)
    environ["MILLSTREAM_STORE"] = str(directory / "orders.db")
    program = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
    # A catalog that outlives the run: the second one must find the tables of the first.
    options = ["--remote", "local[2]", "--conf", "spark.sql.catalogImplementation=hive"]
    options += ["--conf", "spark.ui.enabled=false", "--spec", str(spec)]
    subprocess.run([program, "run", *options], cwd=directory, env=environ, check=True)


def main(directory: Path) -> None:
    """Append, then run."""
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    count = append_orders(directory / "orders.db")
    run_pipeline(directory)
    print(f"{count} orders, in the tables of {directory / 'spark-warehouse'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "declarative"))
