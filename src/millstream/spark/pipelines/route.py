"""The pipeline `route`: evaluates the filters of all queues in one pass over the records.

It is the distributed form of the built-in routing, for queues with `router="spark"`. Each queue
stores its position in each log, and the commit that assigns messages moves the position. So there
is no checkpoint that could be lost: a killed run is run again, and starts at the positions of the
queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import Struct

from millstream.errors import InvalidInput, NotFound, Truncated
from millstream.filters import parse
from millstream.queue.model.message import QueueInfo
from millstream.queue.rules.sources import may_match
from millstream.queue.service.assignment import Assignment, AssignMessages
from millstream.queue.service.bulk_reads import ListPositions
from millstream.spark.failures import point
from millstream.spark.pipelines.backfill import backfill_queues
from millstream.spark.pipelines.queue_matches import (
    Interest,
    RoundMatches,
    match_round,
    one_ahead,
)
from millstream.spark.pipelines.target import (
    PipelineRun,
    Target,
    Tell,
    check_names,
    find_queues,
    quiet,
)
from millstream.spark.place import writing
from millstream.spark.row_filter import FilterRows, rows_by_log
from millstream.spark.sink.assignment import assign_all, covered
from millstream.spark.source.bins import Range
from millstream.spark.source.losses import Loss, TellLoss
from millstream.spark.source.stream import shares

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from millstream.command import Session

ROUND_RECORDS = 250_000
"""Records of a round: about as many as the built-in routing keeps decoded at a time."""
ROUTER = "spark"

Enrich = Callable[["DataFrame"], "DataFrame"]


class RoutedQueue(Struct, frozen=True, kw_only=True):
    """The result of a run for a queue."""

    queue: str
    assigned: int
    backfilled: int = 0
    behind: int = 0
    """Records of its logs that the queue has not examined: appended since the run began."""


class RouteSummary(Struct, frozen=True, kw_only=True):
    """The result of a run."""

    records: int
    """Records that were looked at, once for all queues."""
    assigned: int
    backfilled: int
    rounds: int
    seconds: float
    queues: list[RoutedQueue]
    lost: list[Loss] = []
    """What could not be read, and was passed over."""


def route(
    spark: SparkSession,
    store: Target,
    *,
    queues: Sequence[str] = (),
    enrich: Enrich | str | None = None,
    values: bool = False,
    backfill: str = "",
    round_records: int = ROUND_RECORDS,
    allow_gaps: bool = False,
    progress: Tell = quiet,
) -> RouteSummary:
    """Assign the present records to the named queues, or to all queues that Spark routes.

    `enrich` changes the records that filters see: a function of the records, or a SQL query over
    the view `records`, that returns them with other `headers`. With `values` the records have a
    column `value`. `backfill` names an archive: new queues first get copies of records that their
    logs no longer hold. Records that were truncated before the queue examined them raise
    `Truncated`, unless `allow_gaps` is set or the queue is lossy. Damaged records end the run; with
    `allow_gaps` they are skipped, and the summary names them. A queue that cannot be described is
    left out, keeps its position, and is named too.
    """
    job = PipelineRun(spark, store, progress)
    if round_records < 1:
        raise InvalidInput(f"a round has at least 1 record, not {round_records}")
    lost: list[Loss] = []
    tell = lost.append if allow_gaps else None
    with writing(job.place) as session:
        infos = routed_queues(session, check_names(queues, "queue"), tell)
        before = {name: _messages(session, info) for name, info in infos.items()}
        copied: dict[str, int] = {}
        if backfill:
            copied = backfill_queues(job, session, infos, backfill, tell)
        ends = _skip_lost(session, infos, allow_gaps=allow_gaps)
        total = sum(map(len, _next(session, infos, ends, sum(ends.values()) + 1)))
        done = rounds = 0
        progress("route", done, total)
        run = _RouteRun(job, session, infos, allow_gaps=allow_gaps)
        planned = _rounds(session, infos, ends, round_records)
        if enrich is None:
            passed = run.looked(planned)
        else:
            passed = run.passed(planned, enrich, values)
        for ranges in passed:
            done += sum(map(len, ranges))
            rounds += 1
            progress("route", done, max(done, total))
        lost += run.lost
        routed = [
            RoutedQueue(
                queue=name,
                assigned=max(0, _messages(session, info) - before[name] - copied.get(name, 0)),
                backfilled=copied.get(name, 0),
                behind=_behind(session, name),
            )
            for name, info in (routed_queues(session, tuple(infos)) if infos else {}).items()
        ]
    return RouteSummary(
        records=done,
        assigned=sum(queue.assigned for queue in routed),
        backfilled=sum(copied.values()),
        rounds=rounds,
        seconds=job.seconds,
        queues=routed,
        lost=lost,
    )


def routed_queues(
    session: Session, names: Sequence[str], tell: TellLoss | None = None
) -> dict[str, QueueInfo]:
    """Return the named queues, or all queues that Spark routes; report damaged queues to `tell`."""
    losses: list[Loss] = []
    infos = find_queues(session, names, None if tell is None else losses.append)
    routed = {info.name: info for info in infos if info.spec.router == ROUTER}
    for info in infos if names else ():
        if info.name not in routed:
            raise InvalidInput(
                f"queue {info.name!r} routes its messages itself; specify it with router='spark'"
            )
    for loss in losses:
        assert tell is not None
        tell(loss)
    if not routed and not losses:
        raise NotFound("no queue of this store is routed by Spark; specify one with router='spark'")
    return routed


def _messages(session: Session, info: QueueInfo) -> int:
    """Return the number of messages of a queue in any state, including its inbox."""
    routed = info.available + info.delayed + info.in_flight + info.done + info.failed
    return routed + max(0, info.unrouted - _behind(session, info.name))


def _behind(session: Session, queue: str) -> int:
    """Return the number of records that a queue has not examined."""
    return sum(
        position.end - position.position for position in session.execute(ListPositions(queue))
    )


def _logs(session: Session, infos: dict[str, QueueInfo]) -> dict[str, dict[str, int]]:
    """Return the position of each queue in its logs."""
    return {
        name: {position.log: position.position for position in session.execute(ListPositions(name))}
        for name in infos
    }


def _skip_lost(
    session: Session, infos: dict[str, QueueInfo], *, allow_gaps: bool
) -> dict[str, int]:
    """Move queues past truncated records, if allowed; return the ends of the logs."""
    ends: dict[str, int] = {}
    for name, info in infos.items():
        for position in session.execute(ListPositions(name)):
            ends[position.log] = max(ends.get(position.log, 0), position.end)
            if position.position >= position.start:
                continue
            if not allow_gaps and not info.spec.lossy:
                raise Truncated(
                    f"log {position.log!r} begins at {position.start}, and queue {name!r} has come to "
                    f"{position.position} only: the records between were truncated before they were "
                    "routed; backfill them from an archive, or with allow_gaps they are passed over",
                    log=position.log,
                    offset=position.position,
                    start=position.start,
                )
            passed = Assignment(name, position.log, position.position, position.start, [])
            session.execute(AssignMessages([passed]))
    return ends


def _rounds(
    session: Session, infos: dict[str, QueueInfo], ends: dict[str, int], limit: int
) -> Iterator[list[Range]]:
    """Yield the ranges of each round; a caller may ask for the next before it assigns the last."""
    ahead: dict[str, int] = {}
    while ranges := _next(session, infos, ends, limit, ahead):
        yield ranges
        ahead |= {range_.log: range_.stop for range_ in ranges}


def _next(
    session: Session,
    infos: dict[str, QueueInfo],
    ends: dict[str, int],
    limit: int,
    ahead: Mapping[str, int] = {},
) -> list[Range]:
    """Return the ranges of a round: each log from its slowest queue's position, or from `ahead`."""
    starts: dict[str, int] = {}
    for logs in _logs(session, infos).values():
        for log, position in logs.items():
            if log in ends:
                starts[log] = min(starts.get(log, ends[log]), position)
    starts = {log: min(ends[log], max(start, ahead.get(log, 0))) for log, start in starts.items()}
    counts = shares({log: ends[log] - start for log, start in starts.items()}, limit)
    return [Range(log, starts[log], starts[log] + count) for log, count in counts.items() if count]


class _RouteRun:
    """The rounds of a run: evaluates the filters of each round and assigns the matches."""

    def __init__(
        self, job: PipelineRun, session: Session, infos: dict[str, QueueInfo], *, allow_gaps: bool
    ) -> None:
        self.lost: list[Loss] = []
        self._job = job
        self._session = session
        self._infos = infos
        self._allow_gaps = allow_gaps

    def looked(self, rounds: Iterable[list[Range]]) -> Iterator[list[Range]]:
        """Let tasks evaluate the filters, and assign a round while tasks work on the next."""
        interests_of: dict[str, list[Interest]] = {}

        def ask(ranges: list[Range]) -> RoundMatches:
            for log in {range_.log for range_ in ranges} - interests_of.keys():
                interests_of[log] = self._interests(log)
            interests = {range_.log: interests_of[range_.log] for range_ in ranges}
            return match_round(self._job, ranges, interests, allow_gaps=self._allow_gaps)

        for matches_of_round in one_ahead(ask, rounds):
            point("before commit")
            assign_all(self._session, matches_of_round.assignments())
            point("after commit")
            self.lost += matches_of_round.lost
            yield matches_of_round.ranges

    def _interests(self, log: str) -> list[Interest]:
        """The queues that take from a log."""
        specs = {name: info.spec for name, info in self._infos.items()}
        return [Interest(queue, specs[queue].filter) for queue, _ in covered(specs, [log])]

    def passed(
        self, rounds: Iterable[list[Range]], enrich: Enrich | str, values: bool
    ) -> Iterator[list[Range]]:
        """Evaluate the filters on enriched rows, and let the assignment sink assign the matches."""
        values = values or name_values(self._infos)
        for ranges in rounds:
            chosen = {range_.log for range_ in ranges}
            logs = _logs(self._session, self._infos)
            infos = {name: self._infos[name] for name in logs if chosen & logs[name].keys()}
            if self._allow_gaps:
                self.lost += self._job.losses(ranges, values=values)
            self._pass(ranges, infos, enrich, values)
            yield ranges

    def _pass(
        self,
        ranges: Sequence[Range],
        infos: dict[str, QueueInfo],
        enrich: Enrich | str,
        values: bool,
    ) -> None:
        """Evaluate the filters of all queues on the records of a round, and assign the matches."""
        job = self._job
        rows = job.read(
            [range_.log for range_ in ranges],
            startingOffsets={range_.log: range_.start for range_ in ranges},
            endingOffsets={range_.log: range_.stop for range_ in ranges},
            typedHeaders=True,
            metadataOnly=not values,
            failOnDataLoss=not self._allow_gaps,
        )
        matched = matches(
            enriched(job.spark, rows, enrich), infos, [range_.log for range_ in ranges]
        )
        # The first and the last offset, so that every queue comes as far as this round goes.
        edges = [
            (range_.log, at, None) for range_ in ranges for at in (range_.start, range_.stop - 1)
        ]
        examined = matched.unionByName(
            job.spark.createDataFrame(edges, "log string, offset bigint, queue string")
        )
        job.append(examined, assign=True, queues=list(infos))


def name_values(infos: dict[str, QueueInfo]) -> bool:
    """Return whether a filter names `_value`: the rows then need the column `value`."""
    filters = [info.spec.filter for info in infos.values() if info.spec.filter]
    return any("_value" in parse(text).fields for text in filters)


def matches(rows: DataFrame, infos: dict[str, QueueInfo], logs: Sequence[str]) -> DataFrame:
    """Return one row (log, offset, queue) for each queue that takes a record."""
    takers = [(name, info.spec.filter, _source_logs(info, logs)) for name, info in infos.items()]
    columns = ["topic", "offset", "key", "unix_millis(timestamp) as timestamp", "headers"]
    if name_values(infos):
        if "value" not in rows.columns:
            raise InvalidInput(
                "a queue's filter names '_value', but the records have no column 'value'; keep it"
            )
        # A filter asks only whether the value is null: tasks need not receive its bytes.
        columns.append("if(value is null, null, true) as value")

    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        conditions = [
            (queue, parse(text) if text else None, sources) for queue, text, sources in takers
        ]
        for log, log_rows in chain.from_iterable(map(rows_by_log, batches)):
            filter_rows = FilterRows(log_rows, log)
            for queue, condition, source_logs in conditions:
                if log not in source_logs:
                    continue
                offsets = log_rows.column("offset")
                if condition is not None:
                    offsets = offsets.filter(filter_rows.matches(condition))
                count = len(offsets)
                yield pa.record_batch(
                    {
                        "log": pa.array([log] * count, pa.string()),
                        "offset": offsets,
                        "queue": pa.array([queue] * count, pa.string()),
                    }
                )

    return rows.selectExpr(*columns).mapInArrow(ask, "log string, offset bigint, queue string")


def _source_logs(info: QueueInfo, logs: Sequence[str]) -> frozenset[str]:
    """Return those of the logs that the queue takes from."""
    return frozenset(log for log in logs if log in info.spec.sources or may_match(log, info.spec))


def enriched(spark: SparkSession, rows: DataFrame, enrich: Enrich | str) -> DataFrame:
    """Return the records as filters are to see them."""
    if callable(enrich):
        records = enrich(rows)
    else:
        rows.createOrReplaceTempView("records")
        records = spark.sql(enrich)
    lacking = [
        n for n in ("topic", "offset", "key", "timestamp", "headers") if n not in records.columns
    ]
    if lacking:
        raise InvalidInput(
            f"the enriched records have no column {lacking[0]!r}; keep those of the records"
        )
    return records
