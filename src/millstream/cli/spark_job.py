"""A job of `millstream spark run`: start Spark, run a pipeline, and explain a failure."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.display import note, progress
from millstream.cli.place import StorePlace
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CRASHED = "Python worker exited unexpectedly"
"""Spark's message about a worker that has vanished."""

_LATE = "Python worker failed to connect back"
"""Spark's message about a worker that took more than ten seconds to start."""

_AGAIN = "Run the same command again: it resumes where it stopped"


@dataclass(frozen=True)
class SparkJob:
    """The Spark that runs a pipeline, and whether its progress is shown."""

    master: Annotated[
        str,
        typer.Option(
            metavar="MASTER",
            help="Spark on this machine: local[N] has N threads, local[*] one per processor.",
        ),
    ] = "local[*]"
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="The most memory that Spark's Java may use.")
    ] = "1g"
    progress: Annotated[
        bool,
        typer.Option("--progress/--no-progress", help="Show the progress on standard error."),
    ] = True

    def run(self, pipeline: str, place: StorePlace, *arguments: Any, **options: Any) -> Any:
        """Run a pipeline on a store, and return its summary."""
        from millstream.spark.local.session import check_installed

        check_installed()  # before Spark is imported
        from millstream.spark.pipelines.target import Tell, place_of, quiet
        from millstream.spark.place import make_place

        if place.is_server:
            store = make_place(
                "",
                server=place.store,
                token="" if place.token_file else place.secret or "",
                token_file=place.token_file,
                ca=place.ca or "",
            )
        else:
            store = place_of(place.store)
        function = getattr(import_module(f"millstream.spark.pipelines.{pipeline}"), pipeline)
        with self._session() as session, progress("starting", enabled=self.progress) as bar:
            show: Tell = (bar or _line) if self.progress else quiet
            return function(session, store, *arguments, progress=show, **options)

    @contextmanager
    def _session(self) -> Iterator[SparkSession]:
        """Start Spark for this command; its errors become errors of Millstream."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        from millstream.spark.local.session import java_exit, local_session

        descriptor, name = tempfile.mkstemp(prefix="millstream-spark-", suffix=".log")
        os.close(descriptor)
        log = Path(name)
        session = local_session(name="millstream", master=self.master, memory=self.memory, log=log)
        code: int | None = None
        try:
            yield session
        except MillstreamError:
            raise
        except Exception as error:
            is_spark_alive = isinstance(error, (PySparkException, Py4JJavaError))
            # A killed Java shows as many kinds of errors, also as a broken pipe.
            code = None if is_spark_alive else java_exit()
            if code is None and not is_spark_alive:
                raise
            text = str(error)
            with log.open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")
            reason = reason_of(text) if code is None else _java_ended(code, self.memory)
            raise MillstreamError(f"{reason} (the full text is in {log})") from error
        else:
            log.unlink(missing_ok=True)
        finally:
            if code is None:  # else Java has ended
                session.stop()


def _java_ended(code: int, memory: str) -> str:
    how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
    return (
        f"Spark's Java {how} before the pipeline was done; it may use {memory} (--memory), which may "
        f"be more than the machine has. {_AGAIN}"
    )


def reason_of(text: str) -> str:
    """Return the reason in Spark's error text: preferably Millstream's own message."""
    if _CRASHED in text:
        return (
            "a Python worker of Spark was killed, or crashed, before the pipeline was done; the "
            f"machine may have run out of memory. {_AGAIN}"
        )
    if _LATE in text:
        return (
            "a Python worker of Spark took more than ten seconds to start, because the machine is "
            f"busy. {_AGAIN}"
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    messages = [line.partition(": ")[2] for line in lines if line.startswith("millstream.errors.")]
    reason = (messages or lines or ["Spark failed without a message"])[0]
    return reason.replace("failOnDataLoss=false", "--allow-gaps")  # the option of this program


def _line(stage: str, done: int, total: int) -> None:
    note(f"{stage}: {done:,} of {total:,}" if total else f"{stage} …")
