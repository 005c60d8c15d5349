"""The pipeline `replay`: appends rows of files or of a table to a log, once, at an optional rate.

The run first writes the rows to files in its checkpoint directory, a file for each step. Then it
appends each step in a transaction with the number of the step. So a killed run continues with the
step at which it stopped, even if the source has changed.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from millstream.errors import Conflict, InvalidInput, NotFound
from millstream.log.model.names import check_name
from millstream.spark.archive.disk_folder import store_whole
from millstream.spark.failures import point
from millstream.spark.pipelines.target import (
    PARQUET_TIMES,
    PipelineRun,
    Target,
    Tell,
    quiet,
    understood,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FORMATS = ("parquet", "json", "csv", "orc", "table")
COLUMNS = ("key", "value", "timestamp", "headers")
STEP_RECORDS = 100_000
STEP_FILES = 32
STEP_S = 1.0
"""How long one step's records last at the wished rate."""

_READ = {"csv": {"header": "true", "inferSchema": "true"}}
_ENDINGS = {
    "": "parquet",
    "parquet": "parquet",
    "orc": "orc",
    "csv": "csv",
    **dict.fromkeys(("json", "jsonl", "ndjson"), "json"),
}
_PLAN, _ROWS = "plan.json", "rows"
_DONE = "done.json"
"""How many steps are known to be appended."""


class ReplaySummary(Struct, frozen=True, kw_only=True):
    """The result of a run."""

    log: str
    records: int
    """The number of rows that this run appended."""
    total: int
    """Rows of the source, including rows that earlier runs appended."""
    steps: int
    resumed: bool
    """Whether a run before it had begun the same."""
    seconds: float


_UNREADABLE = re.compile(r"error while reading file (.+?)\.\s+(?:SQLSTATE|Could not read footer)")
"""How Spark names a file that it cannot read."""


class _Step(Struct, frozen=True):
    """Files whose rows are appended together."""

    files: list[str]
    rows: int


class _Plan(Struct, frozen=True, kw_only=True):
    """What is to be appended, fixed before the first record is."""

    app: str
    wish: dict[str, Any]
    steps: list[_Step]


def replay(
    spark: SparkSession,
    store: Target,
    source: str | os.PathLike[str],
    to: str,
    *,
    checkpoint: str | os.PathLike[str],
    format: str = "",
    columns: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    where: str = "",
    order_by: str = "",
    options: Mapping[str, str] | None = None,
    rate: float | None = None,
    step_records: int = STEP_RECORDS,
    progress: Tell = quiet,
) -> ReplaySummary:
    """Append the rows of a source to a log: files of a format, or `format="table"` and its name.

    Without a format the ending of the source's name decides; the default is Parquet.

    `columns` gives SQL expressions for key, value, timestamp and headers; `headers` one for each
    header by its name. What is not given is the source's column of that name; if it has no column
    `value`, the value is the whole row as JSON. `checkpoint` is a directory of this one replay: run
    again with it, a finished replay appends nothing, and one that was killed goes on.
    """
    job = PipelineRun(spark, store, progress)
    check_name(to)
    format = format or format_of(os.fspath(source))
    if format not in FORMATS:
        raise InvalidInput(f"a format is one of {', '.join(FORMATS)}, not {format!r}")
    if rate is not None and not rate > 0:
        raise InvalidInput(f"a rate is a number of records per second above 0, not {rate!r}")
    if step_records < 1:
        raise InvalidInput(f"a step has at least 1 record, not {step_records}")
    unknown = [name for name in columns or () if name not in COLUMNS]
    if unknown:
        raise InvalidInput(
            f"there is no column {unknown[0]!r} in a log; expected {', '.join(COLUMNS)}"
        )
    wish = {
        "source": os.fspath(source), "log": to, "store": job.place.shown, "format": format,
        "columns": dict(columns or {}), "headers": dict(headers or {}), "where": where,
        "order_by": order_by, "options": dict(options or {}),
    }  # fmt: skip
    folder = Path(os.fspath(checkpoint)).absolute()
    plan = _load(folder / _PLAN, _Plan)
    resumed = plan is not None
    if plan is None:
        progress("reading", 0, 0)
        each = step_records if rate is None else max(1, min(step_records, int(rate * STEP_S)))
        with _readable(format):
            rows = _rows(spark, os.fspath(source), format, dict(options or {}))
            chosen = mapped(rows, columns or {}, headers or {}, where=where, order_by=order_by)
            plan = _prepare(job, folder, chosen, each, wish)
    elif plan.wish != wish:
        raise Conflict(
            f"{folder} belongs to another replay, of {plan.wish['source']} to log "
            f"{plan.wish['log']!r}; choose another directory, or remove it to begin anew"
        )
    return _append(job, folder, plan, rate, resumed=resumed)


def format_of(source: str) -> str:
    """The format of files by the ending of their names; a directory without one holds Parquet."""
    name = source.rstrip("/").rpartition("/")[2].lower()
    plain = name.removesuffix(".gz").removesuffix(".bz2").removesuffix(".zst")
    ending = plain.rpartition(".")[2] if "." in plain.strip(".") else ""
    format_ = _ENDINGS.get(ending)
    if format_ is None:
        raise InvalidInput(
            f"the format of {source} cannot be told by its name; say which it is: "
            f"{', '.join(FORMATS)} (--format)"
        )
    return format_


@contextmanager
def _readable(format: str) -> Iterator[None]:
    """Refuse a file that Spark cannot read, by its name: Spark's own text is a trace of Java."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        match = _UNREADABLE.search(str(error))
        if match is None:
            raise
        file = re.sub("^file:/+", "/", unquote(match[1]))
        raise InvalidInput(
            f"{file} cannot be read as {format}: it has another format, or is damaged; nothing was "
            "appended. Say which format it has, or leave it out"
        ) from error


def _rows(spark: SparkSession, source: str, format: str, options: dict[str, str]) -> DataFrame:
    if format == "table":
        return spark.table(source)
    if "://" not in source:
        # Java may have been started in another directory.
        source = str(Path(source).absolute())
        if not Path(source).exists() and not glob(source):
            raise NotFound(
                f"there is nothing at {source} to replay; a path or a pattern of files", name=source
            )
    return spark.read.format(format).options(**{**_READ.get(format, {}), **options}).load(source)


def mapped(
    rows: DataFrame,
    columns: Mapping[str, str],
    headers: Mapping[str, str],
    *,
    where: str = "",
    order_by: str = "",
) -> DataFrame:
    """Rows with the columns that a log takes."""
    from pyspark.sql import functions as f

    present = {name: name for name in COLUMNS if name in rows.columns}
    if "value" not in present and "value" not in columns:
        # Whatever the row has, key and timestamp included, is in its JSON.
        present["value"] = "to_json(struct(*))"
    expressions = {**present, **columns}
    if headers:
        expressions.pop("headers", None)
    with understood("the rows cannot be mapped to a log"):
        if where:
            rows = rows.where(where)
        if order_by:
            wished = order_by.replace("{", "{{").replace("}", "}}")
            rows = rows.sparkSession.sql(f"SELECT * FROM {{rows}} ORDER BY {wished}", rows=rows)
        chosen = [f.expr(expressions[name]).alias(name) for name in COLUMNS if name in expressions]
        if headers:
            chosen.append(_header_map(rows, headers))
        made = rows.select(*chosen)
        if "timestamp" in made.columns and made.schema["timestamp"].dataType.typeName() == "string":
            made = made.withColumn("timestamp", f.expr("cast(timestamp as timestamp)"))
        return made


_LETTERS = {
    **dict.fromkeys(("string", "varchar", "char", "timestamp", "timestamp_ntz", "date"), "s"),
    **dict.fromkeys(("byte", "short", "integer", "long"), "i"),
    **dict.fromkeys(("float", "double", "decimal"), "d"),
    "boolean": "b",
    "void": "s",
}
_TYPES = {"s": "string", "i": "bigint", "d": "double", "b": "boolean"}


def _header_map(rows: DataFrame, headers: Mapping[str, str]) -> Column:
    """A map of the headers that are not null, each as the struct of its type."""
    from pyspark.sql import functions as f

    expressions = {name: f.expr(expression) for name, expression in headers.items()}
    kinds = rows.select(*(value.alias(name) for name, value in expressions.items())).schema
    pairs = []
    for name, value in expressions.items():
        kind = kinds[name].dataType
        letter = _LETTERS.get(kind.typeName())
        if letter is None:
            raise InvalidInput(
                f"header {name!r} would be {kind.simpleString()}; expected text, a number or a "
                "boolean"
            )
        fields = [
            (value if field == letter else f.lit(None)).cast(type_).alias(field)
            for field, type_ in _TYPES.items()
        ]
        pairs += [f.lit(name), f.when(value.isNotNull(), f.struct(*fields))]
    return f.map_filter(f.create_map(*pairs), lambda _, value: value.isNotNull()).alias("headers")


def _prepare(
    job: PipelineRun, folder: Path, rows: DataFrame, each: int, wish: dict[str, Any]
) -> _Plan:
    """Write the rows aside and fix what is appended in which step."""
    from pyarrow import parquet

    files = folder / _ROWS
    shutil.rmtree(files, ignore_errors=True)  # a run was killed before it had a plan
    folder.mkdir(parents=True, exist_ok=True)
    with job.configured(PARQUET_TIMES):
        rows.write.option("maxRecordsPerFile", each).parquet(str(files))
    point("replay staged")
    steps: list[_Step] = []
    waiting: list[str] = []
    count = 0
    for path in sorted(files.glob("part-*.parquet")):
        size = parquet.read_metadata(path).num_rows
        if not size:
            continue
        if waiting and (count + size > each or len(waiting) == STEP_FILES):
            steps.append(_Step(waiting, count))
            waiting, count = [], 0
        waiting.append(path.name)
        count += size
    if waiting:
        steps.append(_Step(waiting, count))
    plan = _Plan(app=f"replay:{secrets.token_hex(16)}", wish=wish, steps=steps)
    store_whole(folder / _PLAN, msgspec.json.encode(plan))
    return plan


def _append(
    job: PipelineRun, folder: Path, plan: _Plan, rate: float | None, *, resumed: bool
) -> ReplaySummary:
    """Append the steps that are left, each in a transaction of its own."""
    first: int = _load(folder / _DONE, int) or 0
    total = sum(step.rows for step in plan.steps)
    skipped = sum(step.rows for step in plan.steps[:first])
    log: str = plan.wish["log"]
    done, began_s = 0, job.seconds
    job.progress("replay", skipped, total)
    for number, step in enumerate(plan.steps[first:], first):
        # Each file is read by itself, because Spark reads several files in any order.
        frames = [job.spark.read.parquet(str(folder / _ROWS / name)) for name in step.files]
        rows = reduce(lambda a, b: a.union(b), frames)
        job.append(rows, log=log, txnAppId=plan.app, txnVersion=number)
        point("replay appended")
        store_whole(folder / _DONE, msgspec.json.encode(number + 1))
        done += step.rows
        job.progress("replay", skipped + done, total)
        if rate is not None and (ahead_s := done / rate - (job.seconds - began_s)) > 0:
            threading.Event().wait(ahead_s)
    shutil.rmtree(folder / _ROWS, ignore_errors=True)
    return ReplaySummary(
        log=log,
        records=done,
        total=total,
        steps=len(plan.steps),
        resumed=resumed,
        seconds=job.seconds,
    )


def _load(path: Path, kind: Any) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise Conflict(
            f"{path} is not what a replay left there: {error}; choose another directory"
        ) from error
