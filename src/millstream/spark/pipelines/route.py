"""The pipeline `route`: every queue's filter in one pass over the records, round by round.

The distributed form of the built-in routing, for queues whose spec says `router="spark"`. How far each
queue has come in each log is known by the queue itself, and moved by the commit that assigns. So there
is no checkpoint to lose: a run that was killed is run again, and begins where every queue stands.
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
from millstream.queue.service.assigning import Assignment, AssignMessages
from millstream.queue.service.scanning import ListPositions
from millstream.spark.failures import point
from millstream.spark.pipelines.backfill import backfill_queues
from millstream.spark.pipelines.looks import RoundLook, look, one_ahead
from millstream.spark.pipelines.queue_matches import Interest
from millstream.spark.pipelines.target import Job, Target, Tell, check_names, find_queues, quiet
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
"""As many as `queue.routing` keeps decoded at once, if blocks are large: queues look one by one."""
ROUTER = "spark"

Enrich = Callable[["DataFrame"], "DataFrame"]


class RoutedQueue(Struct, frozen=True, kw_only=True):
    """What became of one queue."""

    queue: str
    assigned: int
    backfilled: int = 0
    behind: int = 0
    """Records of its logs that it has not looked at: appended since the run began."""


class RouteSummary(Struct, frozen=True, kw_only=True):
    """What a run did."""

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
    """Assign to queues, or to all that Spark routes, what their logs hold up to now.

    `enrich` changes what filters see: a function of the records, or a SQL query over the view
    `records`, that gives them with other `headers`; with `values` they have their values. `backfill`
    names an archive: new queues first get what their logs have forgotten, as copies of their own.
    Records that were truncated before they were looked at raise `Truncated`, unless
    `allow_gaps` is given or the queue is lossy. Damaged ones end the run; with
    `allow_gaps` they are passed over, and the summary names them. It also names queues
    that cannot be described any more: they are left out, and stand where they stood.
    """
    job = Job(spark, store, progress)
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
        found = [
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
        assigned=sum(one.assigned for one in found),
        backfilled=sum(copied.values()),
        rounds=rounds,
        seconds=job.seconds,
        queues=found,
        lost=lost,
    )


def routed_queues(
    session: Session, names: Sequence[str], tell: TellLoss | None = None
) -> dict[str, QueueInfo]:
    """The queues that Spark routes: these, or all there are; `tell` hears of those left out."""
    told: list[Loss] = []
    found = find_queues(session, names, None if tell is None else told.append)
    routed = {info.name: info for info in found if info.spec.router == ROUTER}
    for info in found if names else ():
        if info.name not in routed:
            raise InvalidInput(
                f"queue {info.name!r} routes its messages itself; specify it with router='spark'"
            )
    for one in told:
        assert tell is not None
        tell(one)
    if not routed and not told:
        raise NotFound("no queue of this store is routed by Spark; specify one with router='spark'")
    return routed


def _messages(session: Session, info: QueueInfo) -> int:
    """Messages that a queue holds, whatever their state; those in its inbox included."""
    routed = info.available + info.delayed + info.in_flight + info.done + info.failed
    return routed + max(0, info.unrouted - _behind(session, info.name))


def _behind(session: Session, queue: str) -> int:
    """Records of its logs that a queue has not looked at."""
    return sum(one.end - one.position for one in session.execute(ListPositions(queue)))


def _logs(session: Session, infos: dict[str, QueueInfo]) -> dict[str, dict[str, int]]:
    """Where each queue stands in its logs."""
    return {
        name: {one.log: one.position for one in session.execute(ListPositions(name))}
        for name in infos
    }


def _skip_lost(
    session: Session, infos: dict[str, QueueInfo], *, allow_gaps: bool
) -> dict[str, int]:
    """Move queues past what their logs have forgotten, if that is allowed; the ends of the logs."""
    ends: dict[str, int] = {}
    for name, info in infos.items():
        for one in session.execute(ListPositions(name)):
            ends[one.log] = max(ends.get(one.log, 0), one.end)
            if one.position >= one.start:
                continue
            if not allow_gaps and not info.spec.lossy:
                raise Truncated(
                    f"log {one.log!r} begins at {one.start}, and queue {name!r} has come to "
                    f"{one.position} only: the records between were truncated before they were "
                    "routed; backfill them from an archive, or with allow_gaps they are passed over",
                    log=one.log,
                    offset=one.position,
                    start=one.start,
                )
            passed = Assignment(name, one.log, one.position, one.start, [])
            session.execute(AssignMessages([passed]))
    return ends


def _rounds(
    session: Session, infos: dict[str, QueueInfo], ends: dict[str, int], most: int
) -> Iterator[list[Range]]:
    """The offsets of each round; the next one may be asked for before the last is assigned."""
    ahead: dict[str, int] = {}
    while ranges := _next(session, infos, ends, most, ahead):
        yield ranges
        ahead |= {one.log: one.stop for one in ranges}


def _next(
    session: Session,
    infos: dict[str, QueueInfo],
    ends: dict[str, int],
    most: int,
    ahead: Mapping[str, int] = {},
) -> list[Range]:
    """The offsets of a round: of each log from where the last of its queues stands, or will."""
    starts: dict[str, int] = {}
    for logs in _logs(session, infos).values():
        for log, position in logs.items():
            if log in ends:
                starts[log] = min(starts.get(log, ends[log]), position)
    starts = {log: min(ends[log], max(start, ahead.get(log, 0))) for log, start in starts.items()}
    taken = shares({log: ends[log] - start for log, start in starts.items()}, most)
    return [Range(log, starts[log], starts[log] + count) for log, count in taken.items() if count]


class _RouteRun:
    """Rounds of one run: what is in them is looked at, and assigned."""

    def __init__(
        self, job: Job, session: Session, infos: dict[str, QueueInfo], *, allow_gaps: bool
    ) -> None:
        self.lost: list[Loss] = []
        self._job = job
        self._session = session
        self._infos = infos
        self._allow_gaps = allow_gaps

    def looked(self, rounds: Iterable[list[Range]]) -> Iterator[list[Range]]:
        """Let tasks ask the filters, and assign one round while they look at the next."""
        known: dict[str, list[Interest]] = {}

        def ask(ranges: list[Range]) -> RoundLook:
            for log in {one.log for one in ranges} - known.keys():
                known[log] = self._interests(log)
            interests = {one.log: known[one.log] for one in ranges}
            return look(self._job, ranges, interests, allow_gaps=self._allow_gaps)

        for found in one_ahead(ask, rounds):
            point("before commit")
            assign_all(self._session, found.assignments())
            point("after commit")
            self.lost += found.lost
            yield found.ranges

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
            chosen = {one.log for one in ranges}
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
        """Look at some records once, for all queues, and assign what matches."""
        job = self._job
        rows = job.read(
            [one.log for one in ranges],
            startingOffsets={one.log: one.start for one in ranges},
            endingOffsets={one.log: one.stop for one in ranges},
            typedHeaders=True,
            metadataOnly=not values,
            failOnDataLoss=not self._allow_gaps,
        )
        matched = matches(enriched(job.spark, rows, enrich), infos, [one.log for one in ranges])
        # The first and the last offset, so that every queue comes as far as this round goes.
        edges = [(one.log, at, None) for one in ranges for at in (one.start, one.stop - 1)]
        whole = matched.unionByName(
            job.spark.createDataFrame(edges, "log string, offset bigint, queue string")
        )
        job.append(whole, assign=True, queues=list(infos))


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
        found = enrich(rows)
    else:
        rows.createOrReplaceTempView("records")
        found = spark.sql(enrich)
    lacking = [
        n for n in ("topic", "offset", "key", "timestamp", "headers") if n not in found.columns
    ]
    if lacking:
        raise InvalidInput(
            f"the enriched records have no column {lacking[0]!r}; keep those of the records"
        )
    return found
