"""A run of a pipeline: its Spark session, its store, its progress and its duration."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from millstream.clock import SystemClock
from millstream.errors import CannotOpen, CorruptionError, InvalidInput, NotFound
from millstream.log.model.names import check_name
from millstream.queue.commands import DescribeQueue, ListQueues
from millstream.queue.model.message import QueueInfo
from millstream.remote.address import is_address
from millstream.spark.options import ReadOptions, read_options
from millstream.spark.place import Place, make_place
from millstream.spark.source.bins import Bin, BinSizes, Range, bins
from millstream.spark.source.listings import listed
from millstream.spark.source.losses import Loss, TellLoss

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from millstream.command import Session

Target = str | os.PathLike[str] | Place
"""A store: its file, the address of its server, or a place with a token."""

Tell = Callable[[str, int, int], None]
"""Hears of progress: at which stage, how much is done, and of how much."""

T = TypeVar("T")

PARQUET_TIMES = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
"""What every reader of Parquet takes for a time."""

_NOT_SPLIT = re.compile(r"[^,\s](?:[^,]*[^,\s])?")


def quiet(_stage: str, _done: int, _total: int) -> None:
    """Reports no progress."""


def place_of(store: Target) -> Place:
    """Return the place of a store; raise `CannotOpen` if the store file is missing."""
    if isinstance(store, Place):
        place = store
    else:
        text = os.fspath(store)
        place = make_place("", server=text) if is_address(text) else make_place(text, server="")
    if not (place.is_server or place.is_bucket) and not Path(place.url).exists():
        raise CannotOpen(f"there is no store at {place.url}", path=place.url)
    return place


class PipelineRun:
    """One run of a pipeline, from now on."""

    def __init__(self, spark: SparkSession, store: Target, progress: Tell) -> None:
        self.spark = spark
        self.place = place_of(store)
        self.progress = progress
        self._clock = SystemClock()
        self._began = self._clock.seconds()

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        return round(self._clock.seconds() - self._began, 3)

    def read(self, logs: Sequence[str], **options: object) -> DataFrame:
        """Read logs by their exact names in a batch."""
        return self.load(**subscription(logs), **options)

    def load(self, **options: object) -> DataFrame:
        """A batch read."""
        # Pipelines carry values as they are stored, whatever schema a log has.
        reader = self.spark.read.format("millstream").option("rawValues", True)
        reader = reader.options(**options_of(self.place))
        return reader.options(**{name: _text(value) for name, value in options.items()}).load()

    def task_options(self, **options: object) -> ReadOptions:
        """What a task needs to know to read ranges of any log."""
        texts = {name: _text(value) for name, value in options.items()}
        return read_options({**options_of(self.place), "subscribePattern": ".*", **texts})

    def in_tasks(self, work: Callable[[T], bytes], chosen: Sequence[T]) -> list[bytes]:
        """Let a task of Spark call `work` with each item; return the answers in the same order."""

        def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            for number in (value for batch in numbers for value in batch.column(0).to_pylist()):
                yield pa.record_batch({"number": [number], "done": [work(chosen[number])]})

        tasks = self.spark.range(0, len(chosen), 1, max(1, len(chosen)))
        done = tasks.mapInArrow(run, "number bigint, done binary").collect()
        return [bytes(row[1]) for row in sorted(done, key=lambda row: int(row[0]))]

    def losses(self, ranges: Sequence[Range], *, values: bool) -> list[Loss]:
        """Return the records of ranges that cannot be read."""
        options = self.task_options(failOnDataLoss=False)

        def search(task_ranges: Bin[Range]) -> bytes:
            from millstream.spark.archive.task import find_losses

            return msgspec.msgpack.encode(find_losses(options, task_ranges, values=values))

        chosen = bins(ranges, lambda _: 0, BinSizes())
        encoded = self.in_tasks(search, chosen) if chosen else []
        return [
            loss for answer in encoded for loss in msgspec.msgpack.decode(answer, type=list[Loss])
        ]

    def append(self, rows: DataFrame, **options: object) -> None:
        """A batch write."""
        writer = rows.write.format("millstream").mode("append").options(**options_of(self.place))
        writer.options(**{name: _text(value) for name, value in options.items()}).save()

    def write_parquet(self, rows: DataFrame, path: Path) -> DataFrame:
        """Write rows to Parquet files, rename the complete folder to `path`, and read it."""
        draft = path.with_name(f".{path.name}.partial")
        shutil.rmtree(draft, ignore_errors=True)
        with self.configured(PARQUET_TIMES):
            rows.write.option("compression", "zstd").parquet(str(draft))
        shutil.rmtree(path, ignore_errors=True)
        draft.rename(path)
        return self.spark.read.parquet(str(path))

    @contextmanager
    def configured(self, settings: Mapping[str, str]) -> Iterator[None]:
        """Spark with these settings, until the block ends."""
        conf = self.spark.conf
        before = {name: conf.get(name, None) for name in settings}
        for name, value in settings.items():
            conf.set(name, value)
        try:
            yield
        finally:
            for name, old in before.items():
                if old is None:
                    conf.unset(name)
                else:
                    conf.set(name, old)


def options_of(place: Place) -> dict[str, str]:
    """The options of Spark's source that name a store."""
    if not place.is_server:
        return {"path": place.url}
    named = {"token": place.token, "tokenFile": place.token_file, "ca": place.ca}
    return {"server": place.url, **{name: value for name, value in named.items() if value}}


def _text(value: object) -> str:
    if isinstance(value, dict | list):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def subscription(logs: Sequence[str]) -> dict[str, str]:
    """Return the option that names the logs; a name with a comma needs a pattern."""
    if all(_NOT_SPLIT.fullmatch(log) for log in logs):
        return {"subscribe": ",".join(logs)}
    return {"subscribePattern": "|".join(map(re.escape, logs))}


def check_names(logs: Sequence[str], kind: str = "log") -> tuple[str, ...]:
    """Names, each once; a text is not a list of its letters."""
    if isinstance(logs, str):
        raise InvalidInput(f"expected a list of {kind} names, not the one text {logs!r}")
    return tuple(dict.fromkeys(check_name(log, kind) for log in logs))


def find_queues(
    session: Session, names: Sequence[str], tell: TellLoss | None = None
) -> list[QueueInfo]:
    """Return the named queues, or all queues.

    A damaged queue, or a queue with a damaged log, ends the search; with `tell` it is left out and
    reported.
    """
    if not names:
        return list(_all_queues(session, tell))
    infos: list[QueueInfo] = []
    for name in names:
        try:
            info = session.execute(DescribeQueue(name))
        except CorruptionError as error:
            if tell is None:
                raise
            tell(left_out(name, error))
            continue
        if info is None:
            raise NotFound(
                f"there is no queue {name!r}; `millstream queue list` shows what there is",
                name=name,
            )
        infos.append(info)
    return infos


def _all_queues(session: Session, tell: TellLoss | None) -> Iterator[QueueInfo]:
    return listed(
        lambda after, limit: session.execute(ListQueues(after, limit)),
        named_by="queue",
        tell=None if tell is None else lambda name, error: tell(left_out(name, error)),
    )


def left_out(queue: str, error: CorruptionError) -> Loss:
    """A queue that is left out as a whole; nothing of it is changed."""
    named = "" if error.message.startswith(f"queue {queue!r}: ") else f"queue {queue!r}: "
    return Loss(
        "", 0, 0, f"{named}{error.message}; the queue was left out, and stands where it stood"
    )


@contextmanager
def understood(otherwise: str) -> Iterator[None]:
    """Refuse SQL that Spark does not understand, with the first sentence of Spark's error."""
    from pyspark.errors import AnalysisException, ParseException

    try:
        yield
    except (AnalysisException, ParseException) as error:
        reason = " ".join(str(error).split(";")[0].split())
        raise InvalidInput(f"{otherwise}: {reason[:500]}") from error
